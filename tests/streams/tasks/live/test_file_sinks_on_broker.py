"""Workers are killed and left standing while they write to files: these have each record once."""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset
import pytest

from tests.streams.tasks.live.test_sinks_on_broker import Query, Scenario, query_of
from tests.support.processes import AppProcess, wait_until
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

KILLS = 5


def query_duckdb(path: Path) -> Query:
    def query(statement: str) -> list[Any]:
        """Read between the writes of others."""
        for _ in range(500):
            with suppress(duckdb.IOException):
                if not path.exists():
                    return []
                with closing(duckdb.connect(path, read_only=True)) as database:
                    try:
                        return database.execute(statement).fetchall()
                    except duckdb.CatalogException:
                        return []  # nobody has made the table yet
            time.sleep(0.01)
        raise AssertionError(f"{path} was never free")

    return query


def query_parquet(path: Path) -> Query:
    of_counts = query_of(path.with_name(f"{path.name}.db"))

    def query(statement: str) -> list[Any]:
        if "counts" in statement:
            return of_counts(statement)
        files = [str(file) for file in path.rglob("*.parquet")] if path.exists() else []
        rows = [row for file in files for row in _rows(file)]
        return [(row["id"], row["value"]) for row in rows]

    return query


def _rows(file: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pyarrow.dataset.dataset(file).to_table().to_pylist()
    return found


KINDS = {"duckdb": query_duckdb, "parquet": query_parquet}


@pytest.fixture(params=KINDS)
def scenario(topics: Topics, tmp_path: Path, request: pytest.FixtureRequest) -> Scenario:
    path = tmp_path / f"rows.{request.param}"
    return Scenario(topics, tmp_path, str(path), KINDS[request.param](path))


def wait_for(scenario: Scenario, app: Any) -> None:
    wait_until(lambda: scenario.is_complete() or not app.running, what=f"all rows; {scenario.log}")


@pytest.mark.parametrize("point", ["sink_written", "transaction_committed"])
def test_each_record_is_one_row_when_a_worker_dies(point: str, scenario: Scenario) -> None:
    """At the file's commit, and at Kafka's behind it."""
    scenario.write()
    with scenario.start(die_at=point, die_on=4) as app:
        assert app.wait() == -signal.SIGKILL, app.text()[-4000:]
    scenario.write()
    with scenario.start() as app:
        wait_for(scenario, app)
        app.stop()
    scenario.check()


@pytest.mark.faults
def test_each_record_is_one_row_when_a_worker_stands_still(scenario: Scenario) -> None:
    """Another one has its tasks when it goes on behind what it wrote."""
    scenario.write()
    with scenario.start("zombie", stop_at="sink_written", stop_on=3) as zombie:
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


@pytest.mark.faults
def test_each_record_is_one_row_when_workers_are_killed_at_any_time(scenario: Scenario) -> None:
    """Under load, and two at a time; who is killed is started again at once."""
    dice = random.Random(7)
    with ExitStack() as stack:
        apps: dict[str, AppProcess] = {}
        for worker in ("a", "b"):
            apps[worker] = stack.enter_context(scenario.start(worker))
        for _ in range(KILLS):
            scenario.write(1_000)
            time.sleep(dice.uniform(0.5, 2.0))
            worker = dice.choice(sorted(apps))
            apps[worker].kill()
            apps[worker] = stack.enter_context(scenario.start(worker))
        wait_for(scenario, apps["a"])
        for app in apps.values():
            app.stop()
    scenario.check()


def test_who_collects_rows_keeps_no_other_worker_from_its_work(
    topics: Topics, tmp_path: Path
) -> None:
    """Others see by its offsets how far it is: it writes where these wait for it."""
    path = tmp_path / "rows.held.parquet"
    scenario = Scenario(topics, tmp_path, str(path), query_parquet(path))
    scenario.settings["repartition.lag.max.records"] = 200
    scenario.write()
    with scenario.start("a") as a, scenario.start("b") as b:
        wait_until(lambda: a.text().count("task_started") >= 6, what="the tasks of both")
        scenario.write()
        wait_until(
            lambda: len(scenario.query("SELECT id FROM counts")) > 0 and scenario.counted(),
            what=f"the other table; {scenario.log}",
        )
        assert "repartition_reader_stalled" not in a.text()
        a.stop()
        b.stop()
    scenario.check()


def test_files_of_parquet_are_few(topics: Topics, tmp_path: Path) -> None:
    """Hundreds of commits make a file for each second or 200 rows, and not one each."""
    path = tmp_path / "rows.parquet"
    scenario = Scenario(topics, tmp_path, str(path), query_parquet(path))
    begun = time.monotonic()
    with scenario.start() as app:
        for _ in range(40):
            scenario.write(10)
            time.sleep(0.1)
        wait_for(scenario, app)
        app.stop()
    scenario.check()
    files = list(path.rglob("*.parquet"))
    assert len(files) <= 2 * (time.monotonic() - begun + 1), files  # of two partitions
