"""`headrace backfill` where no cluster is needed."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from headrace.spark_bridge.cli.backfill import (
    parse_offset,
    parse_sources,
    parse_until,
    shown_progress,
    summary,
)
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.reports import Report, StageReport
from headrace.streams.cli import main as cli
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.supervisor.exit_codes import ExitCode
from tests.support.generated_pages import backfill_exit_codes
from tests.support.processes import ROOT

APP = """
from headrace.streams import KafkaStreams
from headrace.topology import StreamsBuilder

builder = StreamsBuilder()
builder.stream("in").to("out")
app = KafkaStreams(builder.build(), {"application.id": "a", "bootstrap.servers": "localhost:1"})
"""
NOTHING: Any = None


def test_a_word_is_no_cutover(app: str) -> None:
    result = invoke(app, "--source", "in=past.csv", "--cutover", "latest")
    assert result.exit_code == ExitCode.USAGE
    assert "must be a time" in " ".join(result.output.split())


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["backfill", *arguments])


@pytest.fixture
def app(tmp_path: Path) -> str:
    path = tmp_path / "backfilled_app.py"
    path.write_text(APP)
    return f"{path}:app"


def test_without_the_extra_it_says_what_to_install(
    app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for arguments in ((), ("--drop", "--id", "bf-1")):
        result = invoke(app, *arguments)
        assert result.exit_code == ExitCode.CONFIGURATION
        assert 'pip install "headrace[spark]"' in result.output


def test_the_page_shows_the_exit_codes() -> None:
    page = (ROOT / "docs" / "backfill.md").read_text()
    assert backfill_exit_codes() in page, (
        "paste `python -m tests.support.generated_pages backfill-exit-codes` there"
    )


def test_an_application_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = invoke(f"{tmp_path}/none.py:app")
    assert result.exit_code == ExitCode.CONFIGURATION
    assert "does not exist" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--until", "tomorrow"), "must be 'latest', a time"),
        (("--until", "orders=5"), "is not TOPIC-PARTITION=OFFSET"),
        (("--source", "orders.parquet"), "is not TOPIC=PATH"),
        (("--source", "a=x", "--source", "a=y"), "a is given twice. Give a directory"),
        (("--conf", "spark"), "is not NAME=VALUE"),
        (("--order", "random"), "'random' is not one of"),
    ],
)
def test_options_that_are_wrong_are_refused(
    app: str, arguments: tuple[str, ...], said: str
) -> None:
    result = invoke(app, *arguments)
    assert result.exit_code == ExitCode.USAGE
    assert said in " ".join(result.output.split())


def test_to_drop_a_backfill_its_id_is_needed(app: str) -> None:
    result = invoke(app, "--drop")
    assert result.exit_code == ExitCode.USAGE
    assert "--id" in result.output


def test_ends_are_times_or_offsets() -> None:
    def read(text: str | None) -> Any:
        return parse_until(NOTHING, NOTHING, text)

    assert read(None) is None
    assert read("latest") == "latest"
    assert read("2026-01-31") == datetime(2026, 1, 31, tzinfo=UTC)
    assert read("2026-01-31T10:00:00+01:00") == datetime(2026, 1, 31, 9, tzinfo=UTC)
    assert read("a-b-0=5, a-b-1=7") == {TopicPartition("a-b", 0): 5, TopicPartition("a-b", 1): 7}
    with pytest.raises(click.BadParameter):
        parse_offset("orders-x=5")


def test_files_are_known_by_their_names_or_by_what_is_said(tmp_path: Path) -> None:
    (tmp_path / "lake" / "_delta_log").mkdir(parents=True)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "part-0.csv.gz").touch()
    given = ("a=orders", f"b={tmp_path}/lake", f"c={tmp_path}/texts", "d=x.csv", "e=delta:x=y")
    found = parse_sources(NOTHING, NOTHING, ("f=x.jsonl.gz", *given))
    assert [one.kind for one in found] == ["json", "parquet", "delta", "csv", "csv", "delta"]
    assert found[-1].path == "x=y"


def test_a_command_that_cannot_be_loaded_does_not_spoil_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = EntryPoint("broken", "no_such_module:command", cli.GROUP)
    impostor = EntryPoint("run", "no_such_module:run", cli.GROUP)
    monkeypatch.setattr(cli, "entry_points", lambda group: [broken, impostor])
    shown = CliRunner().invoke(cli.main, ["--help"])
    assert "Cannot be loaded (no_such_module:command)." in shown.output
    assert "Run an application in worker processes." in shown.output
    called = CliRunner().invoke(cli.main, ["broken"])
    assert called.exit_code == 1
    assert "No module named 'no_such_module'" in called.output
    assert CliRunner().invoke(cli.main, ["run", "--help"]).exit_code == 0


STAGE = StageReport((0, 2), 3, 1_000, 1.5, spilled=1, dropped={("node", "late"): 7})
ROWS = {("changelog", "a-c-changelog"): 1_200, ("sink", "out"): 34, ("progress", "in"): 3}


def text_of(*shown: object) -> str:
    console = Console(file=io.StringIO(), width=100)
    for one in shown:
        console.print(one)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_summary_has_what_was_done_and_nothing_of_the_bookkeeping() -> None:
    plan = BackfillPlan("a", "bf-1", 0, ((0, 2),), {}, {}, {})
    text = text_of(*summary(Report(plan, (STAGE,), ROWS)))
    for part in ("bf-1", "0, 2", "1,000", " 7 ", "1.5", "a-c-changelog", "1,200", "state", "out"):
        assert part in text
    assert "progress" not in text


class Tracker:
    """As pyspark's: a job whose second stage is not known yet."""

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802 - pyspark's name
        return [4]

    def getJobInfo(self, job: int) -> Any:  # noqa: N802
        return type("Job", (), {"stageIds": [1, 2]})

    def getStageInfo(self, stage: int) -> Any:  # noqa: N802
        known = type("Stage", (), {"numTasks": 8, "numCompletedTasks": 3})
        return known if stage == 1 else None


class Spark:
    """A session with a status tracker."""

    @property
    def sparkContext(self) -> Any:  # noqa: N802
        return type("Context", (), {"statusTracker": staticmethod(Tracker)})


def test_a_terminal_sees_how_far_spark_is() -> None:
    """The bar is gone at the end; the line of a stage stays."""
    import time

    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    with shown_progress(Spark(), console) as on_stage:
        deadline = time.monotonic() + 60
        while "3/8" not in file.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
        on_stage(STAGE)
    assert "Spark job 4" in file.getvalue()
    assert "3/8" in file.getvalue()
    assert "sub-topology 0, 2: 1,000 records in 3 tasks, 1.5 s" in file.getvalue()


def test_what_is_no_terminal_gets_lines_alone() -> None:
    file = io.StringIO()
    with shown_progress(Spark(), Console(file=file, width=100)) as on_stage:
        on_stage(STAGE)
    assert file.getvalue() == "sub-topology 0, 2: 1,000 records in 3 tasks, 1.5 s\n"
