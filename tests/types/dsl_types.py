"""What a type checker knows across the whole DSL. Nothing here runs: `make lint` reads it.

Keys are text and values are numbers unless a step says otherwise, so that a type that is taken from
the wrong side shows. Each assertion can fail: `test_dsl_types.py` beside this file makes each of
them wrong, and asks the type checker again.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_type

from headrace.streams import KafkaStreams, TopologyTestDriver
from headrace.streams.testing.driver import OutputRecord, TestInput, TestOutput
from headrace.topology import (
    BranchedKStream,
    CogroupedKStream,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    GlobalKTable,
    InputRecord,
    JoinWindows,
    KeyValueStore,
    KGroupedStream,
    KGroupedTable,
    KStream,
    KTable,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    Serde,
    SessionStore,
    SessionWindowedCogroupedKStream,
    SessionWindowedKStream,
    SessionWindows,
    SlidingWindows,
    StoreBuilder,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimestampedKeyValueStore,
    TimestampedWindowStore,
    TimeWindowedCogroupedKStream,
    TimeWindowedKStream,
    TimeWindows,
    Topology,
    UnlimitedWindows,
    ValueAndTimestamp,
    VersionedStore,
    Window,
    Windowed,
    WindowStore,
    serdes,
)
from headrace.topology.processors.stores import in_memory
from headrace.topology.serdes import avro
from headrace.topology.serdes.windows_serde import SessionWindowedSerde, TimeWindowedSerde

MINUTE = timedelta(minutes=1)
NEAR = JoinWindows(time_difference=MINUTE)


@dataclass(frozen=True)
class Order:
    """A value of a class of one's own."""

    customer: bytes
    price: float


Numbers = KStream[str, int]


def sources(builder: StreamsBuilder, stream: Numbers) -> None:
    """A stream, a table and a global table have the types of their serdes, or none."""
    assert_type(stream, KStream[str, int])
    assert_type(builder.stream("t", key=serdes.string), KStream[str, Any])
    assert_type(builder.stream(["t", "u"], value=serdes.long), KStream[Any, int])
    assert_type(builder.stream("t"), KStream[Any, Any])
    table = builder.table("t", key=serdes.string, value=serdes.long, store=Materialized("rows"))
    assert_type(table, KTable[str, int])
    assert_type(builder.table("t", key=serdes.string), KTable[str, Any])
    assert_type(builder.table("t", value=serdes.long), KTable[Any, int])
    assert_type(builder.table("t"), KTable[Any, Any])
    everywhere = builder.global_table("t", key=serdes.string, value=serdes.long)
    assert_type(everywhere, GlobalKTable[str, int])
    assert_type(builder.global_table("t", key=serdes.string), GlobalKTable[str, Any])
    assert_type(builder.global_table("t", value=serdes.long), GlobalKTable[Any, int])
    assert_type(builder.global_table("t"), GlobalKTable[Any, Any])

    def at(record: InputRecord, partition_time: int) -> datetime | int:
        assert_type(record.timestamp, int)
        return record.timestamp or partition_time

    assert_type(builder.stream("t", value=serdes.long, timestamps=at), KStream[Any, int])
    assert_type(builder.build(), Topology)
    assert_type(KafkaStreams(builder.build(), {}).run(), None)


def serdes_of_all_kinds() -> None:
    """A serde is that of its values."""
    assert_type(serdes.string, Serde[str])
    assert_type(serdes.bytes, Serde[builtins.bytes])
    assert_type(serdes.integer, Serde[int])
    assert_type(serdes.long, Serde[int])
    assert_type(serdes.double, Serde[float])
    assert_type(serdes.json, Serde[Any])
    assert_type(serdes.json_of(Order), Serde[Order])
    assert_type(serdes.json_of(list[Order]), Serde[list[Order]])
    assert_type(serdes.list_of(serdes.long), Serde[list[int]])
    assert_type(serdes.list_of(serdes.string, nulls=True), Serde[list[str | None]])
    assert_type(serdes.time_windowed(serdes.string, size=MINUTE), TimeWindowedSerde[str])
    assert_type(serdes.session_windowed(serdes.long), SessionWindowedSerde[int])
    words = serdes.serde_from(name="word", serialize=str.encode, deserialize=bytes.decode)
    assert_type(words, Serde[str])
    registry = avro.MemoryRegistry()
    assert_type(avro.serde("long"), Serde[Any])
    assert_type(avro.serde("{}", into=Order), Serde[Order])
    assert_type(avro.registered("long", registry=registry), Serde[Any])
    assert_type(avro.registered("{}", registry=registry, into=Order), Serde[Order])


