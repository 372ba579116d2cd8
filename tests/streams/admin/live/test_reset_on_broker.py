"""`headrace reset` on a real broker: what it does, when it refuses, and kills between its steps."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner, Result

from headrace.state.directory import StateDirectory
from headrace.streams.admin.backfill_gate import BackfillNote, NoteState, backfill_group
from headrace.streams.admin.reset import Reset
from headrace.streams.cli.main import main
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import ResetRefusedError, ResetUnfinishedError
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import CommittedOffset, OffsetTarget, TopicPartition
from headrace.streams.plan.plan import plan_application
from headrace.streams.supervisor.exit_codes import ExitCode
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support import kafka, oracle
from tests.support.counting import Counting
from tests.support.live import Live, live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.processes import ROOT, wait_until
from tests.support.topics import Topics

STEPS = [
    "reset_marked",
    "reset_topics_deleted",
    "reset_state_removed",
    "reset_topology_forgotten",
    "reset_done",
]


class _Killed(BaseException):
    """The process ended here."""


class Resetting:
    """Resets a counting application, as the command does or in this process."""

    def __init__(self, counting: Counting, directory: Path) -> None:
        self.counting = counting
        self.name = f"app_{uuid.uuid4().hex}"
        self.file = directory / f"{self.name}.py"
        self.file.write_text(
            "from headrace.streams import KafkaStreams, serdes\n"
            "from headrace.topology import StreamsBuilder\n"
            "builder = StreamsBuilder()\n"
            f"stream = builder.stream({counting.input!r}, key=serdes.string, value=serdes.string)\n"
            f"counts = stream.group_by_key().count(store='counts')\n"
            f"counts.to_stream().to({counting.output!r})\n"
            f"app = KafkaStreams(builder.build(), {counting.settings!r})\n"
        )

    def command(self, *arguments: str, **more: Any) -> Result:
        result = CliRunner().invoke(main, ["reset", f"{self.file}:app", *arguments], **more)
        print(result.output)
        return result

    def until(self, step: str) -> None:
        """Reset, and die at a step."""

        def die(reached: str) -> None:
            if reached == step:
                raise _Killed

        reset = _reset(self.counting.topology(), self.counting.settings, probe=die)
        with pytest.raises(_Killed):
            reset.carry_out(reset.plan(OffsetTarget()), lambda: reset.plan(OffsetTarget()))

    def check_counts_again(self, written: int) -> None:
        """Run; the input is counted from its beginning, upon nothing."""
        before = len(kafka.read(self.counting.bootstrap, self.counting.output))
        with self.counting.run() as app:
            app.wait_processed(written)
        again = kafka.read(self.counting.bootstrap, self.counting.output)[before:]
        oracle.check_exact(again, self.counting.expected)


def _reset(topology: Topology, settings: dict[str, Any], **more: Any) -> Reset:
    config = StreamsConfig.parse(settings)
    timeout_s = more.pop("timeout_s", 20.0)
    return Reset(
        config.application_id,
        plan_application(topology, config),
        GroupAdmin(config.admin_config(), timeout_s=timeout_s),
        state_dir=config.state_dir,
        timeout_s=timeout_s,
        **more,
    )


def _wait_until_left(counting: Counting) -> None:
    admin = GroupAdmin({"bootstrap.servers": counting.bootstrap}, timeout_s=PATIENCE_S)
    wait_until(lambda: not admin.members(counting.group), what="the group is empty")


@pytest.fixture
def resetting(topics: Topics, tmp_path: Path) -> Resetting:
    """An application that has counted 30 records and is stopped."""
    counting = Counting(topics, tmp_path)
    counting.write(30)
    counting.finish()
    return Resetting(counting, tmp_path)


@pytest.fixture
def tasks(resetting: Resetting) -> Path:
    return resetting.counting.state_dir / resetting.counting.group / "tasks"


def test_after_a_reset_all_is_counted_from_the_beginning(resetting: Resetting, tasks: Path) -> None:
    done = resetting.command("--yes")
    assert done.exit_code == 0
    assert f"{resetting.counting.input}-0  30 -> 0" in done.output
    assert resetting.counting.changelog in done.output
    assert str(tasks / "0_0") in done.output
    assert resetting.counting.committed() == {0: 0}
    assert not (tasks / "0_0").exists()
    resetting.check_counts_again(30)


def test_local_state_of_another_host_is_dropped_by_itself(
    resetting: Resetting, tasks: Path, tmp_path: Path
) -> None:
    shutil.copytree(tasks, tmp_path / "elsewhere")
    assert resetting.command("--yes").exit_code == 0
    shutil.rmtree(tasks)
    shutil.copytree(tmp_path / "elsewhere", tasks)
    assert resetting.counting.local_state().position("counts") is not None
    resetting.check_counts_again(30)


@pytest.mark.parametrize("arguments", [["--dry-run"], ["--dry-run", "--yes"], []])
def test_without_consent_nothing_is_changed(
    resetting: Resetting, tasks: Path, topics: Topics, arguments: list[str]
) -> None:
    done = resetting.command(*arguments)
    assert done.exit_code == (0 if arguments else 1)
    assert f"{resetting.counting.input}-0  30 -> 0" in done.output
    assert "othing was done" in done.output
    assert resetting.counting.committed() == {0: 30}
    assert topics.partitions(resetting.counting.changelog) == 1
    assert (tasks / "0_0").exists()
    resetting.counting.write(5)
    resetting.counting.finish()
    resetting.counting.check_exact()


@pytest.mark.parametrize("state", ["open", "dropping"])
def test_an_open_backfill_is_refused_with_the_way_out(
    resetting: Resetting, topics: Topics, state: NoteState
) -> None:
    """Its plan would vouch for rows that the reset deletes."""
    counting = resetting.counting
    cluster = GroupAdmin({"bootstrap.servers": counting.bootstrap}, timeout_s=PATIENCE_S)
    tp = TopicPartition(counting.input, 0)

    def put(text: str) -> None:
        notes = {tp: CommittedOffset(0, text)}
        cluster.set_offsets(backfill_group(counting.group), notes)

    put(BackfillNote(state, "bf-1", "0f").encode())
    refused = resetting.command("--yes")
    shown = resetting.command("--dry-run")
    assert refused.exit_code == ExitCode.CRASHED
    for said in (refused.output, shown.output):
        assert "headrace backfill ... --drop --id bf-1" in said
        assert ("headrace backfill ... --id bf-1" in said) == (state == "open")
    assert shown.exit_code == 0
    assert counting.committed() == {0: 30}
    assert topics.partitions(counting.changelog) == 1
    reset = _reset(counting.topology(), counting.settings)
    plan = reset.plan(OffsetTarget())
    with pytest.raises(ResetRefusedError, match="bf-1"):
        reset.carry_out(replace(plan, backfill=None), lambda: plan)
    put(BackfillNote("dropped", "bf-1", "0f").encode())
    assert resetting.command("--yes").exit_code == 0


def test_a_running_application_is_refused_and_its_members_are_named(
    resetting: Resetting, topics: Topics
) -> None:
    with resetting.counting.run() as app:
        app.wait_running()
        refused = resetting.command("--yes")
        shown = resetting.command("--dry-run")
    assert refused.exit_code == ExitCode.CRASHED
    assert "has the members w (" in refused.output
    assert "SIGTERM" in refused.output
    assert shown.exit_code == 0
    assert resetting.counting.committed() == {0: 30}
    assert topics.partitions(resetting.counting.changelog) == 1


def test_an_application_that_starts_behind_the_question_is_noticed(
    resetting: Resetting, topics: Topics, tmp_path: Path
) -> None:
    settings = resetting.counting.settings
    reset = _reset(resetting.counting.topology(), {**settings, "state.dir": tmp_path / "other"})
    plan = reset.plan(OffsetTarget())
    with resetting.counting.run() as app:
        app.wait_running()
        with pytest.raises(ResetRefusedError, match="has the members w"):
            reset.carry_out(plan, lambda: reset.plan(OffsetTarget()))
    assert resetting.counting.committed() == {0: 30}
    assert topics.partitions(resetting.counting.changelog) == 1


def test_a_worker_that_joins_at_the_last_moment_is_noticed_by_the_broker(
    resetting: Resetting, topics: Topics, tmp_path: Path
) -> None:
    """Behind all that the reset itself looks at, the broker refuses its commit."""
    settings = {**resetting.counting.settings, "state.dir": tmp_path / "other"}
    reset = _reset(resetting.counting.topology(), settings)
    plan = reset.plan(OffsetTarget())
    running: list[Live] = []
    app = resetting.counting.run()

    def start_and_look() -> Any:
        running.append(app.__enter__())
        running[0].wait_running()
        return plan

    try:
        with pytest.raises(ResetRefusedError, match="a worker of the application was started"):
            reset.carry_out(plan, start_and_look)
    finally:
        app.__exit__(None, None, None)
    assert resetting.counting.committed() == {0: 30}
    assert topics.partitions(resetting.counting.changelog) == 1


def test_work_done_between_the_plan_and_the_consent_makes_another_plan(
    resetting: Resetting, topics: Topics
) -> None:
    reset = _reset(resetting.counting.topology(), resetting.counting.settings)
    plan = reset.plan(OffsetTarget())
    resetting.counting.write(5)
    resetting.counting.finish()
    with pytest.raises(ResetRefusedError, match="have changed since the plan was made"):
        reset.carry_out(plan, lambda: reset.plan(OffsetTarget()))
    assert resetting.counting.committed() == {0: 35}
    assert topics.partitions(resetting.counting.changelog) == 1


def test_local_state_that_a_process_holds_is_refused(resetting: Resetting) -> None:
    counting = resetting.counting
    held = StateDirectory(counting.state_dir, counting.group).acquire_task("0_0", wait_ms=0)
    refused = resetting.command("--yes")
    held.release()
    assert refused.exit_code == ExitCode.CRASHED
    assert "stop the application's workers on this host" in refused.output
    assert counting.committed() == {0: 30}


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_between_the_steps_leaves_what_refuses_and_a_second_run_finishes(
    resetting: Resetting, step: str
) -> None:
    resetting.until(step)
    counting = resetting.counting
    if step != "reset_done":
        error = Live(counting.topology(), counting.settings).failure()
        assert isinstance(error, ResetUnfinishedError)
        _wait_until_left(counting)
        again = resetting.command("--yes")
        assert "An earlier reset was not finished" in again.output
        assert f"{counting.input}-0  30 -> 0" in again.output
        assert again.exit_code == 0
    resetting.check_counts_again(30)


@pytest.mark.parametrize("step", STEPS[:-1])
def test_an_at_least_once_application_refuses_after_a_kill_too(
    topics: Topics, tmp_path: Path, step: str
) -> None:
    """It would not notice state without offsets by itself."""
    counting = Counting(topics, tmp_path, processing_guarantee="at_least_once")
    counting.write(10)
    counting.finish()
    resetting = Resetting(counting, tmp_path)
    resetting.until(step)
    error = Live(counting.topology(), counting.settings).failure()
    assert isinstance(error, ResetUnfinishedError)
    _wait_until_left(counting)
    assert resetting.command("--yes").exit_code == 0
    resetting.check_counts_again(10)


@pytest.fixture
def open_transaction(resetting: Resetting) -> Iterator[confluent_kafka.Producer]:
    """A killed worker's transaction, with offsets in it."""
    counting = resetting.counting
    clients = {"bootstrap.servers": counting.bootstrap}
    producer = confluent_kafka.Producer({**clients, "transactional.id": counting.group})
    consumer = confluent_kafka.Consumer({**clients, "group.id": counting.group})
    producer.init_transactions(20)
    producer.begin_transaction()
    tp = confluent_kafka.TopicPartition(counting.input, 0, 29)
    producer.send_offsets_to_transaction([tp], consumer.consumer_group_metadata())
    yield producer
    consumer.close()


