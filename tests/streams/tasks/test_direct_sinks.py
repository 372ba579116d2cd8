"""A table outside of Kafka that reads a topic itself has the rows of each record once, together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, get_args

import pytest

from headrace.streams.errors import ConfigError, RecordError
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.tasks.sink_connections import StartPosition, sink_offsets
from headrace.streams.testing.driver import CrashPoint, TopologyTestDriver
from headrace.streams.testing.driver_store import SinkPoint
from headrace.streams.testing.memory_worker import EventLog
from headrace.topology import (
    KStream,
    MemorySink,
    SinkBatch,
    SinkBatching,
    SinkRefusedError,
    StreamsBuilder,
    Topology,
    serdes,
)
from tests.streams.tasks.test_external_sinks import (
    EXACTLY_ONCE,
    LETTERS,
    PAIRS,
    Faulty,
    Pairs,
    events,
    failing,
    refusing,
)

Steps = Callable[[Any], Any]


def _three(value: int) -> list[int]:
    return [value * 10, value * 10 + 1, value * 10 + 2]


def rows_of(numbers: Iterator[int] | range) -> Pairs:
    return [("k", row) for number in numbers for row in _three(number)]


def thrice(stream: Any) -> Any:
    return stream.flat_map_values(_three)


def topology(sink: Any, steps: Steps = thrice) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.long)
    steps(stream).to_sink(sink, name="keep", direct=True)
    return builder.build()


def driver_of(
    sink: Any, settings: Any = EXACTLY_ONCE, *, steps: Steps = thrice, **more: Any
) -> Any:
    return TopologyTestDriver(
        topology(sink, steps), settings, partitions=1, real_sinks=True, **more
    )


def recording(sink: Faulty) -> list[SinkBatch]:
    """The batches that it has not refused."""
    written: list[SinkBatch] = []
    write = sink._write

    def recorded(inner: Any, batch: SinkBatch) -> None:
        write(inner, batch)
        written.append(batch)

    sink._write = recorded
    return written


POINTS = (*get_args(CrashPoint), *get_args(SinkPoint), None)


@pytest.mark.parametrize(
    ("guarantee", "at"),
    [
        (guarantee, at)
        for guarantee in ("exactly_once_v2", "at_least_once")
        for at in POINTS
        # There is no such step in a commit at least once.
        if (guarantee, at) != ("at_least_once", "changelogs_sent")
    ],
)
def test_a_kill_at_any_step_leaves_each_row_once(guarantee: str, at: Any) -> None:
    """Whatever the guarantee: no record is written again in front of it."""
    sink = failing()
    driver = driver_of(sink, {"processing.guarantee": guarantee}, commit="manual")
    numbers = driver.input("in")
    numbers.send_many(PAIRS[:3])
    driver.commit()
    numbers.send_many(PAIRS[3:])
    driver.run()
    driver.crash(at)
    driver.commit()
    assert sink.pairs == rows_of(range(6))


def test_there_is_no_topic_in_front() -> None:
    sink = failing()
    driver = driver_of(sink)
    driver.input("in").send_many(PAIRS)
    assert {batch.source.partition("@")[0] for batch in sink.batches} == {"in"}
    assert set(driver.cluster.topics) == {"in"}


@pytest.mark.parametrize("values", [{0}, {11}, {32}, {52}, {0, 52}, {10, 12}, {10, 20, 30}])
@pytest.mark.parametrize("offset", [False, True])
def test_the_rows_of_a_record_are_refused_together(values: set[int], *, offset: bool) -> None:
    sink = refusing(values=values, offset=offset)
    written = recording(sink)
    driver = driver_of(sink, LETTERS, commit="manual")
    driver.input("in").send_many(PAIRS)
    driver.commit()
    refused = {value // 10 for value in values}
    assert sink.pairs == rows_of(n for n in range(6) if n not in refused)
    assert driver.dropped == {("keep", "it cannot be written"): len(refused)}
    for batch in written:  # each offset is in one of them, whose position is behind it
        begin = batch.expected or 0
        assert {row.offset for row in batch.rows} <= set(range(begin, batch.next))
    assert written[-1].next == len(PAIRS)
    said = events(driver, "sink_record_rejected")
    assert {event["record"] for event in said} == {f"in-0 offset {n}" for n in refused}
    assert {event["rows"] for event in said} == {3}
    # A dead letter is the record itself, and all that it has given is in there.
    letters = driver.output("dead").read_all()
    assert [serdes.long.deserialize(letter.value) for letter in letters] == sorted(refused)


def test_a_sink_that_tells_all_that_it_refuses_is_asked_once_for_each_record() -> None:
    def write(inner: Any, batch: SinkBatch) -> None:
        bad = [row for row in batch.rows if row.value % 10 != 1 and row.value // 10 in (1, 4)]
        errors = [SinkRefusedError(f"odd {row.value}", offset=row.offset) for row in bad]
        if errors:
            raise SinkRefusedError(errors[0].reason, offset=errors[0].offset, others=errors[1:])
        inner.write(batch)

    sink = Faulty(write)
    driver = driver_of(sink, LETTERS, commit="manual")
    driver.input("in").send_many(PAIRS)
    driver.commit()
    assert sink.pairs == rows_of(n for n in range(6) if n not in (1, 4))
    assert len(sink.batches) == 2
    reasons = [event["reason"] for event in events(driver, "record_skipped")]
    assert reasons == ["odd 10", "odd 40"]
    assert [event["rows"] for event in events(driver, "sink_record_rejected")] == [3, 3]


@pytest.mark.parametrize("at", ["offsets_sent", "transaction_committed", "sink_written"])
def test_no_dead_letter_is_lost_by_a_kill(at: Any) -> None:
    sink = refusing(values={11, 42})
    driver = driver_of(sink, LETTERS, commit="manual")
    driver.input("in").send_many(PAIRS)
    driver.run()
    driver.crash(at)
    driver.commit()
    assert driver.crashes == 1
    assert sink.pairs == rows_of(n for n in range(6) if n not in (1, 4))
    letters = driver.output("dead").read_all()
    assert {serdes.long.deserialize(letter.value) for letter in letters} == {1, 4}


def test_a_refused_row_stops_the_application_with_the_place_in_the_source() -> None:
    driver = driver_of(refusing(values={31}))
    with pytest.raises(RecordError) as caught:
        driver.input("in").send_many(PAIRS)
    assert str(caught.value).startswith("table t, column n: too odd (in-0 offset 3 ")


def test_what_cannot_be_decoded_or_processed_moves_the_position_too() -> None:
    def inverse(value: int) -> int:
        return 60 // value

    sink = failing()
    settings = {
        **LETTERS,
        "deserialization.exception.handler": "continue",
        "processing.exception.handler": "continue",
    }
    driver = driver_of(sink, settings, steps=lambda stream: stream.map_values(inverse))
    numbers = driver.input("in")
    numbers.send_many([("k", 2), ("k", 0)])
    numbers.send_bytes(b"k", b"no long")
    numbers.send("k", 3)
    assert sink.pairs == [("k", 30), ("k", 20)]
    assert sink.batches[-1].next == 4
    letters = driver.output("dead").read_all()
    assert [letter.value for letter in letters] == [serdes.long.serialize(0), b"no long"]


def test_records_that_are_left_out_move_the_position() -> None:
    sink = failing()
    driver = driver_of(sink, steps=lambda stream: stream.filter(lambda _, value: value < 2))
    driver.input("in").send_many(PAIRS)
    assert sink.pairs == PAIRS[:2]
    assert sink.batches[-1].next == len(PAIRS)


def test_an_object_that_is_changed_later_is_a_row_as_it_was() -> None:
    """Rows are written later, and a function may go on with what it has returned."""
    same: dict[str, Any] = {"more": []}

    def one_by_one(value: int) -> Iterator[dict[str, Any]]:
        for number in range(2):
            same["n"] = value * 10 + number
            same["more"].append(number)
            yield same

    sink = failing()
    driver = driver_of(
        sink, steps=lambda stream: stream.flat_map_values(one_by_one), commit="manual"
    )
    driver.input("in").send_many(PAIRS[1:3])
    driver.commit()
    assert [value["n"] for _, value in sink.pairs] == [10, 11, 20, 21]
    assert [len(value["more"]) for _, value in sink.pairs] == [1, 2, 3, 4]


def test_an_object_that_another_branch_changes_is_a_row_as_it_was() -> None:
    builder = StreamsBuilder()
    stream: KStream[str, Any] = builder.stream("in", key=serdes.string, value=serdes.json)
    sink = MemorySink()
    stream.to_sink(sink, name="keep", direct=True)
    stream.peek(lambda _, value: value.clear())
    driver = TopologyTestDriver(builder.build(), real_sinks=True)
    driver.input("in").send("k", {"n": 1})
    driver.close()
    assert [row.value for row in sink.rows] == [{"n": 1}]


def test_the_first_rows_of_all_are_not_collected() -> None:
    """Who is killed before the first commit would begin at another end of the topic."""
    sink = MemorySink(batching=SinkBatching(every=timedelta(hours=1)))
    driver = driver_of(sink, commit="manual")
    numbers = driver.input("in")
    numbers.send_many(PAIRS[:2])
    driver.commit()
    assert [row.value for row in sink.rows] == [row for _, row in rows_of(range(2))]
    numbers.send_many(PAIRS[2:])
    driver.commit()
    assert len(sink.rows) == 6
    driver.restart()
    driver.advance(timedelta(hours=2))
    driver.commit()
    assert [(row.key, row.value) for row in sink.rows] == rows_of(range(6))


@pytest.mark.parametrize(
    ("told", "begin"), [(True, 9), (False, 4)], ids=["the group says 9", "the topic ends at 9"]
)
def test_the_end_of_a_topic_is_not_where_a_sink_goes_on(begin: int, *, told: bool) -> None:
    """As it is after a kill between the first rows and the first commit."""
    (sub,) = topology(MemorySink()).sub_topologies
    place, log = TopicPartition("in", 0), EventLog()
    start, beginning = {place: CommittedOffset(9)}, StartPosition("in@id", 4)
    assert sub.sink_node is not None
    begun = sink_offsets(start, beginning, sub.sink_node, log, is_committed=told)
    assert begun == {place: CommittedOffset(begin)}


def test_rows_under_keys_are_deleted_by_records_without_a_value() -> None:
    driver = TopologyTestDriver(topology(MemorySink(keyed=True), steps=lambda stream: stream))
    driver.input("in").send_many([("a", 1), ("b", 2), ("a", 3), ("b", None)])
    assert driver.sink("keep").as_dict() == {"a": 3}


def test_what_may_still_be_aborted_is_not_read() -> None:
    settings = {**EXACTLY_ONCE, "consumer.isolation.level": "read_uncommitted"}
    with pytest.raises(ConfigError, match=r"isolation\.level"):
        driver_of(MemorySink(), {**settings, "processing.guarantee": "at_least_once"})