def windowed_serdes_serve_as_others_do(builder: StreamsBuilder) -> None:
    """What wrote a windowed table can read it."""
    minutes = serdes.time_windowed(serdes.string, size=MINUTE)
    assert_type(builder.stream("t", key=minutes), KStream[Windowed[str], Any])
    sessions = serdes.session_windowed(serdes.long)
    table = builder.table("t", key=sessions, value=serdes.double)
    assert_type(table, KTable[Windowed[int], float])


def stateless_steps(stream: Numbers) -> None:
    """Each step has the types that its function returns."""
    assert_type(stream.filter(lambda k, v: v > len(k)), KStream[str, int])
    assert_type(stream.filter_not(lambda k, v: v > len(k)), KStream[str, int])
    assert_type(stream.sample(0.5, by="value", serde=serdes.long), KStream[str, int])
    assert_type(stream.deduplicate(within=MINUTE), KStream[str, int])
    assert_type(stream.deduplicate(within=MINUTE, key=lambda v: v + 1), KStream[str, int])
    assert_type(
        stream.deduplicate(within=MINUTE, key=lambda k, v: k.encode() * v, with_key=True),
        KStream[str, int],
    )
    assert_type(stream.map(lambda k, v: (v, k.encode())), KStream[int, bytes])
    assert_type(stream.map_values(float), KStream[str, float])
    assert_type(stream.map_values(lambda v: str(v)), KStream[str, str])
    assert_type(stream.map_values(lambda k, v: k * v, with_key=True), KStream[str, str])
    assert_type(stream.flat_map(lambda k, v: [(v, k)]), KStream[int, str])
    assert_type(stream.flat_map_values(lambda v: [str(v)]), KStream[str, str])
    assert_type(stream.flat_map_values(lambda k, v: {k: v}, with_key=True), KStream[str, str])
    assert_type(stream.select_key(lambda k, v: (k, v)), KStream[tuple[str, int], int])
    assert_type(stream.peek(print), KStream[str, int])
    assert_type(stream.merge(stream), KStream[str, int])
    assert_type(stream.repartition(partitions=3, name="r"), KStream[str, int])
    assert_type(stream.to_table(store="rows"), KTable[str, int])
    assert_type(stream.for_each(print), None)
    assert_type(stream.print(label="p"), None)
    assert_type(stream.to("t", key=serdes.string), None)
    assert_type(stream.to(lambda k, v: k * v), None)
    split = stream.split(name="s").branch(lambda k, v: v > len(k), name="large")
    assert_type(split, BranchedKStream[str, int])
    assert_type(split.default_branch(name="small"), dict[str, KStream[str, int]])
    assert_type(split.no_default_branch(), dict[str, KStream[str, int]])


def of_a_generator(order: Order) -> Iterator[float]:
    """Any iterable does for `flat_map_values`."""
    yield order.price


def total(key: str, value: int, so_far: float) -> float:
    """An aggregator."""
    return so_far + value * len(key)


def both(key: str, one: float, other: float) -> float:
    """A merger of sessions."""
    return one + other * len(key)


def groups_and_folds(builder: StreamsBuilder, stream: Numbers) -> None:
    """A fold has the group's keys and its own values."""
    orders = builder.stream("o", value=serdes.json_of(Order))
    assert_type(orders.flat_map_values(of_a_generator), KStream[Any, float])
    by_customer = orders.group_by(lambda _, order: order.customer, key=serdes.bytes)
    assert_type(by_customer, KGroupedStream[bytes, Order])
    group = stream.group_by_key()
    assert_type(group, KGroupedStream[str, int])
    assert_type(group.count(store="n"), KTable[str, int])
    assert_type(by_customer.count(), KTable[bytes, int])
    assert_type(by_customer.reduce(lambda a, b: a), KTable[bytes, Order])
    assert_type(group.reduce(max), KTable[str, int])
    assert_type(group.reduce(max, merger=lambda k, a, b: max(a, b, len(k))), KTable[str, int])
    assert_type(group.aggregate(float, total, value=serdes.double), KTable[str, float])
    assert_type(group.aggregate(float, total, merger=both), KTable[str, float])
    assert_type(group.aggregate(lambda: 0.0, total), KTable[str, float])


