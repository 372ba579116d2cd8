"""Workers are killed and left standing while they write to a table: it has each record once."""

from __future__ import annotations

import random
import re
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support import kafka
from tests.support.live import settings_of
from tests.support.processes import running, wait_until
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

RECORDS = 1_500
MODULE = "tests.support.sink_app"
Query = Callable[[str], list[Any]]


class Scenario:
    """One application, its topic, and what its tables must have."""

    def __init__(self, topics: Topics, directory: Path, target: str, query: Query) -> None:
        self.input = topics.create("in", partitions=2)
        self.bootstrap = topics.bootstrap
        self.log = directory / "log"
        self.target = target
        self.query = query
        self.settings = settings_of(topics, directory, **{"max.poll.records": 100})
        self.sent: list[tuple[str, str]] = []

    def write(self, count: int = RECORDS) -> None:
        dice = random.Random(len(self.sent))
        more = [(f"k{dice.randrange(20)}", f"{len(self.sent) + n}") for n in range(count)]
        kafka.write(self.bootstrap, self.input, [(k.encode(), v.encode()) for k, v in more])
        self.sent += more

    def plan(self, worker: str = "w", **faults: Any) -> dict[str, Any]:
        settings = {**self.settings, "worker.id": worker}
        return {"settings": settings, "input": self.input, "target": self.target, **faults}

    def start(self, worker: str = "w", **faults: Any) -> Any:
        return running(self.plan(worker, **faults), self.log, MODULE)

    def is_complete(self) -> bool:
        try:
            return len(self.query("SELECT id FROM events")) >= len(self.sent) and self.counted()
        except sqlite3.OperationalError:
            return False  # nobody has made the tables yet

    def counted(self) -> bool:
        found = dict(self.query("SELECT id, count FROM counts"))
        return found == Counter(key for key, _ in self.sent)

    def check(self) -> None:
        """Compare with the recount: no row is missing, doubled, or out of its key's order."""
        rows = self.query("SELECT id, value FROM events")
        assert sorted(rows) == sorted(self.sent)
        assert self.counted()


def query_of(path: Path) -> Query:
    def query(statement: str) -> list[Any]:
        with closing(sqlite3.connect(path, timeout=30)) as database:
            return database.execute(statement).fetchall()

    return query


@pytest.fixture
def scenario(topics: Topics, tmp_path: Path) -> Scenario:
    path = tmp_path / "rows.db"
    return Scenario(topics, tmp_path, str(path), query_of(path))


@pytest.mark.parametrize("point", ["sink_written", "offsets_sent", "transaction_committed"])
def test_each_record_is_one_row_when_a_worker_dies(point: str, scenario: Scenario) -> None:
    """At SQLite's commit, and at Kafka's behind it."""
    scenario.write()
    with scenario.start(die_at=point, die_on=4) as app:
        assert app.wait() == -signal.SIGKILL, app.text()[-4000:]
    scenario.write()
    with scenario.start() as app:
        wait_until(
            lambda: scenario.is_complete() or not app.running, what=f"all rows; {scenario.log}"
        )
        app.stop()
    scenario.check()


@pytest.mark.faults
def test_each_record_is_one_row_when_a_worker_stands_still(scenario: Scenario) -> None:
    """Another one has its tasks when it goes on in the middle of what it wrote."""
    scenario.write()
    with scenario.start("zombie", stop_at="sink_written", stop_on=4) as zombie:
        wait_until(lambda: zombie.is_stopped or not zombie.running, what="standing still")
        scenario.write()
        with scenario.start("other") as other:
            wait_until(lambda: scenario.is_complete() or not other.running, what=f"{scenario.log}")
            zombie.resume()
            scenario.write()
            wait_until(lambda: scenario.is_complete() or not other.running, what=f"{scenario.log}")
            other.stop()
        zombie.stop()
    scenario.check()


class Direct(Scenario):
    """A sink that reads the topic itself, and has two rows of each record."""

    def is_complete(self) -> bool:
        try:
            return len(self.query("SELECT id FROM events")) >= 2 * len(self.sent)
        except sqlite3.OperationalError:
            return False  # nobody has made the table yet

    def check(self) -> None:
        rows = self.query("SELECT id, value FROM events ORDER BY rowid")
        for key in {key for key, _ in self.sent}:
            found = [value for one, value in rows if one == key]
            sent = [value for one, value in self.sent if one == key]
            assert found == [text for value in sent for text in (value, f"{value} again")]


@pytest.fixture
def direct(topics: Topics, tmp_path: Path) -> Direct:
    path = tmp_path / "rows.direct.db"
    return Direct(topics, tmp_path, str(path), query_of(path))


@pytest.mark.parametrize("point", ["sink_written", "offsets_sent", "transaction_committed"])
def test_the_rows_of_each_record_are_there_once_without_a_topic_in_front(
    point: str, direct: Direct
) -> None:
    """Also at least once: what is committed to Kafka is the offset alone."""
    direct.settings["processing.guarantee"] = (
        "at_least_once" if point == "sink_written" else "exactly_once_v2"
    )
    direct.write()
    with direct.start(die_at=point, die_on=2) as app:
        assert app.wait() == -signal.SIGKILL, app.text()[-4000:]
    direct.write()
    with direct.start("other") as app:
        wait_until(lambda: direct.is_complete() or not app.running, what=f"all rows; {direct.log}")
        app.stop()
    direct.check()


@pytest.mark.long
def test_a_step_changes_its_form_only_where_that_is_accepted_and_has_each_row_once(
    scenario: Scenario,
) -> None:
    """Drained and stopped in order, neither form leaves a row to the other one."""
    path = Path(scenario.target)
    direct = path.with_name("same.direct.db")
    path.touch()
    direct.symlink_to(path)
    wanted: list[tuple[str, str]] = []
    for target, times in [(path, 1), (direct, 2), (path, 1)]:
        scenario.target = str(target)
        before = len(scenario.sent)
        scenario.write(300)
        new = scenario.sent[before:]
        wanted += new
        if times == 2:
            wanted += [(key, f"{value} again") for key, value in new]
        if before:
            with scenario.start() as refused:
                assert refused.wait() > 0
            told = "keep-events-repartition is not read" if times == 2 else "to_sink('keep-events')"
            assert told in refused.text()
            codes = re.findall(r"topology\.change\.accept=(\w{8})", refused.text())
            scenario.settings["topology.change.accept"] = codes[-1]
        _run_until_written(scenario, len(wanted))
        assert sorted(scenario.query("SELECT id, value FROM events")) == sorted(wanted)


def _run_until_written(scenario: Scenario, count: int) -> None:
    def is_written() -> bool:
        try:
            return len(scenario.query("SELECT id FROM events")) >= count
        except sqlite3.OperationalError:
            return False  # nobody has made the table yet

    with scenario.start() as app:
        wait_until(lambda: is_written() or not app.running, what=f"all rows; {scenario.log}")
        app.stop()
