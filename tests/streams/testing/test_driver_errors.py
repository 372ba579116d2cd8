"""A record that cannot be processed stops the worker with an error that names its place."""

from __future__ import annotations

import asyncio
import operator
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from headrace.streams.errors import ProcessorFailedError, RecordError
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    JoinWindows,
    KStream,
    Processor,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
)
from headrace.topology.errors import SerdeError
from tests.support.topologies import EXACTLY_ONCE

Stream = KStream[Any, Any]


def through(step: Callable[[Stream], Any], **source: Any) -> Topology:
    """A topology of one step between "in" and, where anything comes out of it, "out"."""
    builder = StreamsBuilder()
    result = step(builder.stream("in", name="read", **source))
    if result is not None:
        result.to("out", name="write")
    return builder.build()


def fail(*_: Any) -> Any:
    raise KeyError("the payload, which must not be in the message")


def placed(function: Any, name: str | None = None) -> str:
    """As an error says where a function stands."""
    file = f"{__name__.replace('.', '/')}.py"
    return f"{file}:{function.__code__.co_firstlineno} {name or function.__name__}"


def failure(action: Callable[[], object]) -> RecordError:
    with pytest.raises(RecordError) as caught:
        action()
    return caught.value


STEPS: dict[str, Callable[[Stream], Any]] = {
    "filter": lambda s: s.filter(fail, name="step"),
    "filter_not": lambda s: s.filter_not(fail, name="step"),
    "map": lambda s: s.map(fail, name="step"),
    "map_values": lambda s: s.map_values(fail, name="step"),
    "flat_map": lambda s: s.flat_map(fail, name="step"),
    "flat_map_values": lambda s: s.flat_map_values(fail, name="step"),
    "select_key": lambda s: s.select_key(fail, name="step"),
    "peek": lambda s: s.peek(fail, name="step"),
    "for_each": lambda s: s.for_each(fail, name="step"),
    "branch": lambda s: s.split(name="step").branch(fail).no_default_branch()["step1"],
    "to": lambda s: s.to(fail, name="step"),
    "aggregate": lambda s: (
        s.group_by_key().aggregate(int, fail, store="rows", name="step").to_stream()
    ),
    "initializer": lambda s: (
        s.group_by_key().aggregate(fail, lambda k, v, a: v, store="rows", name="step").to_stream()
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_user_function_that_raises_is_named_by_its_node_and_record(step: str) -> None:
    driver = TopologyTestDriver(through(STEPS[step]), partitions=3)
    source = driver.input("in")
    error = failure(lambda: source.send("k", 1, partition=2, timestamp=5))
    assert (error.topic, error.partition, error.offset, error.timestamp) == ("in", 2, 0, 5)
    assert error.node == "step"
    assert error.task_id == "0_2"
    assert error.store == ("rows" if step in ("aggregate", "initializer") else None)
    assert "a user function raised KeyError" in str(error)
    assert f", function {placed(fail)}, " in str(error)
    assert "payload" not in str(error)
    assert isinstance(error.__cause__, KeyError)


class Stop(BaseException):
    """What somebody ends a program with."""


def leave(*_: Any) -> Any:
    return sys.exit("the payload, which must not be in the message")


def stop(*_: Any) -> Any:
    raise Stop


def cancel(*_: Any) -> Any:
    raise asyncio.CancelledError


LEAVING: dict[str, Callable[[Any, Any], Any]] = {
    "map_values": lambda s, end: s.map_values(end, name="step"),
    "filter": lambda s, end: s.filter(end, name="step"),
    "flat_map_values": lambda s, end: s.flat_map_values(end, name="step"),
    "process": lambda s, end: s.process(lambda record, context: end(), name="step"),
    "topic": lambda s, end: s.to(end, name="step"),
    "partitioner": lambda s, end: s.to("out", partitioner=end, name="step"),
    "aggregator": lambda s, end: (
        s.group_by_key().aggregate(int, end, store="rows", name="step").to_stream()
    ),
}
HANDLERS = {
    f"{stage}.exception.handler": "continue"
    for stage in ("deserialization", "processing", "production")
}


@pytest.mark.parametrize("settings", [{}, HANDLERS], ids=["fails", "handles errors"])
@pytest.mark.parametrize("end", [leave, stop, cancel])
@pytest.mark.parametrize("step", LEAVING)
def test_what_would_end_python_ends_with_the_place_of_its_record(
    step: str, end: Callable[..., Any], settings: dict[str, object]
) -> None:
    driver = TopologyTestDriver(through(lambda s: LEAVING[step](s, end)), settings)
    error = failure(lambda: driver.input("in").send("k", 1, timestamp=5))
    assert (error.topic, error.partition, error.offset, error.node) == ("in", 0, 0, "step")
    assert not isinstance(error.__cause__, Exception)
    assert f"raised {type(error.__cause__).__name__}, which ends the application" in str(error)
    assert "payload" not in str(error)
    assert str(error.function).startswith("tests/streams/testing/test_driver_errors.py:")
    assert exit_code_of(error) is ExitCode.RECORD


def test_an_exit_of_a_serde_an_extractor_or_a_handler_has_a_place_too() -> None:
    def ends(settings: Any = None, **source: Any) -> RecordError:
        driver = TopologyTestDriver(through(lambda s: s.map_values(fail), **source), settings)
        driver.input("in", value=serdes.json)
        return failure(lambda: driver.input("in", value=serdes.json).send("k", 1))

    reader = serdes.serde_from(name="mine", serialize=bytes, deserialize=leave)
    for error in (ends(value=reader), ends(timestamps=leave)):
        assert (error.topic, error.offset, error.node) == ("in", 0, "read")
        assert error.function == placed(leave)
    asked = ends({"processing.exception.handler": leave})
    assert "the processing.exception.handler raised SystemExit for KeyError" in str(asked)


def test_an_exit_while_rows_are_encoded_names_what_was_read() -> None:
    mine = serdes.serde_from(name="mine", serialize=leave, deserialize=int)
    step = through(
        lambda s: s.group_by_key().reduce(lambda a, b: b, store="rows", value=mine).to_stream(),
        key=serdes.json,
        value=serdes.json,
    )
    driver = TopologyTestDriver(step)
    error = failure(lambda: driver.input("in").send("k", 1))
    assert (error.topic, error.offset) == ("in", 0)
    assert "raised SystemExit" in str(error)


@pytest.mark.parametrize("settings", [{}, HANDLERS], ids=["fails", "handles errors"])
def test_an_exit_in_a_punctuator_or_in_init_has_its_node(settings: dict[str, object]) -> None:
    class Leaving(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            context.schedule(timedelta(seconds=1), leave, kind="stream_time")

        def process(self, record: Any) -> None: ...

    driver = TopologyTestDriver(through(lambda s: s.process(Leaving, name="step")), settings)
    error = failure(lambda: driver.input("in").send("k", 1, timestamp=5))
    assert (error.topic, error.offset, error.node) == ("in", 0, "step")

    class Never(Leaving):
        def init(self, context: Any) -> None:
            leave()

    driver = TopologyTestDriver(through(lambda s: s.process(Never, name="step")), settings)
    with pytest.raises(ProcessorFailedError, match=r"SystemExit.*node step, function .*Never"):
        driver.run()


def test_ctrl_c_in_a_test_is_no_fault_of_the_function_that_it_meets() -> None:
    def interrupted(value: Any) -> Any:
        raise KeyboardInterrupt

    driver = TopologyTestDriver(through(lambda s: s.map_values(interrupted)))
    with pytest.raises(KeyboardInterrupt):
        driver.input("in").send("k", 1)


def test_an_exit_in_close_keeps_nothing_from_ending() -> None:
    class Leaving(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None: ...

        def close(self) -> None:
            leave()

    with TopologyTestDriver(through(lambda s: s.process(Leaving))) as driver:
        driver.input("in").send("k", 1)


def test_a_generator_that_raises_half_way_is_named_by_its_node() -> None:
    def some(value: int) -> Any:
        yield value
        raise RuntimeError

    driver = TopologyTestDriver(through(lambda s: s.flat_map_values(some, name="step")))
    error = failure(lambda: driver.input("in").send("k", 1))
    assert (error.node, error.offset) == ("step", 0)
    assert driver.committed_offsets("in") == {0: 0}


def test_what_one_record_sent_on_before_it_failed_is_void_under_exactly_once() -> None:
    def some(value: int) -> Any:
        yield value
        raise RuntimeError

    topology = through(lambda s: s.flat_map_values(some, name="step"))
    driver = TopologyTestDriver(topology, EXACTLY_ONCE)
    failure(lambda: driver.input("in").send("k", 1))
    assert driver.output("out").is_empty
    assert not driver.output("out", isolation="read_uncommitted").is_empty


def test_the_offset_is_that_of_the_record_within_its_batch() -> None:
    step = through(lambda s: s.map_values(lambda n: 1 // n, name="step"))
    driver = TopologyTestDriver(step, EXACTLY_ONCE, commit="manual")
    error = failure(lambda: driver.input("in").send_many([("k", n) for n in (1, 2, 0, 3)]))
    assert error.offset == 2
    assert "in-0 offset 2" in str(error)


@pytest.mark.parametrize(("part", "serde"), [("key", "long"), ("value", "long")])
def test_bytes_that_cannot_be_decoded_are_named_by_their_place(part: str, serde: str) -> None:
    topology = through(lambda s: s, key=serdes.long, value=serdes.long)
    driver = TopologyTestDriver(topology)
    good, bad = b"\0" * 8, b"secret"
    driver.input("in").send_bytes(good, good)
    key, value = (bad, good) if part == "key" else (good, bad)
    error = failure(lambda: driver.input("in").send_bytes(key, value))
    assert (error.topic, error.partition, error.offset, error.node) == ("in", 0, 1, "read")
    assert f"serde {serde!r} cannot decode 6 bytes" in str(error)
    assert "secret" not in str(error)


def test_a_value_that_the_sinks_serde_refuses_is_named_by_the_sink() -> None:
    topology = through(
        lambda s: s.map_values(str).to("out", value=serdes.long, name="sink"), value=serdes.long
    )
    driver = TopologyTestDriver(topology)
    error = failure(lambda: driver.input("in").send("k", 1))
    assert (error.node, error.offset) == ("sink", 0)
    assert "serde 'long' cannot encode a value of type str" in str(error)


def test_a_failure_behind_a_shared_node_is_named_by_its_node() -> None:
    builder = StreamsBuilder()
    a, b = builder.stream("a"), builder.stream("b")
    a.merge(b, name="both").map_values(fail, name="step").to("out")
    driver = TopologyTestDriver(builder.build())
    error = failure(lambda: driver.input("b").send("k", 1))
    assert (error.topic, error.node, error.offset) == ("b", "step", 0)


def test_a_failure_behind_a_repartition_is_named_by_the_repartition_topic() -> None:
    topology = through(
        lambda s: (
            s.select_key(lambda k, v: v).repartition(name="by-value").map_values(fail, name="step")
        )
    )
    driver = TopologyTestDriver(topology, {"application.id": "app"}, partitions=1)
    error = failure(lambda: driver.input("in").send("k", "v"))
    assert (error.topic, error.node, error.task_id) == ("app-by-value-repartition", "step", "1_0")


def test_a_failure_behind_a_cache_names_the_records_that_may_have_caused_it() -> None:
    topology = through(
        lambda s: s.group_by_key().count(store="rows").to_stream().map_values(fail, name="step")
    )
    driver = TopologyTestDriver(topology, EXACTLY_ONCE, commit="manual")
    driver.input("in").send_many([("a", 1), ("b", 1)])
    error = failure(driver.commit)
    assert error.node == "step"
    assert (error.topic, error.partition, error.offset) == ("in", 0, 1)
    assert "between offsets 0 and 1" in str(error)


def test_a_row_that_cannot_be_encoded_names_its_store_and_the_records() -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().reduce(lambda a, b: {1, 2}, store="rows")
    driver = TopologyTestDriver(builder.build(), EXACTLY_ONCE, commit="manual")
    source = driver.input("in")
    error = failure(lambda: (source.send_many([("a", 1), ("a", 2)]), driver.commit()))
    assert error.store == "rows"
    assert "cannot encode a value of type set" in str(error)


def test_a_row_that_is_too_large_for_its_changelog_names_its_store_and_not_its_key() -> None:
    topology = through(
        lambda s: s.group_by_key().reduce(lambda a, b: a + b, store="rows").to_stream(),
        key=serdes.string,
        value=serdes.string,
    )
    settings = {**EXACTLY_ONCE, "topic.max.message.bytes": "100"}
    driver = TopologyTestDriver(topology, settings, commit="manual")
    driver.input("in").send("ann@example.org", "x" * 60)
    driver.commit()
    driver.input("in").send("ann@example.org", "x" * 60)
    error = failure(driver.commit)
    assert error.store == "rows"
    assert "a row whose key has 15 bytes" in str(error)
    assert "ann" not in f"{error!r} {error.__cause__!r} {vars(error)} {vars(error.__cause__)}"
    assert "120 bytes" in str(error)
    assert "test-rows-changelog" in str(error)
    assert dict(driver.store("rows")) == {"ann@example.org": "x" * 60}


def test_an_output_that_is_too_large_names_its_record() -> None:
    topology = through(lambda s: s.map_values(lambda n: "x" * n, name="grow"))
    driver = TopologyTestDriver(topology, EXACTLY_ONCE)
    driver.input("in").send("k", 10)
    error = failure(lambda: driver.input("in").send("k", 2_000_000))
    assert (error.topic, error.offset, error.node) == ("in", 1, "write")
    assert "larger than the max.message.bytes" in str(error)


def test_a_negative_timestamp_is_refused() -> None:
    driver = TopologyTestDriver(through(lambda s: s))
    error = failure(lambda: driver.input("in").send("k", 1, timestamp=-1))
    assert (error.node, error.timestamp) == ("read", -1)
    assert "timestamp -1 is negative" in str(error)


NEED_A_KEY: dict[str, Callable[[Stream], Any]] = {
    "count": lambda s: s.group_by_key().count(store="rows", name="step").to_stream(),
    "reduce": lambda s: (
        s.group_by_key().reduce(lambda a, b: b, store="rows", name="step").to_stream()
    ),
    "aggregate": lambda s: (
        s.group_by_key()
        .aggregate(list, lambda k, v, a: [*a, v], store="rows", name="step")
        .to_stream()
    ),
    "table": lambda s: s.to_table(store="rows", name="step").to_stream(),
}


@pytest.mark.parametrize("step", NEED_A_KEY)
def test_a_null_key_fails_where_a_row_needs_one(step: str) -> None:
    driver = TopologyTestDriver(through(NEED_A_KEY[step]))
    error = failure(lambda: driver.input("in").send(None, 1))
    assert (error.node, error.store, error.offset) == ("step", "rows", 0)
    assert "the key is null" in str(error)
    assert "null.key.policy" in str(error)


@pytest.mark.parametrize("step", NEED_A_KEY)
def test_a_null_key_is_dropped_and_counted_where_the_policy_says_so(step: str) -> None:
    driver = TopologyTestDriver(through(NEED_A_KEY[step]), {"null.key.policy": "drop"})
    driver.input("in").send_many([(None, 1), ("a", 1), (None, 1)])
    assert driver.dropped == {("step", "null key"): 2}
    assert list(driver.store("rows")) == ["a"]
    assert [r.key for r in driver.output("out").read_all()] == ["a"]
    told = [e for e in driver.events if e["event"] == "records_dropped"]
    assert [(e["count"], e["topic"], e["partition"], e["offset"]) for e in told] == [
        (1, "in", 0, 0),
        (2, "in", 0, 2),
    ]


def test_a_null_key_fails_in_front_of_a_repartition() -> None:
    topology = through(lambda s: s.repartition(name="again"))
    driver = TopologyTestDriver(topology)
    error = failure(lambda: driver.input("in").send(None, 1))
    assert error.node == "again-repartition-filter"
    driver = TopologyTestDriver(topology, {"null.key.policy": "drop"})
    driver.input("in").send_many([(None, 1), ("a", 1)])
    assert [r.key for r in driver.output("out").read_all()] == ["a"]
    assert driver.dropped == {("again-repartition-filter", "null key"): 1}


def test_a_null_key_passes_where_nothing_needs_one() -> None:
    driver = TopologyTestDriver(through(lambda s: s.filter(lambda k, v: k is None)))
    driver.input("in").send(None, 1)
    assert [r.key for r in driver.output("out").read_all()] == [None]


def test_after_an_error_what_was_committed_is_still_there_to_be_read() -> None:
    topology = through(
        lambda s: (
            s.group_by_key().aggregate(int, lambda k, v, a: a + 1 // v, store="rows").to_stream()
        )
    )
    driver = TopologyTestDriver(topology, EXACTLY_ONCE)
    driver.input("in").send("k", 1)
    failure(lambda: driver.input("in").send("k", 0))
    assert dict(driver.store("rows")) == {"k": 1}
    assert [r.value for r in driver.output("out").read_all()] == [1]


class Failing(Processor[Any, Any, Any, Any]):
    def init(self, context: Any) -> None:
        context.schedule(timedelta(seconds=1), self.tick, kind="stream_time")

    def process(self, record: Any) -> None:
        fail()

    def tick(self, timestamp: int) -> None:
        fail()


class Quiet(Failing):
    def process(self, record: Any) -> None:
        pass


class Transforming:
    def transform(self, key: Any, value: Any) -> Any:
        fail()


def wrong(key: Any, value: Any, total: Any, *, more: int) -> Any:
    return total


def outer(*given: Any) -> Any:
    return fail(*given)


def outer_of_two(record: Any, context: Any) -> Any:
    fail()


def returns_text(key: Any, value: Any) -> Any:
    return "payload"


def runs_later(key: Any, value: Any) -> Any:
    async def later() -> str:
        return "payload"

    return later()


class Called:
    def __call__(self, value: Any) -> Any:
        fail()

    def method(self, value: Any) -> Any:
        fail()

    def __repr__(self) -> str:
        return "payload"


MINUTE = timedelta(minutes=1)
NEAR = JoinWindows(time_difference=MINUTE)
WINDOWS = TimeWindows(size=MINUTE)
SESSIONS = SessionWindows(inactivity_gap=MINUTE)

OPERATORS: dict[str, tuple[Callable[[Stream], Any], str]] = {
    "join": (lambda s: s.join(s, outer, NEAR, name="n"), placed(outer)),
    "window": (
        lambda s: s.group_by_key().windowed_by(WINDOWS).aggregate(int, outer, store="w"),
        placed(outer),
    ),
    "session": (
        lambda s: s.group_by_key().windowed_by(SESSIONS).aggregate(outer, outer, outer, store="s"),
        placed(outer),
    ),
    "a table's filter": (lambda s: s.to_table().filter(outer), placed(outer)),
    "a table's filter with a store": (
        lambda s: s.to_table().filter(outer, store="f"),
        placed(outer),
    ),
    "a table's mapping": (lambda s: s.to_table().map_values(outer), placed(outer)),
    "a table's group": (
        lambda s: s.to_table(store="t").group_by(outer).count(store="c"),
        placed(outer),
    ),
    "an object that transforms": (
        lambda s: s.to_table(store="t").transform_values(Transforming),
        placed(Transforming.transform, "Transforming.transform"),
    ),
    "a processor": (lambda s: s.process(Failing), placed(Failing.process, "Failing.process")),
    "a processor that is a function": (lambda s: s.process(outer_of_two), placed(outer_of_two)),
    "a punctuator": (lambda s: s.process(Quiet), placed(Failing.tick, "Failing.tick")),
    "a partial": (lambda s: s.map_values(partial(outer, 1)), placed(outer)),
    "an object": (lambda s: s.map_values(Called()), placed(Called.__call__, "Called.__call__")),
    "a method": (lambda s: s.map_values(Called().method), placed(Called.method, "Called.method")),
    "a function in C": (
        lambda s: s.map_values(operator.itemgetter("payload")),
        "operator.itemgetter",
    ),
    "a function in C of a fold": (
        lambda s: s.group_by_key().windowed_by(WINDOWS).reduce(operator.matmul, store="w"),
        "operator.matmul",
    ),
    "what is no pair": (lambda s: s.map(returns_text), placed(returns_text)),
    "what never runs": (lambda s: s.filter(runs_later), placed(runs_later)),
}


@pytest.mark.parametrize("settings", [{}, {"processing.exception.handler": lambda _: "fail"}])
@pytest.mark.parametrize("case", OPERATORS)
def test_the_function_that_failed_is_named_once_with_its_place(case: str, settings: Any) -> None:
    step, function = OPERATORS[case]
    builder = StreamsBuilder()
    step(builder.stream("in", name="read"))
    driver = TopologyTestDriver(builder.build(), settings)
    source = driver.input("in")
    error = failure(lambda: [source.send("k", n, timestamp=int(n * 5000)) for n in (1.5, 2.5)])
    assert error.function == function
    assert str(error).count(f", function {function}, ") == 1
    assert str(error).count(function.rpartition(" ")[2]) == 1
    assert "payload" not in str(error)


def test_where_nothing_tells_which_function_it_was_all_of_the_node_are_named() -> None:
    def start() -> Any:
        return 0

    one_more = partial(wrong, more=1)
    builder = StreamsBuilder()
    group = builder.stream("in").group_by_key().windowed_by(WINDOWS)
    group.aggregate(start, one_more, store="w")
    driver = TopologyTestDriver(builder.build())
    one_more.keywords["another"] = 1
    error = failure(lambda: driver.input("in").send("k", 1))
    assert error.function == f"{placed(start)} or {placed(wrong)}"


def test_an_error_that_no_function_of_the_user_made_names_none() -> None:
    driver = TopologyTestDriver(through(lambda s: s.map_values(lambda v: v), value=serdes.long))
    error = failure(lambda: driver.input("in").send_bytes(b"k", b"short"))
    assert error.function is None
    assert "function" not in str(error)


class OwnSerde:
    """One that fails with other than a `SerdeError`."""

    name = "own"
    immutable = canonical = True

    def serialize(self, value: Any) -> bytes:
        return fail(value)

    def deserialize(self, data: bytes) -> Any:
        return fail(data)


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("settings", [{}, {"deserialization.exception.handler": lambda _: "fail"}])
def test_a_serde_that_raises_what_it_should_not_is_said_with_the_record(
    part: str, settings: Any
) -> None:
    """It is asked again for what is wrong, and raised in the place of the error then."""
    topology = through(lambda s: s, **{part: OwnSerde()})
    driver = TopologyTestDriver(topology, settings)
    error = failure(lambda: driver.input("in").send_bytes(b"1", b"1"))
    assert (error.node, error.offset) == ("read", 0)
    assert error.function == placed(OwnSerde.deserialize, "OwnSerde.deserialize")
    assert "payload" not in str(error)


def test_a_serde_that_raises_what_it_should_not_is_let_go_where_a_handler_says_so() -> None:
    topology = through(lambda s: s, value=OwnSerde())
    driver = TopologyTestDriver(topology, {"deserialization.exception.handler": "continue"})
    driver.input("in").send_bytes(b"1", b"1")
    assert driver.output("out").is_empty
    assert driver.committed_offsets("in") == {0: 1}


def test_a_handler_that_fails_is_named() -> None:
    def handler(failed: Any) -> Any:
        return fail(failed)

    topology = through(lambda s: s.map_values(returns_text_or_fails, name="step"))
    driver = TopologyTestDriver(topology, {"processing.exception.handler": handler})
    error = failure(lambda: driver.input("in").send("k", 1))
    assert "the processing.exception.handler raised KeyError" in str(error)
    assert error.function == placed(handler)


def returns_text_or_fails(value: Any) -> Any:
    raise ValueError(value)


class Third:
    """Fails when it is made for a task, not when the step is added."""

    made = 0

    def __init__(self) -> None:
        Third.made += 1
        if Third.made > 2:
            fail()

    def process(self, record: Any) -> None:
        pass

    def transform(self, key: Any, value: Any) -> Any:
        pass


MADE: dict[str, Callable[[Stream], Any]] = {
    "process": lambda s: s.process(Third, name="step"),
    "process_values": lambda s: s.process_values(Third, name="step"),
    "transform_values": lambda s: s.to_table().transform_values(Third, name="step"),
}


@pytest.mark.parametrize("step", MADE)
def test_what_cannot_be_made_for_a_task_is_named_with_its_node(step: str) -> None:
    Third.made = 0
    builder = StreamsBuilder()
    MADE[step](builder.stream("in", name="read"))
    topology = builder.build()
    Third.made = 2
    with pytest.raises(ProcessorFailedError) as caught:
        TopologyTestDriver(topology).input("in").send("k", 1)
    assert caught.value.node == "step"
    assert caught.value.function == placed(Third.__init__, "Third.__init__")
    assert "payload" not in str(caught.value)


def test_our_own_words_on_a_store_that_is_not_there_are_told() -> None:
    class Asks(Processor[Any, Any, Any, Any]):
        def process(self, record: Any) -> None:
            self.context.store("nostore")

    builder = StreamsBuilder()
    builder.stream("in").process(Asks).to("out")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(RecordError, match=r"nostore.*node"):
        driver.input("in").send("k", 1)


def test_bytes_of_a_row_that_another_version_wrote_are_not_the_records_fault() -> None:
    """As after another serde of a store: whoever left the record out would lose a good one."""
    builder = StreamsBuilder()
    texts = builder.stream("in", key=serdes.string, value=serdes.string).group_by_key()
    serde = _Later()
    totals = texts.aggregate(str, lambda _, text, old: old + text, store="g", value=serde)
    totals.to_stream().to("out")
    settings = {"statestore.read.cache.max.bytes": 0}
    with TopologyTestDriver(builder.build(), settings) as driver:
        driver.input("in").send("k", "a")
        serde.is_another = True
        with pytest.raises(RecordError, match="serde 'later' cannot decode") as caught:
            driver.input("in").send("k", "b")
    said = str(caught.value)
    assert "these may be bytes of a row of store 'g' that another version has written" in said
    assert said.endswith("run the version that wrote store 'g', or give the store another name")


def test_a_value_that_a_store_does_not_take_is_no_other_versions() -> None:
    builder = StreamsBuilder()
    texts = builder.stream("in", key=serdes.string, value=serdes.string).group_by_key()
    texts.aggregate(str, lambda _, text, old: old + text, store="g", value=serdes.long)
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(RecordError, match="cannot encode") as caught,
    ):
        driver.input("in").send("k", "a")
    assert "another version" not in str(caught.value)


class _Later:
    """Reads what it has written until it is another one."""

    name = "later"
    immutable = canonical = True
    is_another = False

    def serialize(self, value: str) -> bytes:
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        if self.is_another:
            raise SerdeError("serde 'later' cannot decode a byte")
        return data.decode()


@pytest.mark.parametrize("duration", [5, 0.5, "5", None])
def test_a_duration_is_a_timedelta(duration: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(TypeError, match="duration must be a timedelta"):
        driver.advance(duration)
    with pytest.raises(TypeError, match="step must be a timedelta"):
        driver.input("in", step=duration)
    with pytest.raises(ValueError, match="duration -1 day, 0:00:00 is negative"):
        driver.advance(timedelta(days=-1))
