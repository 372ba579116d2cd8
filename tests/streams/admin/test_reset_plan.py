"""What a reset concerns, and what it says of it; without a cluster."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.streams import KafkaStreams
from headrace.streams.admin.reset import (
    ApplicationTopics,
    InputReset,
    ResetPlan,
    SinkUse,
    lines,
    moves,
)
from headrace.streams.connectors.sqlite import SqliteSink
from headrace.streams.errors import ConfigError, ResetUnfinishedError
from headrace.streams.kafka.protocols import CommittedOffset, Member, TopicPartition
from headrace.streams.plan.progress import OffsetMetadata
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of, is_crash
from headrace.topology import MemorySink, StreamsBuilder, serdes

PLACE = TopicPartition("in", 0)
EMPTY = ResetPlan(
    group="a",
    members=(),
    moves=(),
    repartitions=(),
    internal=(),
    leftovers=(),
    deletes_leftovers=False,
    missing=(),
    directories=(),
    unfinished=False,
)


def _topics(source: str = "in", sink: str = "out") -> ApplicationTopics:
    builder = StreamsBuilder()
    words = builder.stream(source, key=serdes.string, value=serdes.string)
    grouped = words.group_by(lambda _, word: word, key=serdes.string, name="by-word")
    grouped.count(store="counts").to_stream().to(sink)
    app = KafkaStreams(builder.build(), {"application.id": "a", "bootstrap.servers": "localhost:1"})
    return ApplicationTopics.of(app.plans)


def test_only_the_plans_own_names_are_internal() -> None:
    topics = _topics()
    assert topics.inputs == ("in",)
    assert topics.internal == ("a-by-word-repartition", "a-counts-changelog")


def test_leftovers_look_like_internal_topics_and_are_none_of_this_topology() -> None:
    names = [
        "a-old-changelog",
        "a-b-x-repartition",
        "a-counts-changelog",
        "a-notes",
        "ab-changelog",
    ]
    assert _topics().leftovers("a", names) == ("a-b-x-repartition", "a-old-changelog")


def test_topics_of_foreign_key_joins_are_leftovers_too() -> None:
    names = (
        "a-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic",
        "a-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic",
        "a-fk-subscription-registration-topic",
        "a-fk-subscription-response-topic",
    )
    assert _topics().leftovers("a", (*names, "a-topic", "a-news-topic")) == names


def test_what_the_application_reads_or_writes_is_never_a_leftover() -> None:
    topics = _topics(source="a-fed-changelog", sink="a-made-repartition")
    assert topics.leftovers("a", ["a-fed-changelog", "a-made-repartition"]) == ()


def test_an_input_that_is_not_read_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"does not read it; its inputs are in"):
        _topics().chosen(["inn"])


def test_an_input_without_a_target_stays_where_it_is() -> None:
    other = TopicPartition("other", 0)
    committed = {PLACE: CommittedOffset(5, "AgAA"), other: CommittedOffset(6)}
    assert moves(committed, {PLACE: 0}, [PLACE, other]) == (
        InputReset(PLACE, 5, 0),
        InputReset(other, 6, 6),
    )


def test_a_second_run_knows_the_offset_of_before_the_first() -> None:
    marked = InputReset(PLACE, 5, 0).mark
    assert moves({PLACE: marked}, {}, [PLACE]) == (InputReset(PLACE, 5, 5),)
    never = InputReset(PLACE, None, 0).mark
    assert moves({PLACE: never}, {}, [PLACE]) == (InputReset(PLACE, None, None),)


def test_a_task_that_meets_the_mark_refuses_and_is_not_started_again() -> None:
    with pytest.raises(ResetUnfinishedError, match="run headrace reset again") as caught:
        OffsetMetadata.decode(InputReset(PLACE, 5, 0).mark.metadata)
    assert exit_code_of(caught.value) is ExitCode.OFFSETS
    assert not is_crash(exit_code_of(caught.value))


def test_an_input_without_offsets_that_stays_gets_none() -> None:
    plan = _with(moves=(InputReset(PLACE, None, None),))
    assert plan.marks == {}
    assert plan.final_offsets == {}


def test_repartition_topics_are_marked_too_and_get_no_offsets_at_the_end() -> None:
    plan = _with(
        moves=(InputReset(PLACE, 5, 0),), repartitions=(TopicPartition("a-r-repartition", 0),)
    )
    assert [str(tp) for tp in plan.marks] == ["in-0", "a-r-repartition-0"]
    assert plan.final_offsets == {PLACE: CommittedOffset(0)}


def test_leftovers_are_deleted_only_when_that_is_asked_for() -> None:
    kept = _with(internal=("a-c-changelog",), leftovers=("a-old-changelog",))
    assert kept.deleted_topics == ("a-c-changelog",)
    deleted = _with(
        internal=("a-c-changelog",), leftovers=("a-old-changelog",), deletes_leftovers=True
    )
    assert deleted.deleted_topics == ("a-c-changelog", "a-old-changelog")


@pytest.mark.parametrize(
    "change",
    [
        {"members": (Member("w", "c", "/h"),)},
        {"moves": (InputReset(PLACE, 5, 0),)},
        {"internal": ("a-c-changelog",)},
        {"repartitions": (PLACE,)},
        {"unfinished": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_plan_that_changed_since_it_was_shown_is_another_one(change: dict[str, object]) -> None:
    assert not EMPTY.is_still(_with(**change))


def test_an_input_that_grows_does_not_make_another_plan_of_it() -> None:
    assert _with(moves=(InputReset(PLACE, 5, 10),)).is_still(
        _with(moves=(InputReset(PLACE, 5, 12),))
    )


def test_everything_that_would_be_done_is_said() -> None:
    text = "\n".join(
        lines(
            _with(
                moves=(InputReset(PLACE, 5, 0), InputReset(TopicPartition("other", 10), 6, 6)),
                internal=("a-c-changelog",),
                leftovers=("a-old-changelog",),
                missing=("gone",),
                directories=(Path("/s/a/tasks/0_0"),),
                unfinished=True,
            )
        )
    )
    said = ["not finished", "in-0      5 -> 0", "other-10  6 stays", "gone does not exist"]
    said += ["a-c-changelog", "--all-internal", "a-old-changelog", "/s/a/tasks/0_0", "other hosts"]
    offsets = [text.find(part) for part in said]
    assert -1 not in offsets, text
    assert all(a < b for a, b in itertools.pairwise(offsets)), text


def test_each_table_outside_is_named_with_what_becomes_of_it(tmp_path: Path) -> None:
    """An offset of the group moves no position of theirs."""
    columns = {"word": str}
    path = str(tmp_path / "a.db")
    builder = StreamsBuilder()
    words = builder.stream("in", key=serdes.string, value=serdes.string)
    words.to_sink(SqliteSink(path, "appended", columns), name="behind")
    words.to_sink(MemorySink(keyed=True), name="under-keys")
    other = builder.stream("other", key=serdes.string, value=serdes.string)
    other.to_sink(SqliteSink(path, "direct", columns), name="itself", direct=True)
    app = KafkaStreams(builder.build(), {"application.id": "a", "bootstrap.servers": "localhost:1"})
    text = "\n".join(lines(_with(sinks=SinkUse.all_of("a", app.plans))))
    said = {line.split(":")[0].strip(): line for line in text.splitlines() if ": " in line}
    assert f"SqliteSink({path!r}, 'appended'): results are written again" in said["behind"]
    assert "TWICE" in said["behind"]
    assert "MemorySink: results are written again under their keys" in said["under-keys"]
    assert f"SqliteSink({path!r}, 'direct'): its position in other stays" in said["itself"]
    assert "NOT written again" in said["itself"]
    assert "'a/itself'" in said["itself"]
    assert "External sinks" not in "\n".join(lines(EMPTY))


def _with(**changes: object) -> ResetPlan:
    return replace(EMPTY, **changes)  # type: ignore[arg-type]
