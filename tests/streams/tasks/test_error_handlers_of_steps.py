"""Handlers and the steps that are objects: windows, joins, processors and their punctuators."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.config.handlers import Answer, Failure
from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import Processor, ProcessorContext, Record, StreamsBuilder, Topology, serdes
from headrace.topology.windows import JoinWindows, TimeWindows

DEAD = "dead-letters"
CONTINUE = {
    "processing.exception.handler": "continue",
    "errors.dead.letter.queue.topic.name": DEAD,
    "statestore.cache.max.bytes": 0,
    "default.key.serde": "string",
}
MS = timedelta(milliseconds=1)
AnyRecord = Record[Any, Any]


def skips(driver: TopologyTestDriver) -> list[tuple[Any, ...]]:
    """Topic, offset, node and error of the records that were let go."""
    names = ("topic", "offset", "node", "error")
    events = [e for e in driver.events if e["event"] == "record_skipped"]
    return [tuple(event[name] for name in names) for event in events]


def odd(value: Any) -> Any:
    if value == 13:
        raise ValueError
    return value


def values(driver: TopologyTestDriver, topic: str = "out", **options: Any) -> list[Any]:
    return [record.value for record in driver.output(topic, **options).read_all()]


def test_a_null_result_that_fails_holds_back_none_of_the_others() -> None:
    def pair(value: Any, other: Any) -> Any:
        return [odd(value), other]

    builder = StreamsBuilder()
    left, right = builder.stream("left"), builder.stream("right")
    windows = JoinWindows(time_difference=10 * MS)
    left.left_join(right, pair, windows, name="join").to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE)
    for key, number in (("a", 13), ("b", 1), ("c", 2)):
        driver.input("left").send(key, number, timestamp=0)
    driver.input("right").send("z", 0, timestamp=20)
    assert values(driver) == [[1, None], [2, None]]


def test_a_windowed_fold_that_fails_leaves_its_windows_as_they_were() -> None:
    def fold(_: Any, value: Any, seen: list[Any]) -> list[Any]:
        seen.append(value)
        odd(value)
        return seen

    builder = StreamsBuilder()
    windowed = builder.stream("in").group_by_key().windowed_by(TimeWindows(size=10 * MS))
    windowed.aggregate(list, fold, store="rows", name="fold").to_stream().map(
        lambda key, value: (key.key, value)
    ).to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE)
    for time, number in enumerate((1, 13, 2)):
        driver.input("in").send("k", number, timestamp=time)
    assert values(driver) == [[1], [1, 2]]
    assert skips(driver) == [("in", 1, "fold", "ValueError")]
    assert values(driver, DEAD) == [b"13"]


def test_what_fails_behind_a_windowed_fold_is_not_the_folds_failure() -> None:
    """The fold calls what follows it, and a failure there must not come back to it."""
    builder = StreamsBuilder()
    windowed = builder.stream("in").group_by_key().windowed_by(TimeWindows(size=10 * MS))
    counts = windowed.count(store="rows", name="fold").to_stream()
    counts.map_values(lambda n: odd(n + 11), name="bad").map(lambda k, v: (k.key, v)).to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE)
    for time in range(3):
        driver.input("in").send("k", 1, timestamp=time)
    assert values(driver) == [12, 14]
    assert skips(driver) == [("in", 1, "bad", "ValueError")]


@pytest.mark.parametrize("store", [None, "halves"])
def test_a_group_forgets_a_row_that_a_mapping_above_it_fails_on(store: str | None) -> None:
    builder = StreamsBuilder()
    rows = builder.table("in", store="rows")
    halves = rows.map_values(lambda value: 10 // value, name="half", store=store)
    halves.to_stream().to("out")
    groups = halves.group_by(lambda key, value: (str(value), key), key=serdes.string)
    groups.count(store="counts")
    driver = TopologyTestDriver(builder.build(), CONTINUE)
    driver.input("in").send_many([("a", 5), ("a", 0), ("a", 0), ("a", 2)])
    assert values(driver) == [2, None, 5]
    assert {key: count for key, count in driver.store("counts").items() if count} == {"5": 1}
    assert skips(driver) == [("in", 1, "half", "ZeroDivisionError")]


@pytest.mark.parametrize("store", [None, "large"])
def test_a_join_forgets_a_row_that_a_filter_below_it_fails_on(store: str | None) -> None:
    builder = StreamsBuilder()
    rows, others = builder.table("in", store="rows"), builder.table("others", store="others")
    large = rows.filter(lambda key, value: odd(value) > 3, store=store)
    others.left_join(large, lambda other, value: [other, value]).to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE)
    driver.input("others").send("a", "x")
    driver.input("in").send_many([("a", 5), ("a", 13), ("a", 7)])
    assert values(driver) == [["x", None], ["x", 5], ["x", None], ["x", 7]]


class Odd:
    def transform(self, _: Any, value: Any) -> Any:
        return odd(value)


def test_a_row_that_a_transformer_fails_on_counts_as_deleted() -> None:
    builder = StreamsBuilder()
    builder.table("in", store="rows").transform_values(Odd, store="odd").to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE)
    driver.input("in").send_many([("a", 5), ("a", 13), ("a", 7)])
    assert values(driver) == [5, None, 7]
    assert skips(driver)[0][:2] == ("in", 1)


@pytest.mark.parametrize("fails_in", ["foreign_key", "joiner"])
def test_a_row_that_a_foreign_key_join_fails_on_counts_as_deleted(fails_in: str) -> None:
    builder = StreamsBuilder()
    rows, others = builder.table("in", store="rows"), builder.table("others", store="others")
    fails_in_key, fails_in_joiner = fails_in == "foreign_key", fails_in == "joiner"
    joined = rows.left_join(
        others,
        lambda value, other: [odd(value) if fails_in_joiner else value, other],
        foreign_key=lambda value: f"of {odd(value) if fails_in_key else value}",
        name="fk",
        store="joined",
    )
    joined.to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE)
    for value in (5, 13, 7):
        driver.input("in").send("a", value)
    driver.input("others").send("of 5", "no longer asked for")
    assert values(driver) == [[5, None], None, [7, None]]
    assert [error for *_, error in skips(driver)] == ["ValueError"]


def test_a_joiner_that_fails_lets_its_record_go() -> None:
    builder = StreamsBuilder()
    table = builder.table("table", store="rows")
    stream = builder.stream("in")
    stream.join(table, lambda left, right: odd(left) + right, name="join").to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE)
    driver.input("table").send("k", 100)
    for number in (1, 13, 2):
        driver.input("in").send("k", number)
    assert values(driver) == [101, 102]
    assert skips(driver) == [("in", 1, "join", "ValueError")]


class Forwards(Processor[Any, Any, Any, Any]):
    """Forwards each record twice, and fails between on 13; fails at each tenth millisecond."""

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        super().init(context)
        context.schedule(10 * MS, self.tick, kind="stream_time")

    def process(self, record: AnyRecord) -> None:
        self.context.forward(record)
        odd(record.value)
        self.context.forward(record)

    def tick(self, now: int) -> None:
        self.context.forward(Record("tick", now, now))
        if now:
            raise KeyError


def processed(*, bad_sink: bool = False) -> Topology:
    topology = Topology().add_source("read", "in").add_processor("step", Forwards, "read")
    if not bad_sink:
        return topology.add_sink("write", "out", "step")
    return topology.add_sink("write", "out", "step", value=serdes.string)


def test_a_processor_that_fails_lets_its_record_go_after_what_it_has_forwarded() -> None:
    """As in Kafka Streams."""
    driver = TopologyTestDriver(processed(), CONTINUE)
    for number in (1, 13, 2):
        driver.input("in").send("k", number, timestamp=0)
    assert values(driver) == [1, 1, 0, 13, 2, 2]
    assert skips(driver) == [("in", 1, "step", "ValueError")]
    assert values(driver, DEAD) == [b"13"]


@pytest.mark.parametrize("handler", ["fail", "continue"])
def test_what_fails_behind_a_processor_does_not_come_back_to_it(handler: str) -> None:
    asked: list[Failure] = []

    def production(failure: Failure) -> Answer:
        asked.append(failure)
        return "fail" if handler == "fail" else "continue"

    settings = {**CONTINUE, "production.exception.handler": production}
    driver = TopologyTestDriver(processed(bad_sink=True), settings)
    if handler == "fail":
        with pytest.raises(RecordError, match="cannot encode") as caught:
            driver.input("in").send("k", 1, timestamp=5)
        assert (caught.value.node, caught.value.offset) == ("write", 0)
        assert len(asked) == 1
    else:
        driver.input("in").send("k", 1, timestamp=0)
        assert [(f.node, f.part, f.offset) for f in asked[:2]] == [("write", "value", 0)] * 2
        (at_tick,) = asked[2:]
        assert (at_tick.node, at_tick.topic, at_tick.offset, at_tick.value) == (
            "write",
            None,
            None,
            None,
        )


def test_a_punctuator_that_fails_goes_on_at_its_next_time() -> None:
    """KIP-1033 covers punctuators; no input record is behind them."""
    driver = TopologyTestDriver(processed(), CONTINUE)
    for time in (0, 10, 20):
        driver.input("in").send("k", 1, timestamp=time)
    assert values(driver) == [1, 1, 0, 1, 1, 10, 1, 1, 20]
    assert skips(driver) == [(None, None, "step", "KeyError")] * 2
    letters = driver.output(DEAD).read_all()
    assert [(r.key, r.value, r.timestamp) for r in letters] == [
        (None, None, 10),
        (None, None, 20),
    ]


def test_without_a_handler_a_punctuator_that_fails_stops_the_application() -> None:
    driver = TopologyTestDriver(processed())
    driver.input("in").send("k", 1, timestamp=0)
    with pytest.raises(RecordError, match="a user function raised KeyError") as caught:
        driver.input("in").send("k", 1, timestamp=10)
    assert caught.value.node == "step"
