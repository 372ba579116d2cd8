"""A table whose source is its changelog, on a real broker, killed between the commit and its state.

Its rows are counted by their value, so a row of another offset than the committed one shows: it is
taken away from a group that it never joined.
"""

from __future__ import annotations

import random
import shutil
import signal
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import kafka
from tests.support.processes import AppProcess, wait_until
from tests.support.topics import Topics

MODULE = "tests.support.table_app"
KEYS, VALUES = 40, "abcde"


class Rows:
    """The table on the broker, and the application that counts its rows."""

    def __init__(self, topics: Topics, directory: Path, guarantee: str) -> None:
        self.bootstrap = topics.bootstrap
        self.input = topics.create("rows", partitions=3, config={"cleanup.policy": "compact"})
        self.output = topics.create("out", partitions=3)
        self.application_id = topics.name("app")
        self.state_dir = directory / "state"
        self.log = directory / "log"
        self.rows: dict[str, str] = {}
        self.settings: dict[str, Any] = {
            "application.id": self.application_id,
            "bootstrap.servers": self.bootstrap,
            "processing.guarantee": guarantee,
            "topology.optimization": "reuse.ktable.source.topics",
            "state.dir": str(self.state_dir),
            "worker.id": "w",
            "commit.interval.ms": 0,
            "max.poll.records": 100,
            "consumer.session.timeout.ms": 6_000,
        }

    def write(self, seed: int) -> None:
        choose = random.Random(seed)
        records: list[tuple[bytes, bytes | None]] = []
        for _ in range(1_000):
            key = f"key-{choose.randrange(KEYS)}"
            value = choose.choice([*VALUES, None])
            self.rows.pop(key, None)
            if value is not None:
                self.rows[key] = value
            records.append((key.encode(), None if value is None else value.encode()))
        kafka.write(self.bootstrap, self.input, records)

    def start(self, **faults: Any) -> AppProcess:
        plan = {"settings": self.settings, "input": self.input, "output": self.output, **faults}
        return AppProcess(plan, self.log, MODULE)

    def die(self, step: str) -> None:
        app = self.start(die_at=step, die_on=4)
        assert app.wait() == -signal.SIGKILL, app.text()[-4000:]

    def counts(self) -> Counter[str]:
        """The last count of each value."""
        last = Counter[str]()
        for record in kafka.read(self.bootstrap, self.output, "read_committed"):
            assert record.key is not None
            assert record.value is not None
            last[record.key.decode()] = struct.unpack(">q", record.value)[0]
        return +last

    def finish(self) -> str:
        """Run until all is counted; returns what it printed."""
        app = self.start()
        try:
            expected = Counter(self.rows.values())
            wait_until(
                lambda: self.counts() == expected or not app.running, what=f"counts; {self.log}"
            )
            app.stop()
            return app.text()
        finally:
            app.kill()


@pytest.mark.parametrize(
    ("guarantee", "state"),
    [
        ("at_least_once", "kept"),
        ("exactly_once_v2", "deleted"),
        pytest.param("at_least_once", "deleted", marks=pytest.mark.long),
        pytest.param("exactly_once_v2", "kept", marks=pytest.mark.long),
    ],
)
def test_rows_are_those_of_the_committed_offset(
    guarantee: str, state: str, topics: Topics, tmp_path: Path
) -> None:
    """Trap 25: what came behind the committed offset is not in the rows before it is processed."""
    table = Rows(topics, tmp_path, guarantee)
    table.write(seed=0)
    table.die("transaction_committed")
    if state == "deleted":
        shutil.rmtree(table.state_dir)
    table.write(seed=1)
    told = table.finish()
    assert table.counts() == Counter(table.rows.values())
    restored = [line for line in told.splitlines() if f'"restored": "{table.input}-' in line]
    assert restored, told
    assert topics.partitions(f"{table.application_id}-counts-changelog") == 3
    assert topics.partitions(f"{table.application_id}-rows-changelog") == 0


@pytest.mark.parametrize("step", ["changelogs_written", "offsets_sent"])
def test_what_was_not_committed_is_not_in_the_rows(
    step: str, topics: Topics, tmp_path: Path
) -> None:
    """Exactly-once: the kill comes before the commit, and local state is lost besides."""
    table = Rows(topics, tmp_path, "exactly_once_v2")
    table.write(seed=2)
    table.die(step)
    shutil.rmtree(table.state_dir)
    table.finish()
    assert table.counts() == Counter(table.rows.values())
