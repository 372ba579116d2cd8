"""What a type checker knows of processors and their stores (read by mypy, see test_dsl_types)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from headrace.topology import (
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    KeyValueStore,
    KStream,
    Processor,
    ProcessorContext,
    Record,
    SessionStore,
    Stores,
    StreamsBuilder,
    TimestampedKeyValueStore,
    WindowStore,
    serdes,
)
from headrace.topology.processors.stores import StoreBuilder

MINUTE = timedelta(minutes=1)
SEEN = Stores.key_value("seen", key=serdes.string, value=serdes.long)


class Length(Processor[str, str, int, float]):
    def process(self, record: Record[str, str]) -> None:
        assert_type(self.context.store(SEEN), KeyValueStore[str, int])
        assert_type(self.context.store(SEEN).get("a"), int | None)
        self.context.forward(record.with_key(1).with_value(float(len(record.value))))


class Half(FixedKeyProcessor[int, float, str]):
    def process(self, record: FixedKeyRecord[int, float]) -> None:
        assert_type(record.with_value("x"), FixedKeyRecord[int, str])
        self.context.forward(record.with_value(str(record.value / 2)))


def encode(record: FixedKeyRecord[int, str], context: FixedKeyProcessorContext[int, bytes]) -> None:
    context.forward(record.with_value(record.value.encode()))


def measure(record: Record[int, bytes], context: ProcessorContext[str, int]) -> None:
    context.forward(Record("k", len(record.value), 0))


def test_a_stream_behind_a_processor_has_the_types_of_what_it_forwards() -> None:
    words = StreamsBuilder().stream("in", key=serdes.string, value=serdes.string)
    lengths = words.process(Length, stores=[SEEN])
    assert_type(lengths, KStream[int, float])
    assert_type(lengths.process_values(Half), KStream[int, str])
    assert_type(lengths.process_values(lambda: Half()), KStream[int, str])
    encoded = lengths.process_values(Half).process_values(encode)
    assert_type(encoded, KStream[int, bytes])
    assert_type(encoded.process(measure), KStream[str, int])


def test_of_a_lambda_only_what_goes_in_is_known() -> None:
    words = StreamsBuilder().stream("in", key=serdes.string, value=serdes.string)
    assert_type(words.process(lambda r, c: c.forward(r)), KStream[Any, Any])
    assert_type(words.process_values(lambda r, c: c.forward(r)), KStream[str, Any])


def test_a_store_has_the_types_of_its_serdes() -> None:
    last = Stores.timestamped_key_value("a", key=serdes.string, value=serdes.long)
    assert_type(last, StoreBuilder[TimestampedKeyValueStore[str, int]])
    sums = Stores.window("b", key=serdes.string, value=serdes.long, size=MINUTE, retention=MINUTE)
    assert_type(sums, StoreBuilder[WindowStore[str, int]])
    visits = Stores.session("c", key=serdes.string, value=serdes.long, retention=MINUTE)
    assert_type(visits, StoreBuilder[SessionStore[str, int]])
    assert_type(
        Stores.custom("d", Names, key=serdes.string, value=serdes.long), StoreBuilder[Names]
    )


class Names:
    def __init__(self, rows: KeyValueStore[str, int]) -> None:
        self.rows = rows
