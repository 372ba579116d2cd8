"""Handlers: which records are let go, what goes on, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.streams.config.handlers import Answer, Continue, DeadLetter, Fail, Failure
from headrace.streams.errors import ConfigError, RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import KStream, StreamsBuilder, Topology, serdes
from tests.support.topologies import EXACTLY_ONCE

Stream = KStream[Any, Any]
STAGES = ("deserialization", "processing", "production")
NO_CACHE = {"statestore.cache.max.bytes": 0}


def handled(stage: str, handler: Any = "continue", **more: Any) -> dict[str, Any]:
    settings = {f"{stage}.exception.handler": handler, **NO_CACHE}
    return {**settings, **{name.replace("_", "."): value for name, value in more.items()}}


def through(step: Callable[[Stream], Any], **source: Any) -> Topology:
    """A topology of one step between "in" and, where anything comes out of it, "out"."""
    builder = StreamsBuilder()
    result = step(builder.stream("in", name="read", **source))
    if result is not None:
        result.to("out", name="write")
    return builder.build()


def written(driver: TopologyTestDriver, topic: str = "out") -> list[Any]:
    return [(record.key, record.value) for record in driver.output(topic).read_all()]


def skips(driver: TopologyTestDriver) -> list[tuple[Any, ...]]:
    """Topic, partition, offset, node and error of the records that were let go."""
    names = ("topic", "partition", "offset", "node", "error")
    events = [e for e in driver.events if e["event"] == "record_skipped"]
    return [tuple(event[name] for name in names) for event in events]


def odd(*arguments: Any) -> Any:
    """Fails on the number 13, wherever it stands."""
    if 13 in arguments:
        raise ValueError("the payload, which must not be logged")
    return arguments[-1]


STEPS: dict[str, tuple[Callable[[Stream], Any], list[Any]]] = {
    "filter": (lambda s: s.filter(odd, name="step"), [("k", 1), ("k", 2)]),
    "filter_not": (lambda s: s.filter_not(odd, name="step"), [("k", 0)]),
    "map": (lambda s: s.map(lambda k, v: (k, odd(v)), name="step"), [("k", 1), ("k", 0), ("k", 2)]),
    "map_values": (lambda s: s.map_values(odd, name="step"), [("k", 1), ("k", 0), ("k", 2)]),
    "flat_map": (
        lambda s: s.flat_map(lambda k, v: [(k, v), (k, odd(v))], name="step"),
        [("k", n) for n in (1, 1, 0, 0, 2, 2)],
    ),
    "flat_map_values": (
        lambda s: s.flat_map_values(lambda v: [odd(v)], name="step"),
        [("k", 1), ("k", 0), ("k", 2)],
    ),
    "select_key": (lambda s: s.select_key(odd, name="step"), [(1, 1), (0, 0), (2, 2)]),
    "peek": (lambda s: s.peek(odd, name="step"), [("k", 1), ("k", 0), ("k", 2)]),
    "for_each": (lambda s: s.for_each(odd, name="step"), []),
    "branch": (
        lambda s: s.split(name="step").branch(odd, name="-a").no_default_branch()["step-a"],
        [("k", 1), ("k", 2)],
    ),
    "reduce": (
        lambda s: (
            s.group_by_key().reduce(lambda a, b: a + odd(b), store="rows", name="step").to_stream()
        ),
        [("k", 1), ("k", 1), ("k", 3)],
    ),
    "aggregate": (
        lambda s: (
            s.group_by_key()
            .aggregate(int, lambda k, v, a: a + odd(v), store="rows", name="step")
            .to_stream()
        ),
        [("k", 1), ("k", 1), ("k", 3)],
    ),
    "table": (
        lambda s: s.to_table(store="rows").map_values(odd, name="step").to_stream(),
        [("k", 1), ("k", None), ("k", 0), ("k", 2)],
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_the_node_that_fails_lets_the_record_go_and_the_others_go_on(step: str) -> None:
    make, expected = STEPS[step]
    driver = TopologyTestDriver(through(make), handled("processing"))
    for number in (1, 13, 0, 2):
        driver.input("in").send("k", number)
    if expected:
        assert written(driver) == expected
    assert skips(driver) == [("in", 0, 1, "step", "ValueError")]
    (event,) = [e for e in driver.events if e["event"] == "record_skipped"]
    file, _, function = event["function"].partition(":")
    assert file == f"{__name__.replace('.', '/')}.py"
    assert function.endswith((" <lambda>", f"{odd.__code__.co_firstlineno} odd"))
    assert driver.committed_offsets("in") == {0: 4}
    assert "payload" not in repr(driver.events)
    assert driver.dropped == {("step", "the node failed"): 1}


@pytest.mark.parametrize("step", STEPS)
def test_with_fail_the_application_stops_as_without_a_handler(step: str) -> None:
    """Also where only another stage's handler continues, so that nodes are watched."""
    make, _ = STEPS[step]
    for settings in ({}, handled("production"), handled("deserialization")):
        driver = TopologyTestDriver(through(make), settings)
        driver.input("in").send("k", 1)
        with pytest.raises(RecordError) as caught:
            driver.input("in").send("k", 13)
        error = caught.value
        assert (error.topic, error.partition, error.offset) == ("in", 0, 1)
        assert (error.node, error.task_id) == ("step", "0_0")
        assert error.store == ("rows" if step in ("reduce", "aggregate") else None)
        assert "a user function raised ValueError" in str(error)
        assert isinstance(error.__cause__, ValueError)
        assert driver.committed_offsets("in") == {0: 1}


