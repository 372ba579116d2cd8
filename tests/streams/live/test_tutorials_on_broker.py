"""The chapters of the tutorial that need Kafka, with the commands of their pages."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.processes import wait_until
from tests.support.reader import SHOP, Reader
from tests.support.topics import Topics
from tests.support.tutorials import CHAPTERS, Block, Command, comparable, files_before, steps

pytestmark = pytest.mark.slow

TOPICS = ("orders", "revenue")


def reader(topics: Topics, home: Path, names: tuple[str, ...]) -> Reader:
    """Return a reader whose topics no other test uses, and delete them at the end."""
    return Reader(home, topics.bootstrap, {name: topics.name(name) for name in names})


def commands(chapter: str) -> dict[str, str | None]:
    """Return each line of the shell with the output that the page shows for it first."""
    found: dict[str, str | None] = {}
    for step in steps(chapter):
        if isinstance(step, Command):
            found = dict.fromkeys(step.lines[:-1]) | {step.lines[-1]: step.output} | found
    return found


def last_rows(lines: str) -> dict[str, object]:
    """Return the last value of each key."""
    return {record["key"]: record["value"] for record in map(json.loads, lines.splitlines())}


def test_the_first_application_runs_as_the_page_runs_it(topics: Topics, tmp_path: Path) -> None:
    """Updates of one key may be combined or not, so the last value of each key is compared."""
    chapter = CHAPTERS[0]
    me = reader(topics, tmp_path, TOPICS)
    for step in steps(chapter):
        if isinstance(step, Block):
            me.save(step)
    shown = commands(chapter)
    dev, produce, tail = (
        next(line for line in shown if line.startswith(f"headrace {name}"))
        for name in ("dev", "topics produce", "topics tail")
    )
    with me.running(dev, "--http", "0"):
        me.wait_for_log("new=running")
        written = shown[produce]
        assert written is not None
        assert comparable(me.run(produce)) == comparable(written)
        once = last_rows(shown[tail] or "")
        assert once == {"ada": 750, "bob": 300}
        wait_until(lambda: last_rows(me.run(tail)) == once, what="the sums of the page")
        me.run(produce)
        twice = {"ada": 1500, "bob": 600}
        wait_until(lambda: last_rows(me.run(tail)) == twice, what="twice the sums")


PRODUCTION = "production"


def test_production_survives_what_the_page_does_to_it(topics: Topics, tmp_path: Path) -> None:
    """The second time that it writes many orders, a worker is killed."""
    me = reader(topics, tmp_path, SHOP)
    for block in files_before(PRODUCTION):
        me.save(block)
    port, written = str(free_port()), 0
    with ExitStack() as stack:
        for step in steps(PRODUCTION):
            if isinstance(step, Block):
                me.save(step)
            elif not step.is_offline:
                for line in step.lines:
                    output = step.output if line == step.lines[-1] else None
                    run_line(me, line.replace("9464", port), output or "", stack)
                    written += line.startswith("headrace topics produce orders many.jsonl")
                    if written == 2 and "worker_crashed" not in me.log():
                        kill_a_worker(me)


def run_line(me: Reader, line: str, output: str, stack: ExitStack) -> None:
    """Run a line of the page on production; the broker is that of the tests."""
    if line.startswith("headrace run"):
        stack.enter_context(me.running(line))
        me.wait_for_log('"new": "running"', 2)
    elif output.startswith("Refused: store hours is called hourly-sums"):
        check_another_name_of_a_store(me, line, output)
    elif "topics tail" in line or line.startswith("curl"):
        wait_for_output(me, line, output)
    elif not line.startswith("headrace broker"):
        printed = comparable(me.run(line))
        assert not output or printed == comparable(output)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def wait_for_output(me: Reader, line: str, output: str) -> None:
    """Wait until a command prints what the page shows: records are processed meanwhile."""
    wait_until(lambda: comparable(me.run(line)) == comparable(output), what=f"{line}: {output}")


def kill_a_worker(me: Reader) -> None:
    started = [json.loads(line) for line in me.log().splitlines() if "worker_started" in line]
    os.kill(started[-1]["pid"], signal.SIGKILL)
    me.wait_for_log("worker_crashed")


def check_another_name_of_a_store(me: Reader, line: str, output: str) -> None:
    hours = me.home / "hours.py"
    right = hours.read_text()
    hours.write_text(right.replace('store="hours"', 'store="hourly-sums"'))
    printed = me.run(line, code=1)
    hours.write_text(right)
    assert comparable(printed) == comparable(output)