def test_an_open_transaction_on_the_offsets_is_refused(
    resetting: Resetting, topics: Topics, open_transaction: confluent_kafka.Producer
) -> None:
    refused = resetting.command("--yes", "--set", "task.timeout.ms=1000")
    assert refused.exit_code == ExitCode.CRASHED
    assert f"offsets of {resetting.counting.input}-0" in refused.output
    assert "transaction.timeout.ms" in refused.output
    open_transaction.abort_transaction(20)
    assert resetting.counting.committed() == {0: 30}
    assert topics.partitions(resetting.counting.changelog) == 1
    assert resetting.command("--yes").exit_code == 0


def test_a_transaction_that_ends_over_the_mark_is_noticed(
    resetting: Resetting, topics: Topics
) -> None:
    """Its offsets come back behind the look for open ones: the marks are read back as decided."""
    counting = resetting.counting
    reset = _reset(counting.topology(), counting.settings)
    plan = reset.plan(OffsetTarget())
    cluster: Any = reset._cluster

    class Late:
        """Writes other offsets right behind the marks."""

        def __getattr__(self, name: str) -> Any:
            return getattr(cluster, name)

        def set_offsets(self, group: str, offsets: Any) -> None:
            cluster.set_offsets(group, offsets)
            kafka.set_committed(counting.bootstrap, group, counting.input, {0: 29})

    reset._cluster = Late()  # type: ignore[assignment]
    with pytest.raises(ResetRefusedError, match=f"offsets of {counting.input}-0 while the reset"):
        reset.carry_out(plan, lambda: plan)
    assert topics.partitions(counting.changelog) == 1


