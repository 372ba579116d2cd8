"""`headrace backfill` on a real broker, where Spark has nothing to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.spark_bridge import session
from headrace.streams.cli import main as cli
from headrace.streams.supervisor.exit_codes import ExitCode
from tests.spark_bridge.support.handed import Handed
from tests.spark_bridge.support.ways import find, hand_over_by_driver
from tests.support import kafka
from tests.support.live import live
from tests.support.processes import AppProcess
from tests.support.topics import Topics

LINES = 60
RECORDS_A_LINE = 5
APP = """
from headrace.streams import KafkaStreams
from tests.spark_bridge.support.handed import word_count

app = KafkaStreams(word_count({source!r}, {sink!r}), {settings!r})
"""


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts Spark here fails."""

    def start(*_: Any, **__: Any) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "session", start)


@pytest.fixture
def handed(topics: Topics, tmp_path: Path) -> Handed:
    made = Handed(topics, tmp_path)
    made.write(LINES)
    (tmp_path / "app_of.py").write_text(APP.format(**made.told))
    return made


def headrace(tmp_path: Path, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli.main, [command, f"{tmp_path}/app_of.py:app", *arguments])


def words(result: Result) -> str:
    return " ".join(result.output.split())


def die_at(handed: Handed, tmp_path: Path, step: str, **more: Any) -> None:
    """Have a driver begin bf-1, and end without a word."""
    driver = AppProcess({**handed.told, "id": "bf-1", "step": step, **more},
                        tmp_path / "driver.log",
                        "tests.spark_bridge.support.handover_driver_process")  # fmt: skip
    assert driver.wait() == 77, driver.text()[-4000:]


def test_a_backfill_whose_driver_died_is_dropped_and_the_application_restarts(
    handed: Handed, tmp_path: Path
) -> None:
    """Parts of it are written; of them the application sees nothing."""
    die_at(handed, tmp_path, "unit_2")
    refused = headrace(tmp_path, "run")
    assert refused.exit_code == ExitCode.BACKFILL, refused.output
    other = headrace(tmp_path, "backfill", "--drop", "--id", "bf-2")
    assert other.exit_code == ExitCode.BACKFILL, other.output
    assert "bf-1" in other.output

    dropped = headrace(tmp_path, "backfill", "--drop", "--id", "bf-1")
    assert dropped.exit_code == 0, dropped.output
    assert f"deleted {handed.changelog}" in dropped.output
    assert "restarts from the beginning" in words(dropped)
    assert handed.offsets() == {}

    with live(handed.topology, handed.settings) as app:
        app.wait_processed(LINES * RECORDS_A_LINE)
    assert handed.state() == dict(handed.words)
    assert handed.offsets() == kafka.ends(handed.bootstrap, handed.source)
    again = headrace(tmp_path, "backfill", "--drop", "--id", "bf-1")
    assert again.exit_code == ExitCode.CRASHED
    assert "is not open (dropped): there is nothing to drop" in words(again)


def test_of_one_transaction_nothing_is_left_to_delete(handed: Handed, tmp_path: Path) -> None:
    die_at(handed, tmp_path, "handover_written", how="driver")
    dropped = headrace(tmp_path, "backfill", "--drop", "--id", "bf-1")
    assert dropped.exit_code == 0, dropped.output
    assert "deleted" not in dropped.output
    assert "can be started" in dropped.output
    handed.check_empty()


def test_a_finished_backfill_is_not_run_again(handed: Handed, tmp_path: Path) -> None:
    local = handed.computed(handed.plan("bf-1"))
    hand_over_by_driver(local, handed.application, summary=local.local.summary())
    result = headrace(tmp_path, "backfill", "--id", "bf-1")
    assert result.exit_code == 0, result.output
    assert "Backfill bf-1 was handed over before: nothing was done." in words(result)
    handed.check_recount()


def test_a_backfill_of_which_only_the_offsets_are_missing_is_ended(
    handed: Handed, tmp_path: Path
) -> None:
    die_at(handed, tmp_path, "handover_written")
    assert handed.offsets() == {}
    result = headrace(tmp_path, "backfill", "--id", "bf-1")
    assert result.exit_code == 0, result.output
    assert "Backfill bf-1 was written before: its offsets are committed now." in words(result)
    assert find(handed.application, "bf-1").is_done
    handed.check_recount()
    handed.go_on_live()


def test_another_backfill_that_is_open_is_named_before_spark_starts(
    handed: Handed, tmp_path: Path
) -> None:
    die_at(handed, tmp_path, "unit_0")
    result = headrace(tmp_path, "backfill")
    assert result.exit_code == ExitCode.BACKFILL
    assert "Finish it with headrace backfill ... --id bf-1" in words(result)


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)], ids=["run", "dry run"])
@pytest.mark.parametrize("archived", [False, True], ids=["kafka", "files"])
def test_an_application_that_runs_or_has_offsets_is_refused_before_spark_starts(
    handed: Handed, tmp_path: Path, archived: bool, dry_run: tuple[str, ...]
) -> None:
    arguments = list(dry_run)
    if archived:
        (tmp_path / "lines.csv").write_text("key,value,timestamp\n")
        arguments += [f"--source={handed.source}={tmp_path}/lines.csv", "--cutover=2026-01-31"]
    with live(handed.topology, handed.settings) as app:
        app.wait_processed(LINES * RECORDS_A_LINE)
        running = headrace(tmp_path, "backfill", *arguments)
    assert running.exit_code == ExitCode.BACKFILL, running.output
    assert "is running (members of its group" in words(running)
    stopped = headrace(tmp_path, "backfill", *arguments)
    assert stopped.exit_code == ExitCode.BACKFILL, stopped.output
    assert "has already committed offsets" in words(stopped)


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_wrong_names_and_paths_are_refused_before_spark_starts(
    handed: Handed, tmp_path: Path, dry_run: tuple[str, ...]
) -> None:
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "lines.csv").write_text("key,value,timestamp\n")
    (tmp_path / "directory").mkdir()
    source, files = handed.source, f"{tmp_path}/lines.csv"
    for arguments, why in (
        ([f"--source={source}={tmp_path}/none.parquet"], "none.parquet does not exist"),
        ([f"--source={source}={tmp_path}/empty.parquet"], "empty.parquet is empty"),
        ([f"--source={source}={tmp_path}/directory"], "directory has no files"),
        ([f"--source=other={files}"], "the topology does not read (other)"),
        ([f"--source={source}={files}", "--cutover=other-0=5"], "partitions without an archive"),
        (["--cutover=2026-01-31"], "cutover= requires source="),
        (["--until=other-0=5"], "partitions that are not inputs (other-0)"),
    ):
        result = headrace(tmp_path, "backfill", *arguments, *dry_run)
        assert result.exit_code == ExitCode.BACKFILL, result.output
        assert why in words(result), result.output
    handed.topics.delete_all()
    gone = headrace(tmp_path, "backfill", *dry_run)
    assert gone.exit_code in (ExitCode.BACKFILL, ExitCode.TOPICS), gone.output
    assert "do not exist" in words(gone)
