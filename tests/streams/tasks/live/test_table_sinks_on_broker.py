"""Workers are killed and left standing while they write to tables of Delta Lake and Iceberg.

Recounted by DuckDB, which reads the files that the newest version of the table consists of.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from tests.streams.tasks.live.test_sinks_on_broker import Query, Scenario
from tests.support.processes import AppProcess, wait_until
from tests.support.sink_app import iceberg_of
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

KILLS = 3


def files_of_delta(path: Path, table: str) -> Sequence[str]:
    place = str(path / table)
    if not deltalake.DeltaTable.is_deltatable(place):
        return ()  # nobody has made it yet
    return deltalake.DeltaTable(place).file_uris()


def files_of_iceberg(path: Path, table: str) -> Sequence[str]:
    with closing(load_catalog(**iceberg_of(str(path)))) as catalog:
        try:
            tasks = catalog.load_table(f"shop.{table}").scan().plan_files()
        except NoSuchTableError:
            return ()
        assert not any(task.delete_files for task in tasks)
        return [task.file.file_path.removeprefix("file://") for task in tasks]


KINDS = {"delta": files_of_delta, "iceberg": files_of_iceberg}


def query_of(path: Path, kind: str) -> Query:
    def query(statement: str) -> list[Any]:
        what, table = statement.split(" FROM ")
        files = KINDS[kind](path, table)
        if not files:
            return []
        named = ", ".join(f"'{file}'" for file in files)
        return duckdb.sql(f"{what} FROM read_parquet([{named}])").fetchall()

    return query


@pytest.fixture(params=KINDS)
def scenario(topics: Topics, tmp_path: Path, request: pytest.FixtureRequest) -> Scenario:
    path = tmp_path / f"rows.{request.param}"
    return Scenario(topics, tmp_path, str(path), query_of(path, request.param))


def wait_for(scenario: Scenario, app: Any) -> None:
    wait_until(lambda: scenario.is_complete() or not app.running, what=f"all rows; {scenario.log}")


def rows_in(scenario: Scenario) -> int:
    return len(scenario.query("SELECT id FROM events"))


@pytest.mark.faults
def test_each_record_is_one_row_when_workers_are_killed_at_any_time(scenario: Scenario) -> None:
    """Under load, and two at a time; who is killed is started again at once."""
    dice = random.Random(7)
    with ExitStack() as stack:
        apps: dict[str, AppProcess] = {}
        for worker in ("a", "b"):
            apps[worker] = stack.enter_context(scenario.start(worker))
        for _ in range(KILLS):
            there = rows_in(scenario)
            scenario.write(2_000)
            # In the middle of what it writes, and not while it starts.
            wait_until(lambda n=there: rows_in(scenario) > n, what=f"more rows; {scenario.log}")
            time.sleep(dice.uniform(0, 0.3))
            worker = dice.choice(sorted(apps))
            apps[worker].kill()
            apps[worker] = stack.enter_context(scenario.start(worker))
        wait_for(scenario, apps["a"])
        for app in apps.values():
            app.stop()
    scenario.check()


@pytest.mark.long
def test_each_record_is_one_row_when_a_worker_dies_behind_its_commit(scenario: Scenario) -> None:
    scenario.write()
    with scenario.start(die_at="sink_written", die_on=3) as app:
        assert app.wait() == -signal.SIGKILL, app.text()[-4000:]
    scenario.write()
    with scenario.start() as app:
        wait_for(scenario, app)
        app.stop()
    scenario.check()


@pytest.mark.long
def test_each_record_is_one_row_when_a_worker_stands_still(scenario: Scenario) -> None:
    """Another one has its tasks when it goes on behind what it wrote."""
    scenario.write()
    with scenario.start("zombie", stop_at="sink_written", stop_on=2) as zombie:
        wait_until(lambda: zombie.is_stopped or not zombie.running, what="standing still")
        scenario.write()
        with scenario.start("other") as other:
            wait_for(scenario, other)
            zombie.resume()
            scenario.write()
            wait_for(scenario, other)
            other.stop()
        zombie.stop()
    scenario.check()