def test_siblings_of_a_failing_node_and_other_records_of_a_flat_map_go_on() -> None:
    """KIP-1033: the node swallows the record, not the whole input record."""

    def step(stream: Stream) -> Stream:
        numbers = stream.flat_map_values(lambda value: range(value), name="numbers")
        bad = numbers.map_values(lambda n: 6 // n, name="bad")
        return numbers.merge(bad)

    driver = TopologyTestDriver(through(step), handled("processing"))
    driver.input("in").send("k", 3)
    values = [value for _, value in written(driver)]
    assert sorted(values) == [0, 1, 2, 3, 6]
    assert skips(driver) == [("in", 0, 0, "bad", "ZeroDivisionError")]


def test_nothing_of_a_record_goes_on_where_its_generator_fails_half_way() -> None:
    """Unlike in Kafka Streams, so that a dead letter can be processed again without repeats."""

    def some(value: int) -> Any:
        yield value
        yield odd(value)

    driver = TopologyTestDriver(through(lambda s: s.flat_map_values(some)), handled("processing"))
    for number in (1, 13):
        driver.input("in").send("k", number)
    assert written(driver) == [("k", 1), ("k", 1)]


def test_a_row_stays_as_it_was_where_a_function_changed_it_in_place_and_failed() -> None:
    def append(_: Any, value: Any, rows: list[Any]) -> list[Any]:
        rows.append(value)
        if value == 13:
            raise ValueError
        return rows

    def step(stream: Stream) -> Stream:
        return stream.group_by_key().aggregate(list, append, store="rows").to_stream()

    for settings in (handled("processing"), {"processing.exception.handler": "continue"}):
        driver = TopologyTestDriver(through(step), settings, commit="manual")
        driver.input("in").send_many([("k", n) for n in (1, 13, 2)])
        assert dict(driver.store("rows")) == {"k": [1, 2]}
        driver.commit()
        assert written(driver)[-1] == ("k", [1, 2])
        driver.input("in").send_many([("k", n) for n in (13, 3)])
        driver.commit()
        assert dict(driver.store("rows", committed=True)) == {"k": [1, 2, 3]}


def test_a_value_that_a_store_cannot_hold_is_let_go_where_it_was_made() -> None:
    """Without a handler it is met at the commit only, and nobody knows which record made it."""

    def step(stream: Stream) -> Stream:
        table = stream.group_by_key().aggregate(
            str,
            lambda k, v, a: {1} if v == 13 else f"{a}{v}",
            store="rows",
            value=serdes.string,
            name="fold",
        )
        return table.to_stream()

    driver = TopologyTestDriver(through(step), handled("processing"), commit="manual")
    driver.input("in").send_many([("k", n) for n in (1, 13, 2)])
    driver.commit()
    assert dict(driver.store("rows", committed=True)) == {"k": "12"}
    assert skips(driver) == [("in", 0, 1, "fold", "SerdeError")]


def test_a_failure_behind_a_cache_is_let_go_at_the_flush_without_a_place() -> None:
    def step(stream: Stream) -> Stream:
        return stream.group_by_key().count(store="rows").map_values(odd, name="step").to_stream()

    settings = {"processing.exception.handler": "continue"}
    driver = TopologyTestDriver(through(step), settings, commit="manual")
    driver.input("in").send_many([("k", n) for n in range(13)])
    driver.commit()
    assert written(driver) == []
    assert skips(driver) == [(None, None, None, "step", "ValueError")]
    assert dict(driver.store("rows", committed=True)) == {"k": 13}


@pytest.mark.parametrize("part", ["key", "value"])
def test_bytes_that_cannot_be_decoded_are_passed_over(part: str) -> None:
    topology = through(lambda s: s, key=serdes.long, value=serdes.long)
    driver = TopologyTestDriver(topology, handled("deserialization"))
    good, bad = b"\0" * 8, b"secret"
    driver.input("in").send_bytes(good, good)
    driver.input("in").send_bytes(*((bad, good) if part == "key" else (good, bad)))
    driver.input("in").send_bytes(good, good)
    assert written(driver) == [(0, 0), (0, 0)]
    assert skips(driver) == [("in", 0, 1, "read", "SerdeError")]
    assert [e["function"] for e in driver.events if e["event"] == "record_skipped"] == [None]
    assert driver.dropped == {("read", "it cannot be decoded"): 1}
    assert "secret" not in repr(driver.events)


def test_a_batch_with_bytes_that_cannot_be_decoded_is_processed_to_its_end() -> None:
    driver = TopologyTestDriver(
        through(lambda s: s, value=serdes.long), handled("deserialization"), commit="manual"
    )
    for value in (b"\0" * 8, b"bad", b"\0" * 8):
        driver.cluster.append("in", value, None, 0, 5, None)
    driver.commit()
    assert len(written(driver)) == 2
    assert driver.committed_offsets("in") == {0: 3}


@pytest.mark.parametrize(
    ("part", "step"),
    [
        ("key", lambda s: s.select_key(lambda k, v: {1} if v == 13 else k)),
        ("value", lambda s: s.map_values(lambda v: {1} if v == 13 else v)),
    ],
)
def test_what_a_sink_cannot_encode_goes_to_the_production_handler(part: str, step: Any) -> None:
    asked: list[Failure] = []

    def handler(failure: Failure) -> Answer:
        asked.append(failure)
        return "continue"

    driver = TopologyTestDriver(through(step), handled("production", handler))
    for number in (1, 13, 2):
        driver.input("in").send("k", number)
    assert written(driver) == [("k", 1), ("k", 2)]
    (failure,) = asked
    assert (failure.stage, failure.part, failure.node) == ("production", part, "write")
    assert failure.value == b"13"
    assert failure.record is not None
    assert {1} in (failure.record.key, failure.record.value)


def test_a_record_that_is_too_large_to_be_sent_goes_to_the_production_handler() -> None:
    driver = TopologyTestDriver(
        through(lambda s: s.map_values(lambda v: "x" * v)), handled("production")
    )
    for size in (1, 2_000_000, 2):
        driver.input("in").send("k", size)
    assert written(driver) == [("k", "x"), ("k", "xx")]
    assert skips(driver) == [("in", 0, 1, "write", "RecordTooLargeError")]


def test_a_function_that_chooses_the_topic_is_a_function_of_the_topology() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to(lambda k, v: f"out{odd(v)}", name="write")
    driver = TopologyTestDriver(builder.build(), handled("processing"))
    for number in (1, 13):
        driver.input("in").send("k", number)
    assert written(driver, "out1") == [("k", 1)]
    assert skips(driver) == [("in", 0, 1, "write", "ValueError")]


def test_a_null_key_where_one_is_needed_goes_to_the_processing_handler() -> None:
    topology = through(lambda s: s.group_by_key().count(store="rows", name="step").to_stream())
    driver = TopologyTestDriver(topology, handled("processing"))
    driver.input("in").send(None, 1)
    driver.input("in").send("k", 1)
    assert written(driver) == [("k", 1)]
    assert skips(driver) == [("in", 0, 0, "step", "NullKeyError")]


def test_a_handler_of_ones_own_sees_the_record_and_decides() -> None:
    asked: list[Failure] = []

    def handler(failure: Failure) -> Answer:
        asked.append(failure)
        return Fail() if failure.record and failure.record.value == 26 else Continue()

    topology = through(lambda s: s.map_values(lambda v: v * 2).peek(lambda k, v: 1 // (v % 26)))
    driver = TopologyTestDriver(topology, handled("processing", handler), partitions=2)
    headers = [("h", b"1")]
    driver.input("in").send("k", 0, timestamp=5, headers=headers, partition=1)
    (failure,) = asked
    assert isinstance(failure.error, ZeroDivisionError)
    assert (failure.stage, failure.task_id, failure.part) == ("processing", "0_1", None)
    assert (failure.topic, failure.partition, failure.offset) == ("in", 1, 0)
    assert (failure.timestamp, failure.headers) == (5, (("h", b"1"),))
    assert (failure.key, failure.value) == (b'"k"', b"0")
    assert failure.record is not None
    assert (failure.record.key, failure.record.value, failure.record.timestamp) == ("k", 0, 5)
    assert "b'" not in repr(failure), "no payload in what is printed"
    with pytest.raises(RecordError):
        driver.input("in").send("k", 13)


@pytest.mark.parametrize("answer", ["maybe", None, 1])
def test_what_is_no_answer_stops_the_application(answer: Any) -> None:
    driver = TopologyTestDriver(
        through(lambda s: s.map_values(odd)), handled("processing", lambda _: answer)
    )
    with pytest.raises(
        RecordError, match=r"processing\.exception\.handler returned .*; return Cont"
    ):
        driver.input("in").send("k", 13)
    assert driver.committed_offsets("in") == {0: 0}


def test_a_handler_that_fails_stops_the_application_at_the_record() -> None:
    def handler(failure: Failure) -> Answer:
        raise KeyError("the payload, which must not be in the message")

    driver = TopologyTestDriver(
        through(lambda s: s.map_values(odd)), handled("processing", handler)
    )
    with pytest.raises(RecordError) as caught:
        driver.input("in").send("k", 13)
    assert "handler raised KeyError for ValueError" in str(caught.value)
    assert caught.value.offset == 0
    assert "payload" not in str(caught.value)


def test_a_handler_of_ones_own_may_write_dead_letters_of_its_own() -> None:
    def handler(failure: Failure) -> Answer:
        return Continue((DeadLetter("mine", b"1", b"2", 7, [("h", b"3")]),) * 2)

    driver = TopologyTestDriver(
        through(lambda s: s.map_values(odd)), handled("processing", handler)
    )
    driver.input("in").send("k", 13)
    for record in driver.output("mine").read_all():
        assert (record.key, record.value, record.timestamp) == (1, 2, 7)
        assert list(record.headers) == [("h", b"3")]
    assert driver.events[-1]["dead_letters"] == 2


@pytest.mark.parametrize(
    "letter",
    [
        DeadLetter("mine", {"k": 1}, None),  # type: ignore[arg-type]
        DeadLetter("mine", None, 5),  # type: ignore[arg-type]
        DeadLetter(b"mine", None, None),  # type: ignore[arg-type]
    ],
)
def test_a_dead_letter_of_other_than_bytes_is_the_handlers_error(letter: DeadLetter) -> None:
    topology = through(lambda s: s.map_values(odd))
    driver = TopologyTestDriver(topology, handled("processing", lambda _: Continue((letter,))))
    with pytest.raises(RecordError, match="handler returned Continue with a dead letter whose"):
        driver.input("in").send("k", 13)


def test_skipped_records_are_not_processed_again_after_a_crash() -> None:
    settings = {**EXACTLY_ONCE, **handled("processing")}
    driver = TopologyTestDriver(through(lambda s: s.map_values(odd)), settings)
    driver.input("in").send("k", 13)
    driver.crash()
    driver.input("in").send("k", 1)
    assert written(driver) == [("k", 1)]
    assert len(skips(driver)) == 1


@pytest.mark.parametrize("stage", STAGES)
def test_a_handler_must_be_a_word_or_a_function(stage: str) -> None:
    with pytest.raises(ConfigError, match="must be 'fail', 'continue' or a function"):
        TopologyTestDriver(through(lambda s: s), handled(stage, "retry"))


def test_a_dead_letter_topic_that_nobody_writes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"set one of deserialization\.exception\.handler"):
        TopologyTestDriver(
            through(lambda s: s), {"errors.dead.letter.queue.topic.name": "dead-letters"}
        )
