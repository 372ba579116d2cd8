"""README.md does what it says: its Python blocks run, as a newcomer runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from headrace import serdes
from tests.support import kafka
from tests.support.processes import ROOT, wait_until
from tests.support.reader import Reader
from tests.support.topics import Topics
from tests.support.tutorials import Block

_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.M | re.S)
_SAVED_AS = re.compile(r"[Ss]ave (?:this|it) as `([\w.]+)`")


def blocks(page: str) -> list[tuple[str | None, str]]:
    """The Python blocks of a page, and the files that the paragraph before has them saved as."""
    text = (ROOT / page).read_text()
    found: list[tuple[str | None, str]] = []
    for block in _BLOCK.finditer(text):
        paragraph = text[: block.start()].rstrip().rpartition("\n\n")[2]
        saved_as = _SAVED_AS.search(paragraph)
        found.append((saved_as and saved_as[1], block["code"]))
    return found


def test_the_application_of_the_readme_counts_the_sentence_that_its_command_sends(
    topics: Topics, tmp_path: Path
) -> None:
    (name, application), _ = blocks("README.md")
    names = {
        "sentences": topics.create("sentences", partitions=4),
        "word-counts": topics.create("word-counts", partitions=4),
        "word-count": topics.name("word-count"),
    }
    me = Reader(tmp_path, topics.bootstrap, names)
    assert name == "word_count.py"
    me.save(Block("python", name, application))
    readme = (ROOT / "README.md").read_text()
    (produce,) = re.findall(r'^echo "a daisy is not a rose" \| headrace .*$', readme, re.M)
    with me.running("python word_count.py"):
        wait_until(lambda: has_members(names["word-count"], topics.bootstrap), what="it runs")
        me.run(produce)
        counts = {"a": 2, "daisy": 1, "is": 1, "not": 1, "rose": 1}
        wait_until(
            lambda: counts_in(names["word-counts"], topics.bootstrap) == counts, what="counts"
        )
    with me.running("headrace run word_count:app --workers=2"):
        me.wait_for_log('"new": "running"', 2)


def has_members(group: str, bootstrap: str) -> bool:
    return bool(kafka.members(bootstrap, group))


def counts_in(topic: str, bootstrap: str) -> dict[str, int]:
    """The last count of each word."""
    return {
        serdes.string.deserialize(record.key): serdes.long.deserialize(record.value)
        for record in kafka.read(bootstrap, topic)
    }


def test_the_test_of_the_readme_passes(tmp_path: Path) -> None:
    me = Reader(tmp_path, "localhost:9092", {})
    for name, code in blocks("README.md"):
        me.save(Block("python", name, code))
    assert "1 passed" in me.run("pytest -q -p no:cacheprovider")


def test_the_word_count_of_the_readme_is_the_example() -> None:
    """The README shows examples/word_count.py, so both must name the same steps."""
    steps = re.compile(r"\.(stream|flat_map_values|group_by|count|to_stream|to)\((.*?)\)?$", re.M)
    shown = [name for name, _ in steps.findall(blocks("README.md")[0][1])]
    real = [name for name, _ in steps.findall((ROOT / "examples/word_count.py").read_text())]
    assert shown == real
    assert len(shown) == 6


def records_without_times(text: str) -> list[dict[str, object]]:
    records: list[dict[str, object]] = [json.loads(line) for line in text.splitlines()]
    assert all(record.pop("timestamp") for record in records)
    return records


def test_the_line_that_tries_the_word_count_prints_what_the_readme_shows(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (line,) = re.findall(r"^echo .* \| headrace try .*$", text, re.M)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", text, re.M | re.S)
    name, application = blocks("README.md")[0]
    me = Reader(tmp_path, "localhost:9092", {})
    me.save(Block("python", name, application))
    assert records_without_times(me.run(line)) == records_without_times(shown)
