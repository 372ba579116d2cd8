"""Feeds on a real Kafka: each row once, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.sources import Batch, Feed, Files, Row, SourceError, replayable
from headrace.streams.errors import MissingTopicError
from tests.support import kafka
from tests.support.patience import PATIENCE_S
from tests.support.processes import ROOT
from tests.support.quotas import produce_quota
from tests.support.topics import Topics

FILES, ROWS = 4, 5000


def _feed(topics: Topics, source: Any, topic: str, name: str) -> Feed:
    return Feed(source, topic=topic, name=name, settings={"bootstrap.servers": topics.bootstrap})


def _values(topics: Topics, topic: str) -> list[Any]:
    return [json.loads(record.value or b"") for record in kafka.read(topics.bootstrap, topic)]


def test_rows_of_files_come_in_once_although_the_feed_is_killed(
    topics: Topics, tmp_path: Path
) -> None:
    """Killed at moments of chance while the files grow, and begun again."""
    topic, name = topics.create("rows", partitions=2), topics.name("feed")
    rng = random.Random(5)
    command = [
        sys.executable, "-m", "headrace", "feed", "--files", f"{tmp_path}/*.jsonl", "--to", topic,
        "--name", name, "--key", "file", "--bootstrap-servers", topics.bootstrap,
    ]  # fmt: skip
    for part in range(FILES):
        lines = [json.dumps({"file": part, "n": n}) + "\n" for n in range(ROWS)]
        (tmp_path / f"{part}.jsonl").write_text("".join(lines))
        running = subprocess.Popen([*command, "--follow"], cwd=ROOT)
        time.sleep(0.8 + rng.random())
        running.kill()
        running.wait()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    found = _values(topics, topic)
    assert len(found) == FILES * ROWS
    for part in range(FILES):
        assert [row["n"] for row in found if row["file"] == part] == list(range(ROWS))
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert again.stdout == f"Written: {topic} (0 rows)\n"


def test_a_feed_whose_name_is_taken_ends_and_writes_nothing_more(topics: Topics) -> None:
    topic, name = topics.create("rows"), topics.name("feed")
    goes_on, has_begun = threading.Event(), threading.Event()

    def numbers(positions: Mapping[str, Any]) -> Iterator[Batch]:
        begin = positions.get("n", 0)
        for n in range(begin, 10):
            if n == 5 and not goes_on.is_set():
                has_begun.set()
                assert goes_on.wait(PATIENCE_S)
            yield Batch("n", n + 1, [Row(n)])

    errors: list[BaseException] = []

    def run() -> None:
        try:
            _feed(topics, replayable(numbers), topic, name).run()
        except SourceError as error:
            errors.append(error)

    first = threading.Thread(target=run)
    first.start()
    assert has_begun.wait(PATIENCE_S)
    goes_on_for_second = _feed(topics, replayable(_all), topic, name)
    assert goes_on_for_second.run() == 10
    goes_on.set()
    first.join(PATIENCE_S)
    assert "another feed has started with the name" in str(errors[0])
    assert _values(topics, topic) == list(range(10))


def _all(positions: Mapping[str, Any]) -> Iterator[Batch]:
    begin = positions.get("n", 0)
    if begin < 10:
        yield Batch("n", 10, [Row(n) for n in range(begin, 10)])


def test_a_source_that_fails_leaves_nothing_uncommitted(topics: Topics) -> None:
    topic, name = topics.create("rows"), topics.name("feed")

    def failing(positions: Mapping[str, Any]) -> Iterator[Batch]:
        yield Batch("n", 1, [Row("lost")])
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        _feed(topics, replayable(failing), topic, name).run()
    assert _feed(topics, replayable(_all), topic, name).run() == 10
    assert _values(topics, topic) == list(range(10))


def test_a_row_that_the_serde_does_not_take_is_named(topics: Topics) -> None:
    out = topics.create("numbers")
    rows = [Row({"n": 1}), Row({"n": {1, 2}}, where="row 2 of the list")]
    source = replayable(lambda at: [] if at else [Batch("p", 1, rows)])
    with pytest.raises(
        SourceError, match=f"row 2 of the list cannot be serialized for {out} .serde"
    ):
        _feed(topics, source, out, topics.name("feed")).run()
    assert _values(topics, out) == []


def test_a_topic_that_is_missing_is_named_with_what_to_do(topics: Topics) -> None:
    missing = topics.name("missing")
    with pytest.raises(MissingTopicError, match=f"headrace topics create {missing}"):
        _feed(topics, Files("*.jsonl"), missing, topics.name("feed")).run()


@pytest.mark.slow
def test_a_feed_goes_on_under_a_quota(topics: Topics, tmp_path: Path) -> None:
    """Rows of more than a transaction can take in its time, each of them once."""
    topic, name, rows = topics.create("rows"), topics.name("feed"), 3_000
    text = random.Random(5).randbytes(2_500).hex()
    lines = [json.dumps({"n": n, "text": text}) + "\n" for n in range(rows)]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    feed = Feed(
        Files(f"{tmp_path}/*.jsonl"), topic=topic, name=name,
        settings={"bootstrap.servers": topics.bootstrap, "producer.compression.type": "none"},
    )  # fmt: skip
    with produce_quota(topics.bootstrap, f"{name}-producer", 500_000):
        assert feed.run() == rows
    assert [row["n"] for row in _values(topics, topic)] == list(range(rows))


def _fed(topics: Topics, pattern: Path, topic: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "headrace", "feed", "--files", str(pattern), "--to", topic,
        "--name", f"{topic}-feed", "--bootstrap-servers", topics.bootstrap, *more,
    ]  # fmt: skip
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


REFUSED = {
    "a large integer": '{"n": 123456789012345678901234567890}',
    "half a surrogate pair": '{"n": "\\ud800"}',
    "depth": '{"n": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "two megabytes": '{"n": "' + "x" * 2_000_000 + '"}',
    "no JSON": "[",
}


def test_rows_that_the_topic_does_not_take_are_skipped_and_counted(
    topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create("rows")
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f'{{"n": {n}}}\n{bad}\n' for n, bad in enumerate(REFUSED.values())))
    refused = _fed(topics, file, topic)
    assert refused.returncode != 0
    assert f" of {file}, before byte " in refused.stderr
    assert "Traceback" not in refused.stderr
    done = _fed(topics, file, topic, "--skip-bad")
    assert done.returncode == 0, done.stderr
    counted = f"{len(REFUSED)} rows; {len(REFUSED)} skipped, see rows_skipped in the log"
    assert done.stdout == f"Written: {topic} ({counted})\n"
    assert [row["n"] for row in _values(topics, topic)] == list(range(len(REFUSED)))


def test_a_row_that_is_larger_than_the_topic_takes_is_named(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create("rows", config={"max.message.bytes": "20000"})
    file = tmp_path / "a.csv"
    file.write_text(f"n\n1\n{random.Random(1).randbytes(15_000).hex()}\n2\n")
    refused = _fed(topics, file, topic)
    assert refused.returncode != 0
    assert f"line 3 of {file}" in refused.stderr
    done = _fed(topics, file, topic, "--skip-bad")
    assert done.returncode == 0, done.stderr
    assert [row["n"] for row in _values(topics, topic)] == ["1", "2"]


def test_an_open_quote_and_a_file_that_was_written_again_end_a_feed(
    topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create("rows")
    file = tmp_path / os.fsdecode(b"\xff.csv")
    file.write_text('n\n1\n"2\n3\n')
    opened = _fed(topics, tmp_path / "*.csv", topic)
    assert opened.returncode != 0
    assert opened.stdout == f"Written: {topic} (1 row)\n"
    assert "line 3 of" in opened.stderr
    assert "a quote is not closed. Correct the row" in opened.stderr
    file.write_text("n\n" + "".join(f"{n}\n" for n in range(10, 200)))
    again = _fed(topics, tmp_path / "*.csv", topic)
    assert again.returncode != 0
    assert "was truncated or rewritten" in again.stderr
    done = _fed(topics, tmp_path / "*.csv", topic, "--rewritten")
    assert done.returncode == 0, done.stderr
    assert [row["n"] for row in _values(topics, topic)] == ["1", *map(str, range(10, 200))]
