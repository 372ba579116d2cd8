"""README.md does what it says: its Python blocks run, as a newcomer runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace import serdes
from tests.support import kafka
from tests.support.patience import PATIENCE_S
from tests.support.processes import IMPORT_PATH, ROOT, wait_until
from tests.support.topics import Topics

_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.M | re.S)
_SAVED_AS = re.compile(r"[Ss]ave (?:this|it) as `([\w.]+)`")
HEADRACE_RUN = ("-c", "from headrace.streams.cli.main import main; main()", "run")


def blocks(page: str) -> list[tuple[str | None, str]]:
    """The Python blocks of a page, and the files that the paragraph before has them saved as."""
    text = (ROOT / page).read_text()
    found: list[tuple[str | None, str]] = []
    for block in _BLOCK.finditer(text):
        paragraph = text[: block.start()].rstrip().rpartition("\n\n")[2]
        saved_as = _SAVED_AS.search(paragraph)
        found.append((saved_as and saved_as[1], block["code"]))
    return found


class Newcomer:
    """Runs blocks in a directory of its own, against the tests' broker and topics of its own."""

    def __init__(self, home: Path, names: dict[str, str]) -> None:
        self.home = home
        self._names = names
        self._environment = {
            **os.environ,
            "PYTHONPATH": IMPORT_PATH,
            "XDG_STATE_HOME": str(home / "state"),
        }

    def save(self, name: str, code: str) -> None:
        """Save a block, with the names of topics and applications that no other test uses."""
        for old, new in self._names.items():
            code = code.replace(f'"{old}"', f'"{new}"')
        (self.home / name).write_text(code)

    def run(self, *arguments: str) -> str:
        """Run Python to its end; returns what it wrote."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.home,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run Python until the test is done with it; the log begins anew."""
        with (self.home / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.home,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def log(self) -> str:
        return (self.home / "log").read_text()


def test_the_application_of_the_readme_counts_the_sentence_that_its_command_sends(
    topics: Topics, tmp_path: Path
) -> None:
    (name, application), _ = blocks("README.md")
    names = {
        "localhost:9092": topics.bootstrap,
        "sentences": topics.create("sentences", partitions=4),
        "word-counts": topics.create("word-counts", partitions=4),
        "word-count": topics.name("word-count"),
    }
    newcomer = Newcomer(tmp_path, names)
    assert name == "word_count.py"
    newcomer.save(name, application)
    readme = (ROOT / "README.md").read_text()
    (produce,) = re.findall(r'^echo "a daisy is not a rose" \| headrace (.*)$', readme, re.M)
    sentence = tmp_path / "sentence.txt"
    sentence.write_text("a daisy is not a rose\n")
    words = [names["sentences"] if word == "sentences" else word for word in produce.split()]
    words.insert(3, str(sentence))
    with newcomer.running("word_count.py") as process:
        wait_until(lambda: has_members(names["word-count"], topics.bootstrap), what="it runs")
        newcomer.run("-m", "headrace", *words)
        counts = {"a": 2, "daisy": 1, "is": 1, "not": 1, "rose": 1}
        wait_until(
            lambda: counts_in(names["word-counts"], topics.bootstrap) == counts, what="counts"
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, newcomer.log()
    with newcomer.running(*HEADRACE_RUN, "word_count:app", "--workers=2") as process:
        wait_until(lambda: newcomer.log().count('"new": "running"') >= 2, what="two workers")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, newcomer.log()


def has_members(group: str, bootstrap: str) -> bool:
    return bool(kafka.members(bootstrap, group))


def counts_in(topic: str, bootstrap: str) -> dict[str, int]:
    """The last count of each word."""
    return {
        serdes.string.deserialize(record.key): serdes.long.deserialize(record.value)
        for record in kafka.read(bootstrap, topic)
    }


def test_the_test_of_the_readme_passes(tmp_path: Path) -> None:
    newcomer = Newcomer(tmp_path, {})
    for name, code in blocks("README.md"):
        assert name is not None
        newcomer.save(name, code)
    assert "1 passed" in newcomer.run("-m", "pytest", "-q", "-p", "no:cacheprovider")


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
    Newcomer(tmp_path, {}).save(*blocks("README.md")[0])
    done = subprocess.run(
        line.replace("headrace try", f"{sys.executable} -m headrace try"),
        shell=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": IMPORT_PATH},
        capture_output=True,
        text=True,
        check=True,
    )
    assert records_without_times(done.stdout) == records_without_times(shown)