def late_numbers(stream: Numbers) -> None:
    """What is done with late records."""
    assert_type(stream.to("late"), None)


def folds_by_windows(stream: Numbers) -> None:
    """Keys of windowed tables are windowed, whatever the windows are."""
    group = stream.group_by_key()
    tumbling = group.windowed_by(
        TimeWindows(size=MINUTE), emit="on_window_close", late=late_numbers
    )
    assert_type(tumbling, TimeWindowedKStream[str, int])
    sliding = group.windowed_by(SlidingWindows(time_difference=MINUTE))
    assert_type(sliding, TimeWindowedKStream[str, int])
    unlimited = group.windowed_by(UnlimitedWindows(), late=lambda late: late.to("late"))
    assert_type(unlimited, TimeWindowedKStream[str, int])
    sessions = group.windowed_by(SessionWindows(inactivity_gap=MINUTE), late=late_numbers)
    assert_type(sessions, SessionWindowedKStream[str, int])
    assert_type(tumbling.count(), KTable[Windowed[str], int])
    assert_type(tumbling.reduce(max), KTable[Windowed[str], int])
    assert_type(tumbling.aggregate(float, total), KTable[Windowed[str], float])
    assert_type(sessions.count(), KTable[Windowed[str], int])
    assert_type(sessions.reduce(max), KTable[Windowed[str], int])
    assert_type(sessions.aggregate(float, total, both), KTable[Windowed[str], float])


def windowed_tables(stream: Numbers) -> None:
    """They are tables like others, and their keys tell their windows."""
    counts = stream.group_by_key().windowed_by(TimeWindows(size=MINUTE)).count()
    final = counts.suppress(Suppressed.until_window_closes(), name="final")
    assert_type(final, KTable[Windowed[str], int])
    assert_type(final.filter(lambda k, v: v > k.window.start_ms), KTable[Windowed[str], int])
    assert_type(final.to_stream(), KStream[Windowed[str], int])
    assert_type(final.to_stream(lambda k, _: k.window.start), KStream[datetime, int])
    named = final.to_stream().map(lambda k, v: (k.key, (k.window.end, v)))
    assert_type(named, KStream[str, tuple[datetime, int]])
    assert_type(Windowed("k", Window(0, 1)), Windowed[str])
    assert_type(Window(0, 1).end_ms, int)
    limited = stream.to_table().suppress(Suppressed.until_time_limit(MINUTE))
    assert_type(limited, KTable[str, int])


def cogroups(stream: Numbers, words: KStream[str, str]) -> None:
    """Streams of any values are folded into one aggregate, with windows or without."""

    def add_length(key: str, word: str, so_far: float) -> float:
        return so_far + len(key) + len(word)

    group = stream.group_by_key().cogroup(total).cogroup(words.group_by_key(), add_length)
    assert_type(group, CogroupedKStream[str, float])
    assert_type(group.aggregate(float), KTable[str, float])
    minutes = group.windowed_by(TimeWindows(size=MINUTE))
    assert_type(minutes, TimeWindowedCogroupedKStream[str, float])
    assert_type(minutes.aggregate(float), KTable[Windowed[str], float])
    sliding = group.windowed_by(SlidingWindows(time_difference=MINUTE))
    assert_type(sliding, TimeWindowedCogroupedKStream[str, float])
    sessions = group.windowed_by(SessionWindows(inactivity_gap=MINUTE))
    assert_type(sessions, SessionWindowedCogroupedKStream[str, float])
    assert_type(sessions.aggregate(float, both), KTable[Windowed[str], float])


class Doubled:
    """Transforms the values of a table."""

    def transform(self, key: str, value: int | None) -> float | None:
        """None for a row that is gone."""
        return None if value is None else 2.0 * value * len(key)


