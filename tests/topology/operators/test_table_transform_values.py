"""KTable.transform_values: an object for each task, with stores."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import Stores, StreamsBuilder, TopologyError, serdes
from tests.support.operators import pairs
from tests.support.tables import EXACTLY_ONCE, driver_of

NO_CACHE: dict[str, object] = {"statestore.cache.max.bytes": 0}


class Numbered:
    """Gives each change of a row its number; a row that is gone is forgotten."""

    def init(self, context: Any) -> None:
        self.seen = context.store("seen")

    def transform(self, key: str, value: Any) -> Any:
        number = None if value is None else (self.seen.get(key) or 0) + 1
        self.seen.put(key, number)
        return None if value is None else [number, value]


class Same:
    def transform(self, key: Any, value: Any) -> Any:
        return value


def numbered(store: str | None = None, **options: Any) -> TopologyTestDriver:
    builder = StreamsBuilder()
    seen = Stores.key_value("seen", key=serdes.string, value=serdes.long)
    table = builder.table("in", key=serdes.string)
    made = table.transform_values(Numbered, stores=[seen], store=store, name="numbered")
    made.to_stream().to("out")
    driver: TopologyTestDriver = driver_of(builder.build(), **options)
    return driver


@pytest.mark.parametrize("store", [None, "rows"])
def test_it_is_asked_for_each_change_and_has_its_stores(store: str | None) -> None:
    driver = numbered(store, settings=NO_CACHE)
    driver.input("in").send_many([("a", "x"), ("b", "y"), ("a", "z"), ("a", None), ("a", "z")])
    assert pairs(driver) == [
        ("a", [1, "x"]),
        ("b", [1, "y"]),
        ("a", [2, "z"]),
        ("a", None),
        ("a", [1, "z"]),
    ]


def test_its_stores_outlast_aborts_and_crashes() -> None:
    driver = numbered("rows", settings=EXACTLY_ONCE, commit="manual")
    for value in "xyz":
        driver.input("in").send("a", value)
        driver.abort()
        driver.commit()
        driver.crash(keep=False)
    driver.run()
    assert dict(driver.store("rows", committed=True)) == {"a": [3, "z"]}
    assert pairs(driver) == [("a", [1, "x"]), ("a", [2, "y"]), ("a", [3, "z"])]


def test_each_task_has_an_object_of_its_own_and_closes_it() -> None:
    made: list[Any] = []

    class Told(Same):
        closed = False

        def __init__(self) -> None:
            made.append(self)

        def close(self) -> None:
            self.closed = True

    builder = StreamsBuilder()
    builder.table("in", key=serdes.string).transform_values(Told).to_stream().to("out")
    tried = len(made)
    with driver_of(builder.build(), {}, partitions=3) as driver:
        driver.input("in").send_many([(key, 1) for key in "abcdef"])
        assert len(made) == tried + 3
    assert all(one.closed for one in made[tried:])


def test_results_are_stored_where_somebody_reads_what_they_were() -> None:
    """What it returned before cannot be asked of it again."""
    builder = StreamsBuilder()
    seen = Stores.key_value("seen", key=serdes.string, value=serdes.long)
    table = builder.table("in", key=serdes.string)
    made = table.transform_values(Numbered, stores=[seen], name="numbered")
    odd = made.filter(lambda k, v: v[0] % 2 == 1)
    grouped = odd.group_by(lambda k, v: (v[1], v[0]), key=serdes.string)
    grouped.reduce(lambda a, b: a + b, lambda a, b: a - b, store="sums")
    topology = builder.build()
    assert "numbered-STATE-STORE" in [store.name for store in topology.stores]
    driver = driver_of(topology, NO_CACHE)
    driver.input("in").send_many([("a", "x"), ("b", "x"), ("a", "x"), ("a", "x"), ("b", None)])
    assert dict(driver.store("sums")) == {"x": 3}


def test_a_stored_result_that_is_the_same_goes_no_further() -> None:
    """Trap 8."""
    builder = StreamsBuilder()
    table = builder.table("in", key=serdes.string)
    table.transform_values(Same, store="rows").to_stream().to("out")
    driver = driver_of(builder.build(), NO_CACHE)
    driver.input("in").send_many([("a", [1]), ("a", [1]), ("b", None)])
    assert pairs(driver) == [("a", [1])]


def test_a_supplier_of_something_else_is_refused() -> None:
    table = StreamsBuilder().table("in")
    with pytest.raises(TopologyError, match="no method transform"):
        table.transform_values(dict)  # type: ignore[arg-type]


def test_a_supplier_of_one_object_for_all_is_refused() -> None:
    one = Same()
    with pytest.raises(TopologyError, match="the same transformer twice"):
        StreamsBuilder().table("in").transform_values(lambda: one)
