"""A table outside of Kafka has each record once, whatever goes wrong between it and the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, get_args

import pytest

from headrace.streams.errors import ConfigError, RecordError
from headrace.streams.external import writes
from headrace.streams.external.connections import SinkFailedError
from headrace.streams.testing.driver import CrashPoint, TopologyTestDriver
from headrace.streams.testing.driver_worker import SinkPoint
from headrace.topology import (
    MemorySink,
    SinkBatch,
    SinkRefusedError,
    SinkUnavailableError,
    StreamsBuilder,
    Topology,
    serdes,
)

EXACTLY_ONCE = {"processing.guarantee": "exactly_once_v2"}
Pairs = list[tuple[Any, Any]]


class Faulty:
    """A sink in memory, with what is done instead of each write or around it."""

    keyed = False

    def __init__(self, write: Callable[[Any, SinkBatch], None]) -> None:
        self.table = MemorySink()
        self.opened = 0
        self.batches: list[SinkBatch] = []
        self._write = write

    def open(self, name: str) -> Faulty:
        self.opened += 1
        self._inner = self.table.open(name)
        return self

    def positions(self, source: str, partitions: Sequence[int]) -> Mapping[int, int]:
        return self._inner.positions(source, partitions)

    def write(self, batch: SinkBatch) -> None:
        self.batches.append(batch)
        self._write(self._inner, batch)

    def close(self) -> None:
        pass

    @property
    def pairs(self) -> Pairs:
        return [(row.key, row.value) for row in self.table.rows]


def topology(sink: Any) -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string, value=serdes.long).to_sink(sink, name="keep")
    return builder.build()


def driver_of(sink: Any, settings: Mapping[str, object] = EXACTLY_ONCE, **more: Any) -> Any:
    return TopologyTestDriver(topology(sink), settings, partitions=1, real_sinks=True, **more)


def failing(*errors: Exception | None, after: bool = False) -> Faulty:
    """A sink whose first writes fail so, before or after they are done."""
    waiting = list(errors)

    def write(inner: Any, batch: SinkBatch) -> None:
        error = waiting.pop(0) if waiting else None
        if error is None or after:
            inner.write(batch)
        if error is not None:
            raise error

    return Faulty(write)


def refusing(*, values: set[int], offset: bool = False) -> Faulty:
    """A sink that refuses batches with these values, and may say of which row it is."""

    def write(inner: Any, batch: SinkBatch) -> None:
        for row in batch.rows:
            if row.value in values:
                told = row.offset if offset else None
                raise SinkRefusedError("too odd", table="t", column="n", offset=told)
        inner.write(batch)

    return Faulty(write)


def events(driver: Any, name: str) -> list[Mapping[str, Any]]:
    return [event for event in driver.events if event["event"] == name]


PAIRS: Pairs = [("k", n) for n in range(6)]


@pytest.mark.parametrize("at", [*get_args(CrashPoint), *get_args(SinkPoint), None])
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_kill_at_any_step_leaves_each_row_once(at: Any, guarantee: str) -> None:
    sink = failing()
    driver = driver_of(sink, {"processing.guarantee": guarantee}, commit="manual")
    numbers = driver.input("in")
    numbers.send_many(PAIRS[:3])
    driver.commit()
    if guarantee == "at_least_once" and at not in (None, "sink_written", "offsets_sent"):
        return  # what is written again to the topic in front are other records
    numbers.send_many(PAIRS[3:])
    driver.commit(rounds=1)
    driver.crash(at)
    driver.commit()
    assert sink.pairs == PAIRS


def test_an_abort_leaves_each_row_once() -> None:
    sink = failing()
    driver = driver_of(sink, commit="manual")
    driver.input("in").send_many(PAIRS)
    driver.commit(rounds=1)
    driver.abort()
    driver.commit()
    assert sink.pairs == PAIRS


def test_rows_are_written_with_the_commit() -> None:
    sink = failing()
    driver = driver_of(sink, commit="manual")
    driver.input("in").send_many(PAIRS)
    driver.commit(rounds=1)
    assert sink.pairs == []
    driver.commit()
    assert sink.pairs == PAIRS
    assert [len(batch.rows) for batch in sink.batches] == [6]


def test_many_rows_are_written_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "ROWS_MAX", 4)
    sink = failing()
    driver = driver_of(sink, {**EXACTLY_ONCE, "max.poll.records": 1}, commit="manual")
    driver.input("in").send_many(PAIRS)
    driver.commit(rounds=1)
    driver.run()
    assert sink.pairs == PAIRS[:4]


def test_rows_do_not_wait_for_far_commits_at_least_once() -> None:
    sink = failing()
    driver = driver_of(sink, {"processing.guarantee": "at_least_once"}, commit="manual")
    driver.input("in").send_many(PAIRS)
    driver.advance(timedelta(seconds=1))
    assert sink.pairs == PAIRS


@pytest.mark.parametrize("is_done", [False, True], ids=["lost connection", "lost answer"])
def test_a_sink_that_does_not_answer_is_asked_again(is_done: bool) -> None:
    sink = failing(*[SinkUnavailableError("gone")] * 3, after=is_done)
    driver = driver_of(sink)
    driver.input("in").send_many(PAIRS[:2])
    for _ in range(4):
        driver.advance(timedelta(seconds=1))
    driver.input("in").send_many(PAIRS[2:])
    for _ in range(4):
        driver.advance(timedelta(seconds=1))
    assert sink.pairs == PAIRS
    said = events(driver, "sink_unavailable")
    assert said[0]["sink"] == "keep"
    assert said[0]["reason"] == "gone"


def test_a_sink_that_answers_nobody_holds_no_other_task_up() -> None:
    sink = failing(*[SinkUnavailableError("gone")] * 100)
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.long)
    stream.to_sink(sink, name="keep")
    stream.group_by_key().count(store="counts").to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), EXACTLY_ONCE, real_sinks=True)
    driver.input("in").send_many(PAIRS)
    assert driver.output("out").as_dict() == {"k": 6}
    assert sink.pairs == []


def test_a_writer_that_is_overtaken_goes_on_behind_the_other_one() -> None:
    """Trap of zombies: the rows of both are the same records."""
    sink = failing()
    driver = driver_of(sink, commit="manual")
    driver.input("in").send_many(PAIRS[:2])
    driver.commit()
    driver.input("in").send_many(PAIRS[2:])
    driver.commit(rounds=1)
    driver.run()
    # Another worker, that has read as far, was quicker.
    (last,) = sink.batches
    position = last.next
    rows = [type(last.rows[0])("k", n, 0, position + n) for n in (2, 3, 4, 5)]
    other = sink.table.open("test/keep")
    end = driver.cluster.log(next(iter(_places(driver)))).end
    other.write(SinkBatch(last.source, last.partition, position, end, rows))
    driver.commit()
    assert sink.pairs == PAIRS
    (said,) = events(driver, "sink_fenced")
    assert said["task"] == "1_0"


def _places(driver: Any) -> Any:
    return driver.cluster.places("test-keep-repartition")


def test_a_refused_row_stops_the_application_with_its_place() -> None:
    driver = driver_of(refusing(values={3}))
    with pytest.raises(RecordError) as caught:
        driver.input("in").send_many(PAIRS)
    message = str(caught.value)
    assert message.startswith("table t, column n: too odd (test-keep-repartition-0 offset ")
    assert "node keep, task 1_0)" in message
    assert "headrace skip" in message


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("values", [{3}, {0}, {5}, {0, 1, 2, 3, 4, 5}, {1, 4}])
def test_refused_rows_go_alone_and_the_others_are_written(values: set[int], offset: bool) -> None:
    sink = refusing(values=values, offset=offset)
    settings = {**EXACTLY_ONCE, "production.exception.handler": "continue"}
    driver = driver_of(sink, settings, commit="manual")
    driver.input("in").send_many(PAIRS)
    driver.commit()
    assert sink.pairs == [pair for pair in PAIRS if pair[1] not in values]
    assert driver.dropped == {("keep", "it cannot be written"): len(values)}
    skipped = events(driver, "record_skipped")
    assert [event["reason"] for event in skipped] == ["table t, column n: too odd"] * len(values)


LETTERS = {
    **EXACTLY_ONCE,
    "production.exception.handler": "continue",
    "errors.dead.letter.queue.topic.name": "dead",
}


def test_refused_rows_become_dead_letters() -> None:
    sink = refusing(values={1, 4})
    driver = driver_of(sink, LETTERS, commit="manual")
    driver.input("in").send_many(PAIRS)
    driver.commit()
    assert [row for _, row in sink.pairs] == [0, 2, 3, 5]
    letters = driver.output("dead").read_all()
    assert [serdes.long.deserialize(letter.value) for letter in letters] == [1, 4]
    assert dict(letters[0].headers)["__streams.errors.message"] == b"table t, column n: too odd"


@pytest.mark.parametrize("at", ["offsets_sent", "transaction_committed", "sink_written"])
def test_no_dead_letter_is_lost_by_a_kill(at: Any) -> None:
    """It may be there twice: it is committed before the position passes its record."""
    sink = refusing(values={1, 4})
    driver = driver_of(sink, LETTERS, commit="manual")
    driver.input("in").send_many(PAIRS)
    driver.commit(rounds=1)
    driver.run()
    driver.crash(at)
    driver.commit()
    assert driver.crashes == 1
    assert [row for _, row in sink.pairs] == [0, 2, 3, 5]
    letters = driver.output("dead").read_all()
    assert {serdes.long.deserialize(letter.value) for letter in letters} == {1, 4}


def test_a_record_that_cannot_be_decoded_moves_the_position_too() -> None:
    sink = failing()
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.bytes)
    stream.to_sink(sink, name="keep")
    settings = {**LETTERS, "deserialization.exception.handler": "continue"}
    driver = TopologyTestDriver(builder.build(), settings, partitions=1, real_sinks=True)
    numbers = driver.input("in")
    numbers.send("a", b"1")
    numbers.send_bytes(b"\xff", b"2")
    numbers.send("b", b"3")
    assert [key for key, _ in sink.pairs] == ["a", "b"]


def test_a_sink_that_goes_back_is_written_again_from_there() -> None:
    sink = failing()
    driver = driver_of(sink)
    driver.input("in").send_many(PAIRS[:3])
    kept, positions = list(sink.table.rows), dict(sink.table._positions)
    driver.input("in").send_many(PAIRS[3:])
    driver.restart()
    sink.table.rows, sink.table._positions = kept, positions  # from a backup
    driver.run()
    assert sink.pairs == PAIRS
    assert len(events(driver, "sink_went_back")) == 1


def test_a_sink_without_positions_begins_where_the_group_is() -> None:
    sink = failing()
    driver = driver_of(sink)
    driver.input("in").send_many(PAIRS[:3])
    driver.restart()
    sink.table.rows, sink.table._positions = [], {}
    driver.input("in").send_many(PAIRS[3:])
    assert sink.pairs == PAIRS[3:]


def test_another_error_of_a_sink_stops_the_worker_and_quotes_nothing() -> None:
    driver = driver_of(failing(KeyError("a secret")))
    with pytest.raises(SinkFailedError, match="the sink of step keep raised KeyError; ") as caught:
        driver.input("in").send_many(PAIRS)
    assert "secret" not in str(caught.value)


def test_a_sink_is_not_given_what_may_be_aborted() -> None:
    settings = {
        "processing.guarantee": "at_least_once",
        "consumer.isolation.level": "read_uncommitted",
    }
    with pytest.raises(ConfigError, match=r"may still be aborted when to_sink\('keep'\)"):
        driver_of(failing(), settings)


def test_the_group_follows_where_no_record_comes_any_more() -> None:
    """What it says is the lag that is shown, and what may be deleted."""
    sink = failing()
    driver = driver_of(sink, commit="manual")
    driver.input("in").send_many(PAIRS)
    driver.commit(rounds=1)
    driver.run()
    driver.crash("sink_written")
    driver.commit()
    (batch,) = sink.batches
    assert driver.committed_offsets("test-keep-repartition")[0] >= batch.next