def tables(table: KTable[str, int]) -> None:
    """A table's functions get values, never None; what they return may be None for no row."""
    assert_type(table.filter(lambda k, v: v > len(k)), KTable[str, int])
    assert_type(table.filter_not(lambda k, v: v > len(k), store="kept"), KTable[str, int])
    assert_type(table.map_values(float), KTable[str, float])
    assert_type(table.map_values(lambda v: str(v) if v else None), KTable[str, str])
    assert_type(table.map_values(lambda k, v: k * v, with_key=True), KTable[str, str])
    assert_type(table.transform_values(Doubled), KTable[str, float])
    assert_type(table.to_stream(), KStream[str, int])
    assert_type(table.to_stream(lambda k, v: (k, v)), KStream[tuple[str, int], int])
    group = table.group_by(lambda k, v: (v, k.encode()))
    assert_type(group, KGroupedTable[int, bytes])
    assert_type(group.count(), KTable[int, int])
    assert_type(group.reduce(max, min), KTable[int, bytes])
    lengths = group.aggregate(float, lambda k, v, n: n + len(v) * k, lambda k, v, n: n - len(v) * k)
    assert_type(lengths, KTable[int, float])


def joined(value: int, other: bytes) -> complex:
    """A joiner that takes no None."""
    return value + len(other)


def joined_of(key: str, value: int, other: bytes) -> complex:
    """The same, with the key."""
    return len(key) + value + len(other)


def left(value: int, other: bytes | None) -> complex:
    """A joiner of a left join."""
    return value + len(other or b"")


def left_of(key: str, value: int, other: bytes | None) -> complex:
    """The same, with the key."""
    return len(key) + value + len(other or b"")


def outer(value: int | None, other: bytes | None) -> complex:
    """A joiner of an outer join."""
    return (value or 0) + len(other or b"")


def outer_of(key: str, value: int | None, other: bytes | None) -> complex:
    """The same, with the key."""
    return len(key) + (value or 0) + len(other or b"")


def joins_of_streams(a: Numbers, b: KStream[str, bytes]) -> None:
    """A join has the keys of its sides, and the values of its joiner."""
    assert_type(a.join(b, joined, NEAR, store="j"), KStream[str, complex])
    assert_type(a.join(b, joined_of, NEAR, with_key=True), KStream[str, complex])
    assert_type(a.left_join(b, left, NEAR, late_match="drop"), KStream[str, complex])
    assert_type(a.left_join(b, left_of, NEAR, with_key=True), KStream[str, complex])
    assert_type(a.outer_join(b, outer, NEAR), KStream[str, complex])
    assert_type(a.outer_join(b, outer_of, NEAR, with_key=True), KStream[str, complex])
    assert_type(a.join(a, lambda one, other: (one, other), NEAR), KStream[str, tuple[int, int]])
    late = a.join(b, joined, NEAR, late=late_numbers, other_late=lambda late: late.to("late"))
    assert_type(late, KStream[str, complex])


def joins_with_tables(a: Numbers, b: KTable[str, bytes], c: GlobalKTable[float, bytes]) -> None:
    """A global table may have other keys than the stream that looks them up."""
    assert_type(a.join(b, joined, grace=MINUTE), KStream[str, complex])
    assert_type(a.join(b, joined_of, with_key=True), KStream[str, complex])
    assert_type(a.left_join(b, left), KStream[str, complex])
    assert_type(a.left_join(b, left_of, with_key=True), KStream[str, complex])

    def at(key: str, value: int) -> float | None:
        return len(key) / value

    assert_type(a.join(c, joined, key_mapper=at), KStream[str, complex])
    assert_type(a.join(c, joined_of, key_mapper=at, with_key=True), KStream[str, complex])
    assert_type(a.left_join(c, left, key_mapper=at), KStream[str, complex])
    assert_type(a.left_join(c, left_of, key_mapper=at, with_key=True), KStream[str, complex])


def joins_of_tables(a: KTable[str, int], b: KTable[str, bytes], c: KTable[float, bytes]) -> None:
    """By key, and by a foreign key, which may be of another type than the key."""
    assert_type(a.join(b, joined), KTable[str, complex])
    assert_type(a.left_join(b, left), KTable[str, complex])
    assert_type(a.outer_join(b, outer), KTable[str, complex])
    assert_type(a.join(b, lambda v, w: w if v else None), KTable[str, bytes])
    assert_type(a.join(c, joined, foreign_key=float), KTable[str, complex])
    assert_type(a.left_join(c, left, foreign_key=lambda v: v / 2), KTable[str, complex])

    def at(key: str, value: int) -> float | None:
        return len(key) / value

    assert_type(a.join(c, joined_of, foreign_key=at, with_key=True), KTable[str, complex])
    assert_type(a.left_join(c, left_of, foreign_key=at, with_key=True), KTable[str, complex])


SEEN = Stores.key_value("seen", key=serdes.string, value=serdes.long)


