"""A table outside of Kafka has each record once, whatever goes wrong between it and the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, get_args

import pytest

from headrace.streams.errors import ConfigError, RecordError
from headrace.streams.supervisor.exit_codes import exit_code_of, is_crash
from headrace.streams.tasks.sink_connections import SinkFailedError, UnusableSinkError
from headrace.streams.testing.driver import CrashPoint, TopologyTestDriver
from headrace.streams.testing.driver_store import SinkPoint
from headrace.streams.worker import sink_writes
from headrace.topology import (
    MemorySink,
    SinkBatch,
    SinkRefusedError,
    SinkRow,
    SinkUnavailableError,
    SinkUnusableError,
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


KILLS = [("exactly_once_v2", at) for at in (*get_args(CrashPoint), *get_args(SinkPoint), None)]
# At any other step, what is written again to the topic in front are other records.
KILLS += [("at_least_once", at) for at in ("offsets_sent", "sink_written", None)]


@pytest.mark.parametrize(("guarantee", "at"), KILLS)
def test_a_kill_at_any_step_leaves_each_row_once(guarantee: str, at: Any) -> None:
    sink = failing()
    driver = driver_of(sink, {"processing.guarantee": guarantee}, commit="manual")
    numbers = driver.input("in")
    numbers.send_many(PAIRS[:3])
    driver.commit()
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
    monkeypatch.setattr(sink_writes, "ROWS_MAX", 4)
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
    return driver.cluster.partitions("test-keep-repartition")


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
    logged = [number for number in (1, 2, 4) if number <= len(values)]
    assert [event["count"] for event in skipped] == logged
    assert {event["reason"] for event in skipped} == {"table t, column n: too odd"}


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
    assert len(events(driver, "sink_position_rewound")) == 1


def test_another_error_of_a_sink_stops_the_worker_and_quotes_nothing() -> None:
    driver = driver_of(failing(KeyError("a secret")))
    with pytest.raises(SinkFailedError, match="the sink of step keep raised KeyError; ") as caught:
        driver.input("in").send_many(PAIRS)
    assert "secret" not in str(caught.value)

    message = str(caught.value)
    assert f"raised at {__file__}:" in message
    assert message.endswith("; log.errors=full has its text in the log")


def stumbling(is_bad: Callable[[SinkRow], bool], *, after: bool = False) -> Faulty:
    """A sink whose own code fails at some rows, before or after they are written."""

    def write(inner: Any, batch: SinkBatch) -> None:
        if after:
            inner.write(batch)
        if any(map(is_bad, batch.rows)):
            raise ValueError("a secret")
        if not after:
            inner.write(batch)

    return Faulty(write)


def test_a_row_that_makes_a_sink_s_code_fail_is_refused_alone() -> None:
    sink = stumbling(lambda row: row.value in (0, 4))
    driver = driver_of(sink, LETTERS, commit="manual")
    driver.input("in").send_many(PAIRS)
    driver.commit()
    assert [value for _, value in sink.pairs] == [1, 2, 3, 5]
    letters = driver.output("dead").read_all()
    assert [serdes.long.deserialize(letter.value) for letter in letters] == [0, 4]
    (said, _) = events(driver, "record_skipped")
    assert said["reason"].startswith(f"the sink raised ValueError at {__file__}:")


def test_a_row_that_makes_a_sink_s_code_fail_stops_with_its_place() -> None:
    driver = driver_of(stumbling(lambda row: row.value == 3))
    with pytest.raises(RecordError) as caught:
        driver.input("in").send_many(PAIRS)
    assert "the sink raised ValueError at " in str(caught.value)
    assert "(test-keep-repartition-0 offset " in str(caught.value)
    assert "secret" not in str(caught.value)


def test_rows_that_were_written_before_its_code_failed_are_there_once() -> None:
    waiting = [True]
    sink = stumbling(lambda row: bool(waiting and waiting.pop()), after=True)
    driver = driver_of(sink, LETTERS, commit="manual")
    driver.input("in").send_many(PAIRS)
    for _ in range(3):
        driver.commit()
    assert sink.pairs == PAIRS
    assert driver.dropped == {}


def test_a_sink_whose_code_fails_at_each_row_is_what_is_wrong() -> None:
    sink = stumbling(lambda _: True)
    driver = driver_of(sink, LETTERS, commit="manual")
    driver.input("in").send_many([("k", n) for n in range(30)])
    with pytest.raises(UnusableSinkError, match="none of 10 rows was written: the sink raised V"):
        driver.commit()


def test_one_that_has_written_rows_goes_on_without_many() -> None:
    sink = stumbling(lambda row: row.value > 0)
    driver = driver_of(sink, LETTERS, commit="manual")
    driver.input("in").send_many([("k", n) for n in range(30)])
    driver.commit()
    assert [value for _, value in sink.pairs] == [0]
    assert driver.dropped == {("keep", "it cannot be written"): 29}


class NeverOpens:
    """A sink that fails before there is any row."""

    keyed = False

    def __init__(self, error: Exception) -> None:
        self.error = error

    def open(self, name: str) -> Any:
        raise self.error


def test_what_a_sink_raises_before_there_are_rows_is_said() -> None:
    error = KeyError("no variable SHOP_URL at https://me:hunter2@vault")
    with pytest.raises(SinkFailedError) as caught:
        driver_of(NeverOpens(error)).input("in").send_many(PAIRS)
    assert "the sink of step keep raised KeyError: 'no variable SHOP_URL at " in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_sink_that_cannot_be_used_ends_the_application() -> None:
    error = SinkUnusableError("there is no table t")
    with pytest.raises(UnusableSinkError) as caught:
        driver_of(NeverOpens(error)).input("in").send_many(PAIRS)
    assert str(caught.value).startswith("the sink of step keep cannot be used: there is no table")
    assert not is_crash(exit_code_of(caught.value))


@pytest.mark.parametrize("opens", [True, False])
def test_a_test_without_the_sink_s_rows_does_not_pass(opens: bool) -> None:
    gone = SinkUnavailableError("nobody is there")
    sink = failing(*[gone] * 100) if opens else NeverOpens(gone)
    said = "the sink of step keep does not answer: nobody is there; .*its rows are not written"
    with pytest.raises(SinkFailedError, match=said), driver_of(sink) as driver:
        driver.input("in").send_many(PAIRS)


def test_a_test_with_a_sink_that_answers_late_has_its_rows() -> None:
    sink = failing(*[SinkUnavailableError("gone")] * 2)
    with driver_of(sink) as driver:
        driver.input("in").send_many(PAIRS)
        assert sink.pairs == []
        driver.advance(timedelta(seconds=1))
    assert sink.pairs == PAIRS


def test_a_test_that_fails_says_why_and_not_that_a_sink_was_silent() -> None:
    sink = failing(*[SinkUnavailableError("gone")] * 100)
    with pytest.raises(LookupError, match="nothing"), driver_of(sink) as driver:
        driver.sink(driver.input("in").send_many(PAIRS) or "nothing")


def test_a_sink_is_not_given_what_may_be_aborted() -> None:
    settings = {
        "processing.guarantee": "at_least_once",
        "consumer.isolation.level": "read_uncommitted",
    }
    with pytest.raises(ConfigError, match=r"may still be aborted after to_sink\('keep'\)"):
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
