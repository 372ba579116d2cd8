"""`headrace transactions` on a real broker: one that has lost its end is found, and ended."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.streams.cli.main import main
from headrace.streams.supervisor.exit_codes import ExitCode
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.raw_transactions import hang
from tests.support.topics import Topics

APP = """
from headrace import KafkaStreams, StreamsBuilder, serdes
builder = StreamsBuilder()
lines = builder.stream({lines!r}, key=serdes.string, value=serdes.string)
lines.group_by_key().count(store="counts").to_stream().to({counts!r})
app = KafkaStreams(builder.build(), {settings!r})
"""


def asked(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["transactions", *arguments], catch_exceptions=False)
    return result.exit_code, result.output


class Counting:
    """A count that can be named on a command line, and run here."""

    def __init__(self, topics: Topics, directory: Path) -> None:
        self.bootstrap = topics.bootstrap
        self.lines, self.counts = topics.create("lines"), topics.create("counts")
        self.settings = settings_of(topics, directory)
        self.id = self.settings["application.id"]
        self.tasks = directory / "state" / self.id / "tasks"
        text = APP.format(lines=self.lines, counts=self.counts, settings=self.settings)
        file = directory / f"app_{uuid.uuid4().hex}.py"
        file.write_text(text)
        self.target = f"{file}:app"
        made: dict[str, Any] = {}
        exec(text, made)
        self.topology = made["app"].topology

    def count(self, records: int) -> None:
        kafka.write(self.bootstrap, self.lines, [(b"k", b"x")] * records)
        with live(self.topology, self.settings) as here:
            here.wait_processed(records)

    def found(self) -> list[int]:
        records = kafka.read(self.bootstrap, self.counts)
        return [int.from_bytes(r.value or b"") for r in records if r.value != b"before"]


@pytest.fixture
def counting(topics: Topics, tmp_path: Path) -> Counting:
    return Counting(topics, tmp_path)


def test_a_transaction_that_has_lost_its_end_is_ended_and_the_application_goes_on(
    counting: Counting,
) -> None:
    counting.count(3)
    assert asked("list", counting.target) == (0, "No transaction is open.\n")
    hang(
        counting.bootstrap,
        f"{counting.id}-w",
        counting.counts,
        group=counting.id,
        input_topic=counting.lines,
    )
    code, said = asked("list", counting.target)
    assert code == 0
    (row,) = [one.split() for one in said.splitlines() if one.startswith(f"{counting.counts}-0")]
    assert int(row[1]) + 1 == int(row[2])
    assert row[3] == "writes"
    (row,) = [one.split() for one in said.splitlines() if one.startswith(f"{counting.lines}-0")]
    assert row[1:] == ["commits", "its", "offset"]

    code, said = asked("abort", counting.target, "--dry-run")
    assert code == 0
    assert "To be aborted: open transactions of w\n" in said
    assert f"  {counting.tasks / '0_0'}\nNothing was done (--dry-run)." in said
    code, said = asked("abort", counting.target)
    assert code == 1
    assert "Run it again with --yes" in said
    code, said = asked("abort", counting.target, "--worker", "another", "--yes")
    assert code == 1, said
    assert (counting.tasks / "0_0").exists()
    code, said = asked("abort", counting.target, "--yes")
    assert code == 0, said
    assert "Done. The application can be started." in said
    assert not (counting.tasks / "0_0").exists()
    assert asked("list", counting.target) == (0, "No transaction is open.\n")
    assert asked("abort", counting.target, "--yes") == (0, "No transaction is open.\n")

    counting.count(2)
    assert counting.found() == [1, 2, 3, 4, 5]


def test_offsets_alone_are_found_before_the_first_commit_and_those_of_others_stay(
    counting: Counting,
) -> None:
    hang(
        counting.bootstrap,
        f"{counting.id}-elsewhere",
        counting.counts,
        group=counting.id,
        input_topic=counting.lines,
    )
    code, said = asked("abort", counting.target, "--yes")
    assert code == ExitCode.CONFIGURATION
    assert "no worker of this host is known" in said
    code, said = asked("abort", counting.target, "--worker", "w", "--yes")
    assert code == 1
    assert "transactions are still open, of a worker on another host" in said
    assert said.count("commits its offset") == 2
    code, said = asked("abort", counting.target, "--worker", "elsewhere", "--yes")
    assert code == 0, said
    counting.count(2)
    assert counting.found() == [1, 2]


def test_an_application_that_runs_is_left_alone(counting: Counting) -> None:
    with live(counting.topology, counting.settings) as here:
        here.wait_running()
        hang(counting.bootstrap, f"{counting.id}-other", counting.counts)
        code, said = asked("abort", counting.target, "--worker", "other", "--yes")
        assert code == ExitCode.CRASHED
        assert "the application" in said
        assert "is running: its group has the members" in said
    assert asked("abort", counting.target, "--worker", "other", "--yes")[0] == 0


def test_an_application_without_transactions_is_told_so(tmp_path: Path) -> None:
    settings = {
        "application.id": "plain",
        "bootstrap.servers": "localhost:1",
        "state.dir": str(tmp_path),
        "processing.guarantee": "at_least_once",
    }
    file = tmp_path / f"app_{uuid.uuid4().hex}.py"
    file.write_text(APP.format(lines="lines", counts="counts", settings=settings))
    code, said = asked("abort", f"{file}:app")
    assert code == ExitCode.CONFIGURATION
    assert "has no transactions" in said
