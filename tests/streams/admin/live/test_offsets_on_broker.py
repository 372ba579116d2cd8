"""`headrace offsets` on a real broker: what it shows, sets and refuses, and what comes of it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.streams.admin.backfill_gate import BackfillNote, backfill_group
from headrace.streams.cli.main import main
from headrace.streams.errors import ResetRefusedError
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.identity import TopicReplacedError
from headrace.streams.plan.progress import RESET_MARK, OffsetMetadata
from headrace.streams.supervisor.exit_codes import ExitCode
from headrace.streams.tasks.lost_offsets import StateWithoutOffsetsError
from tests.support import kafka, oracle
from tests.support.counting import Counting
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.topics import Topics

APP = """
from headrace.streams import KafkaStreams, serdes
from headrace.topology import StreamsBuilder
builder = StreamsBuilder()
stream = builder.stream({source!r}, key=serdes.string, value=serdes.string)
stream.group_by_key().count(store='counts').to_stream().to({output!r})
app = KafkaStreams(builder.build(), {settings!r})
"""


class Offsets:
    """The command, for a counting application of two partitions that has stopped."""

    def __init__(self, topics: Topics, directory: Path, **settings: Any) -> None:
        self.counting = Counting(topics, directory, partitions=2, **settings)
        self.counting.write(60)
        self.counting.finish()
        self.ends = self.counting.committed()
        self.admin = GroupAdmin({"bootstrap.servers": topics.bootstrap}, timeout_s=PATIENCE_S)
        self.file = directory / f"app_{uuid.uuid4().hex}.py"
        self.file.write_text(
            APP.format(
                source=self.counting.input,
                output=self.counting.output,
                settings=self.counting.settings,
            )
        )

    def command(self, name: str, *arguments: str) -> Result:
        result = CliRunner().invoke(main, ["offsets", name, f"{self.file}:app", *arguments])
        print(result.output)
        return result

    def set(self, *arguments: str) -> Result:
        return self.command("set", "--topic", self.counting.input, *arguments)

    def texts(self) -> dict[int, str]:
        found = self.admin.committed(self.counting.group, decided=True)
        return {tp.partition: offset.metadata for tp, offset in found.items()}

    def tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self.counting.input, partition)

    def last_counts(self) -> dict[bytes, int]:
        return dict(oracle.last_counts(kafka.read(self.counting.bootstrap, self.counting.output)))


@pytest.fixture
def offsets(topics: Topics, tmp_path: Path) -> Offsets:
    return Offsets(topics, tmp_path)


def test_the_list_shows_where_each_partition_stands(offsets: Offsets) -> None:
    done = offsets.command("list")
    assert done.exit_code == 0
    assert f"Group {offsets.counting.group}, no members" in done.output
    for partition, end in offsets.ends.items():
        (line,) = [text for text in done.output.splitlines() if f"-{partition} " in text]
        assert line.split() == [f"0_{partition}", str(offsets.tp(partition)), str(end), "0",
                                str(end), "0"]  # fmt: skip


def test_a_move_back_is_refused_without_its_option_and_then_counts_again(offsets: Offsets) -> None:
    before = offsets.last_counts()
    refused = offsets.set("--partition", "0", "--to", "0", "--yes")
    assert refused.exit_code == ExitCode.CRASHED
    assert "would count them twice" in refused.output
    assert offsets.counting.committed() == offsets.ends

    texts = offsets.texts()
    done = offsets.set("--partition", "0", "--to", "beginning", "--process-again", "--yes")
    assert done.exit_code == 0
    assert f"offsets 0 to {offsets.ends[0] - 1} are processed again" in done.output
    assert offsets.counting.committed() == {0: 0, 1: offsets.ends[1]}
    # The moved offset still says which topic it is of, and how far its time had come.
    assert OffsetMetadata.decode(offsets.texts()[0]) == OffsetMetadata.decode(texts[0])

    with offsets.counting.run() as app:
        app.wait_processed(offsets.ends[0])
    again = {k: n for k, n in offsets.last_counts().items() if n != before[k]}
    assert again
    assert again == {key: 2 * before[key] for key in again}
    assert sum(again.values()) == 2 * offsets.ends[0]


def test_one_record_is_left_out_when_that_is_asked_for(offsets: Offsets) -> None:
    counting = offsets.counting
    kafka.write(counting.bootstrap, counting.input, [(b"bad", b"x")])
    (partition,) = [
        tp.partition
        for tp, end in offsets.admin.end_offsets([offsets.tp(0), offsets.tp(1)]).items()
        if end != offsets.ends[tp.partition]
    ]
    beyond = str(offsets.ends[partition] + 1)
    tp = f"{counting.input}:{partition}"
    refused = offsets.command("set", "--topic", tp, "--to", beyond, "--yes")
    assert "would never be processed" in refused.output
    done = offsets.command("set", "--topic", tp, "--to", beyond, "--leave-out", "--yes")
    assert done.exit_code == 0
    counting.write(10)
    counting.finish()
    counting.check_exact()


def test_at_least_once_says_what_follows_and_does_it(topics: Topics, tmp_path: Path) -> None:
    offsets = Offsets(topics, tmp_path, processing_guarantee="at_least_once")
    done = offsets.set("--to", "beginning", "--yes")
    assert done.exit_code == 0
    assert "are processed again" in done.output
    assert offsets.counting.committed() == {0: 0, 1: 0}


def test_a_running_application_is_refused_with_its_members(offsets: Offsets) -> None:
    with offsets.counting.run() as app:
        app.wait(lambda: bool(offsets.admin.members(offsets.counting.group)), what="a member")
        shown = offsets.command("list")
        done = offsets.set("--to", "end", "--yes")
    assert done.exit_code == ExitCode.CRASHED
    assert "its group has the members" in done.output
    assert "1 member\n" in shown.output


def test_a_worker_that_starts_between_look_and_commit_wins(offsets: Offsets) -> None:
    """The broker refuses the commit, whatever the look had found."""
    with offsets.counting.run() as app:
        app.wait(lambda: bool(offsets.admin.members(offsets.counting.group)), what="a member")
        with pytest.raises(ResetRefusedError, match="a worker of the application was started"):
            offsets.admin.set_offsets(offsets.counting.group, {offsets.tp(0): CommittedOffset(0)})


def test_lost_offsets_are_set_as_the_error_says_and_everything_counts_once(
    offsets: Offsets, tmp_path: Path
) -> None:
    counting = offsets.counting
    counting.write(10)  # nothing has read these when the group goes
    offsets.admin.delete_groups([counting.group])
    with pytest.raises(StateWithoutOffsetsError) as raised, counting.run() as app:
        app.wait(lambda: False, what="the end of it")
    assert f"--topic {counting.input} --to N" in str(raised.value)
    assert "headrace offsets set MODULE:APP --from-file FILE" in str(raised.value)
    assert "none" in offsets.command("list").output

    refused = offsets.set("--to", "beginning", "--yes")
    assert "--process-again" in refused.output
    file = tmp_path / "offsets.csv"
    file.write_text("".join(f"{counting.input},{p},{o}\n" for p, o in offsets.ends.items()))
    done = offsets.command("set", "--from-file", str(file), "--yes")
    assert done.exit_code == 0
    assert "up to which the state includes its records is unknown" in done.output
    counting.finish()
    counting.check_exact()


def test_a_topic_made_anew_is_read_behind_the_state(offsets: Offsets, topics: Topics) -> None:
    counting = offsets.counting
    committed = offsets.admin.committed(counting.group, decided=True)
    offsets.admin.delete_topics([counting.input])
    wait_until(
        lambda: not offsets.admin.committed(counting.group, decided=True),
        what="the brokers forget the topic's offsets",
    )
    topics.create_named(counting.input, partitions=2)
    offsets.admin.set_offsets(counting.group, committed)  # as if they had been told of it later
    counting.write(10)
    with pytest.raises(TopicReplacedError) as raised, counting.run() as app:
        app.wait(lambda: False, what="the end of it")
    assert f"offsets set MODULE:APP --topic {counting.input} --to beginning" in str(raised.value)
    assert "this topic was re-created" in offsets.command("list").output
    assert offsets.set("--to", "beginning", "--yes").exit_code == 0
    counting.finish()
    counting.check_exact()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "end"], "nothing was done. Run it again with --yes"),
        (["--to", "end", "--dry-run", "--yes"], "Nothing was done (--dry-run)"),
        (["--to", "1000", "--yes"], "and not 1000; nothing was set"),
        (["--to", "soon"], "'soon' is neither beginning nor end"),
        (["--partition", "7", "--to", "0"], "has the partitions 0 to 1, and no 7"),
        (["--topic", "other", "--to", "0"], "other is not an existing input of"),
        ([], "--topic and --to are required"),
    ],
)
def test_without_consent_or_sense_nothing_is_set(
    offsets: Offsets, arguments: list[str], said: str
) -> None:
    assert said in offsets.set(*arguments).output
    assert offsets.counting.committed() == offsets.ends


def test_what_else_sets_the_offsets_comes_first(offsets: Offsets) -> None:
    group = offsets.counting.group
    note = BackfillNote("open", "bf-1", "0f3c")
    tp = TopicPartition(offsets.counting.input, 0)
    offsets.admin.set_offsets(backfill_group(group), {tp: CommittedOffset(0, note.encode())})
    done = offsets.set("--to", "end", "--yes")
    assert done.exit_code == ExitCode.CRASHED
    assert f"backfill bf-1 of {group} is open" in done.output

    offsets.admin.delete_groups([backfill_group(group)])
    offsets.admin.set_offsets(group, {tp: CommittedOffset(0, f"{RESET_MARK} {{}}")})
    assert "is not finished" in offsets.set("--to", "end", "--yes").output


def test_a_time_leads_to_its_first_record(offsets: Offsets) -> None:
    done = offsets.set("--to", "1970-01-01T00:00:00Z", "--process-again", "--yes")
    assert done.exit_code == 0
    assert offsets.counting.committed() == {0: 0, 1: 0}
    wait_until(lambda: not offsets.admin.members(offsets.counting.group), what="nobody is there")
    assert offsets.set("--to", "2999-01-01", "--leave-out", "--yes").exit_code == 0
    assert offsets.counting.committed() == offsets.ends