class Halved(Processor[str, int, bytes, float]):
    """May change keys."""

    def process(self, record: Record[str, int]) -> None:
        """A store has the types of what describes it."""
        assert_type(record.key, str)
        assert_type(record.value, int)
        assert_type(self.context, ProcessorContext[bytes, float])
        assert_type(self.context.store(SEEN), KeyValueStore[str, int])
        assert_type(self.context.store(SEEN).get("a"), int | None)
        self.context.forward(record.with_key(record.key.encode()).with_value(record.value / 2))


class Named(FixedKeyProcessor[str, int, bytes]):
    """Leaves keys as they are."""

    def process(self, record: FixedKeyRecord[str, int]) -> None:
        """Another value, under the same key."""
        assert_type(record.with_value(b""), FixedKeyRecord[str, bytes])
        self.context.forward(record.with_value(record.key.encode() * record.value))


def halve(record: Record[str, int], context: ProcessorContext[bytes, float]) -> None:
    """A processor that is a function."""
    context.forward(Record(record.key.encode(), record.value / 2, record.timestamp))


def name(record: FixedKeyRecord[str, int], context: FixedKeyProcessorContext[str, bytes]) -> None:
    """The same, under the same keys."""
    context.forward(record.with_value(record.key.encode() * record.value))


def processors(stream: Numbers) -> None:
    """A stream behind a processor has the types of what it forwards; a lambda does not tell."""
    assert_type(stream.process(Halved, stores=[SEEN]), KStream[bytes, float])
    assert_type(stream.process(halve, name="halve"), KStream[bytes, float])
    assert_type(stream.process(lambda r, c: c.forward(r)), KStream[Any, Any])
    assert_type(stream.process_values(Named), KStream[str, bytes])
    assert_type(stream.process_values(name), KStream[str, bytes])
    assert_type(stream.process_values(lambda r, c: c.forward(r)), KStream[str, Any])
    topology = Topology().add_source("s", "t", key=serdes.string).add_processor("p", Halved, "s")
    assert_type(topology.add_state_store(SEEN, "p").add_sink("w", "u", "p"), Topology)


class Names:
    """A store of one's own."""

    def __init__(self, rows: KeyValueStore[str, int]) -> None:
        self.rows = rows


def stores() -> None:
    """A store has the types of its serdes, and what is read of it may be None."""
    of: dict[str, Any] = {}
    assert_type(SEEN, StoreBuilder[KeyValueStore[str, int]])
    text, number = serdes.string, serdes.long
    timed = Stores.timestamped_key_value("s", key=text, value=number)
    assert_type(timed, StoreBuilder[TimestampedKeyValueStore[str, int]])
    assert_type(in_memory(timed).get("a"), ValueAndTimestamp[int] | None)
    sums = Stores.window("s", key=text, value=number, size=MINUTE, retention=MINUTE)
    assert_type(sums, StoreBuilder[WindowStore[str, int]])
    last = Stores.timestamped_window("s", key=text, value=number, size=MINUTE, retention=MINUTE)
    assert_type(last, StoreBuilder[TimestampedWindowStore[str, int]])
    visits = Stores.session("s", key=text, value=number, retention=MINUTE)
    assert_type(visits, StoreBuilder[SessionStore[str, int]])
    prices = Stores.versioned("s", key=text, value=number, history=MINUTE)
    assert_type(prices, StoreBuilder[VersionedStore[str, int]])
    own = Stores.custom("s", Names, key=text, value=number, **of)
    assert_type(own, StoreBuilder[Names])
    assert_type(in_memory(own), Names)


def the_test_driver(topology: Topology) -> None:
    """Inputs and outputs have the types of the serdes that they are given."""
    with TopologyTestDriver(topology) as driver:
        assert_type(driver, TopologyTestDriver)
        text, number = serdes.string, serdes.long
        assert_type(driver.input("t", key=text, value=number), TestInput[str, int])
        assert_type(driver.input("t"), TestInput[Any, Any])
        assert_type(driver.input("t", key=text), TestInput[str, Any])
        assert_type(driver.output("u", value=number), TestOutput[Any, int])
        output = driver.output("u", key=text, value=number)
        assert_type(output, TestOutput[str, int])
        assert_type(output.read(), OutputRecord[str, int])
        assert_type(output.read().value, int | None)
        assert_type(output.as_dict(), dict[str | None, int])
