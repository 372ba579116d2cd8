"""The chapter of the tutorial on a year of history, with the commands of its page."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.support.processes import wait_until
from tests.support.reader import SHOP, Reader
from tests.support.topics import Topics
from tests.support.tutorials import Block, comparable, files_before, save, steps

CHAPTER = "history"
BEFORE = (
    "headrace topics create --app revenue:app --partitions 4",
    "headrace topics create dead-letters --partitions 4",
    "headrace topics produce customers customers.jsonl --app revenue:app",
    "python many.py > many.jsonl",
    "headrace topics produce orders many.jsonl --app revenue:app",
    "headrace topics produce orders many.jsonl --app revenue:app",
)
"""What a reader has done in the chapter before."""


def prints(me: Reader, line: str, expected: list[str]) -> bool:
    return me.run(line).splitlines() == expected


def test_the_sums_have_a_year_of_files_and_what_kafka_has(topics: Topics, tmp_path: Path) -> None:
    """The application did not run before, so Bob has no sum in the output topic."""
    me = Reader(tmp_path, topics.bootstrap, {name: topics.name(name) for name in SHOP})
    for block in files_before(CHAPTER):
        me.save(block)
    for line in BEFORE:
        me.run(line)
    with ExitStack() as stack:
        for step in steps(CHAPTER):
            if isinstance(step, Block):
                if step.file == "history.py":
                    save(step, tmp_path)  # its topics are names of files
                else:
                    me.save(step)
                continue
            for line in step.lines:
                if line.startswith("headrace run"):
                    stack.enter_context(me.running(line))
                    me.wait_for_log('"new": "running"', 2)
                elif "topics produce" in line:
                    me.run(line)
                elif "topics tail" in line:
                    sum_of_ada = (step.output or "").splitlines()[:1]
                    wait_until(partial(prints, me, line, sum_of_ada), what=str(sum_of_ada))
                else:
                    printed = me.run(line)
                    assert not step.output or comparable(printed) == comparable(step.output), line
