"""`process` and `process_values` behind streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.streams.errors import RecordError
from headrace.topology import (
    FixedKeyProcessor,
    FixedKeyRecord,
    Record,
    Stores,
    StreamsBuilder,
    TopologyError,
    serdes,
)
from tests.support.operators import HEADERS, Stream, driver_of, pairs, results

SEEN = Stores.key_value("seen", key=serdes.string, value=serdes.long)


class Numbered(FixedKeyProcessor[str, str, str]):
    """Puts the number of the key's record in front of each value."""

    stores = (SEEN,)

    def process(self, record: FixedKeyRecord[str, str]) -> None:
        seen = self.context.store(SEEN)
        number = (seen.get(record.key) or 0) + 1
        seen.put(record.key, number)
        self.context.forward(record.with_value(f"{number} {record.value}"))


def test_values_are_changed_with_state_and_keys_stay() -> None:
    found = results(lambda s: s.process_values(Numbered), [("a", "x"), ("b", "y"), ("a", "z")])
    assert found == [("a", "1 x"), ("b", "1 y"), ("a", "2 z")]


def test_a_function_will_do() -> None:
    def twice(record: Any, context: Any) -> None:
        context.forward(record)
        context.forward(record.with_value(record.value * 2))

    assert results(lambda s: s.process_values(twice), [("a", "x")]) == [("a", "x"), ("a", "xx")]
    assert results(lambda s: s.process(twice), [("a", "x")]) == [("a", "x"), ("a", "xx")]


def test_time_and_headers_are_kept_unless_they_are_changed() -> None:
    """Traps 30 and 31."""

    def act(record: Any, context: Any) -> None:
        context.forward(record.with_value("same"))
        context.forward(record.with_timestamp(9).with_headers(None))

    driver = driver_of(lambda s: s.process_values(act))
    driver.input("in").send("k", "v", timestamp=5, headers=HEADERS)
    found = [(r.value, r.timestamp, list(r.headers or [])) for r in driver.output("out").read_all()]
    assert found == [("same", 5, HEADERS), ("v", 9, [])]


def test_a_record_of_another_kind_is_refused_as_it_could_have_another_key() -> None:
    def act(record: Any, context: Any) -> None:
        context.forward(Record("other", record.value, record.timestamp))

    driver = driver_of(lambda s: s.process_values(act))
    with pytest.raises(RecordError) as raised:
        driver.input("in").send("k", "v")
    assert "use process() to change keys" in str(raised.value.__cause__)


def repartitions(step: Callable[[Stream], Stream]) -> list[str]:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    step(stream).group_by_key(name="g").count(store="c")
    subs = builder.build().sub_topologies
    return [topic for sub in subs for s in sub.sources if s.internal for topic in s.topics]


def test_process_may_change_keys_so_what_groups_behind_it_is_repartitioned() -> None:
    def swap(record: Any, context: Any) -> None:
        context.forward(record.with_key(record.value).with_value(record.key))

    assert repartitions(lambda s: s.process(swap)) == ["g-repartition"]
    assert repartitions(lambda s: s.process_values(swap)) == []
    assert results(
        lambda s: s.process(swap).group_by_key(key=serdes.string).count(),
        [("a", "x"), ("b", "x")],
        settings={"statestore.cache.max.bytes": 0},
    ) == [("x", 1), ("x", 2)]


def test_process_values_keeps_the_serde_of_keys_and_forgets_that_of_values() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.long, value=serdes.long)
    stream.process_values(lambda r, c: c.forward(r)).to("a")
    stream.process(lambda r, c: c.forward(r)).to("b")
    sinks = [sink for sub in builder.build().sub_topologies for sink in sub.sinks]
    assert [(sink.key, sink.value) for sink in sinks] == [(serdes.long, None), (None, None)]


def test_stores_are_added_by_name_or_by_what_describes_them() -> None:
    def count(record: Any, context: Any) -> None:
        rows = context.store("seen")
        rows.put(record.key, (rows.get(record.key) or 0) + 1)
        context.forward(record.with_value(rows.get(record.key)))

    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    stream.process_values(count, stores=["seen"])
    stream.process_values(count, stores=[SEEN])
    builder.add_state_store(SEEN)
    assert [store.name for store in builder.build().stores] == ["seen"]


def test_another_store_of_the_same_name_is_refused() -> None:
    builder = StreamsBuilder()
    builder.add_state_store(SEEN)
    with pytest.raises(TopologyError, match="two different stores are named 'seen'"):
        builder.add_state_store(Stores.key_value("seen"))


def test_the_store_of_a_table_cannot_be_had_a_second_time() -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().count(store="seen")
    builder.add_state_store(SEEN)
    with pytest.raises(TopologyError, match="two stores are named 'seen'"):
        builder.build()


def test_a_store_that_nobody_added_is_named_when_the_topology_is_built() -> None:
    builder = StreamsBuilder()
    builder.stream("in").process(lambda r, c: None, stores=["nobody"], name="p")
    with pytest.raises(TopologyError, match="'p' uses unknown store 'nobody'"):
        builder.build()


class Methods:
    """A supplier with a method that names its stores."""

    def __call__(self) -> Numbered:
        return Numbered()

    def stores(self) -> list[Any]:
        return [SEEN]


class ByMethod(Numbered):
    def stores(self) -> Any:  # type: ignore[override]
        return [SEEN]


@pytest.mark.parametrize("supplier", [Methods(), ByMethod, Numbered])
def test_a_supplier_names_its_stores_in_an_attribute_or_a_method(supplier: Any) -> None:
    assert results(lambda s: s.process_values(supplier), [("a", "x")]) == [("a", "1 x")]


def test_stores_that_are_none_are_refused_with_the_supplier() -> None:
    class Wrong(Numbered):
        stores = ("seen",)  # type: ignore[assignment]

    builder = StreamsBuilder()
    with pytest.raises(TopologyError, match="created with Stores"):
        builder.stream("in").process_values(Wrong)


def test_a_stream_behind_a_table_is_processed_with_its_changes() -> None:
    driver = driver_of(
        lambda s: (
            s.group_by_key().count(store="c").to_stream().process_values(lambda r, c: c.forward(r))
        ),
        settings={"statestore.cache.max.bytes": 0},
    )
    driver.input("in").send_many([("a", 1), ("a", 2)])
    assert pairs(driver) == [("a", 1), ("a", 2)]


def test_behind_a_cache_there_is_no_record_at_hand() -> None:
    seen: list[Any] = []

    def look(record: Any, context: Any) -> None:
        seen.append((record.key, record.value, context.record_metadata))

    def step(stream: Stream) -> None:
        stream.group_by_key().count(store="c").to_stream().process_values(look)

    driver = driver_of(step, commit="manual")
    driver.input("in").send_many([("a", 1), ("a", 2)])
    driver.commit()
    assert seen == [("a", 2, None)]