def test_leftovers_are_kept_unless_they_are_asked_for(resetting: Resetting, topics: Topics) -> None:
    group = resetting.counting.group
    old = topics.create_named(f"{group}-old-changelog")
    notes = topics.create_named(f"{group}-notes")
    kept = resetting.command("--yes")
    assert old in kept.output
    assert notes not in kept.output
    assert topics.partitions(old) == 1
    assert resetting.command("--yes", "--all-internal").exit_code == 0
    assert (topics.partitions(old), topics.partitions(notes)) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "offset"),
    [
        (["--to", "end"], 30),
        (["--to", "12"], 12),
        (["--to", "999"], 30),
        # The records are a millisecond apart.
        (["--to", "2023-11-14T22:13:20.007Z"], 7),
        (["--to", "2023-11-14T22:13:20.007"], 7),
        (["--to", "2100-01-01T00:00:00Z"], 30),
        (["--to", "1h"], 30),
        (["--to", "36500d"], 0),
    ],
)
def test_the_inputs_can_be_set_to_any_place(
    resetting: Resetting, arguments: list[str], offset: int
) -> None:
    assert resetting.command("--yes", *arguments).exit_code == 0
    assert resetting.counting.committed() == {0: offset}


def test_repartition_topics_and_their_offsets_go_and_inputs_that_fill_nothing_stay(
    topics: Topics, tmp_path: Path
) -> None:
    inputs, output = [topics.create("in") for _ in range(3)], topics.create("out")
    settings = settings_of(topics, tmp_path)
    builder = StreamsBuilder()
    streams = [builder.stream(name, value=serdes.string) for name in inputs]
    both = streams[0].merge(streams[1])
    grouped = both.group_by(lambda _, value: value, key=serdes.string, name="by-value")
    grouped.count(store="counts").to_stream().to(output)
    streams[2].filter(lambda _, value: value != "x").to(output)
    topology = builder.build()
    for name in inputs:
        kafka.write(topics.bootstrap, name, [(None, b"x")] * 3)
    with live(topology, settings) as app:
        app.wait_processed(15)
    group, between = (
        settings["application.id"],
        f"{settings['application.id']}-by-value-repartition",
    )
    assert kafka.committed_metadata(topics.bootstrap, group, between)

    reset = _reset(topology, settings)
    with pytest.raises(ResetRefusedError, match=f"Add --topic {inputs[1]}"):
        reset.plan(OffsetTarget(), inputs=[inputs[0]])
    plan = reset.plan(OffsetTarget(), inputs=inputs[:2])
    reset.carry_out(plan, lambda: plan)

    offsets = [kafka.committed(topics.bootstrap, group, name)[0] for name in inputs]
    assert offsets == [0, 0, 3]
    assert not kafka.committed_metadata(topics.bootstrap, group, between)
    with live(topology, settings) as app:
        app.wait_processed(12)
    assert oracle.last_counts(kafka.read(topics.bootstrap, output)) == {b"x": 6}


def test_a_stream_that_is_reset_finds_the_rows_of_its_table(topics: Topics, tmp_path: Path) -> None:
    payments, cards, output = topics.create("pay"), topics.create("cards"), topics.create("out")
    settings = settings_of(topics, tmp_path)
    builder = StreamsBuilder()
    stream = builder.stream(payments, key=serdes.string, value=serdes.string)
    table = builder.table(cards, key=serdes.string, value=serdes.string, store="cards")
    joined = stream.left_join(table, lambda payment, card: f"{payment}/{card}")
    joined.to(output, value=serdes.string)
    topology = builder.build()
    kafka.write(topics.bootstrap, cards, [(b"k%d" % n, b"card") for n in range(5)])
    with live(topology, settings) as app:
        app.wait_processed(5)
        kafka.write(topics.bootstrap, payments, [(b"k%d" % n, b"paid") for n in range(5)])
        app.wait_processed(10)
    before = kafka.read(topics.bootstrap, output)

    reset = _reset(topology, settings)
    plan = reset.plan(OffsetTarget(), inputs=[payments])
    reset.carry_out(plan, lambda: reset.plan(OffsetTarget(), inputs=[payments]))
    with live(topology, settings) as app:
        app.wait_processed(10)

    values = [record.value for record in kafka.read(topics.bootstrap, output)]
    assert values[len(before) :] == [b"paid/card"] * 5


@pytest.mark.parametrize(("answer", "offset"), [("y", 0), ("n", 30)])
def test_on_a_terminal_the_plan_is_shown_before_the_question(
    resetting: Resetting, answer: str, offset: int
) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from headrace.streams.cli.main import main; main()"]
    process = subprocess.Popen(
        [*command, "reset", f"{resetting.file}:app"],
        cwd=ROOT,
        stdin=theirs,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    said, _ = process.communicate(timeout=PATIENCE_S)
    os.close(ours)
    assert process.returncode == (0 if answer == "y" else 1), said
    assert said.index(f"{resetting.counting.input}-0  30 -> 0") < said.index("Do this?")
    assert resetting.counting.committed() == {0: offset}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "latest"], "write end"),
        (["--to", "-5"], "nor an offset such as 1500"),
        (["--to", "noon"], "nor a time such as 2026-01-31T09:00:00Z"),
        (["--to", "1w"], "such as 90s, 30m, 12h or 7d"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["reset", "no_such_module:app", *arguments])
    assert result.exit_code == ExitCode.USAGE
    assert said in result.output
