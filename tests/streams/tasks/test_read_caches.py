"""What a worker keeps for reading, in all of its stores, has one bound."""

from __future__ import annotations

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes

LIMIT = 200_000
KEYS = 600
"""Of a row each in three places; those of one place alone stay within the bound."""
VALUE = "v" * 50


def look_up_in_stores_and_global_tables() -> TopologyTestDriver:
    """A worker of two tasks that has looked each key up in a store and in two global tables."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    for name in ("first", "second"):
        rows = builder.global_table(name, key=serdes.string, value=serdes.string, store=name)
        stream = stream.join(rows, lambda value, _: value, key_mapper=lambda key, _: key)
    stream.group_by_key().reduce(max, store="newest").to_stream().to("out")
    settings = {"statestore.read.cache.max.bytes": LIMIT}
    driver = TopologyTestDriver(builder.build(), settings, partitions=2, commit="manual")
    keys = [f"key-{n:05}" for n in range(KEYS)]
    for topic in ("first", "second", "in"):
        for key in keys:
            driver.input(topic).send(key, VALUE)
    driver.commit()
    return driver


def test_stores_and_global_tables_are_bounded_together() -> None:
    with look_up_in_stores_and_global_tables() as driver:
        worker = driver._worker.present()
        stores = [store.cached_bytes() for task in worker.tasks.running for store in task.buffers]
        tables = [rows.cached_bytes() for rows in worker.global_tables.caches]
        assert [len(stores), len(tables)] == [2, 2]
        assert sum(stores) + sum(tables) <= LIMIT
        # Each has its share of it, however many others there are.
        assert min(sum(stores), *tables) > LIMIT // 5


@pytest.mark.parametrize("limit", [0, 1_000, 10_000_000])
def test_what_is_looked_up_is_right_whatever_is_kept(limit: int) -> None:
    builder = StreamsBuilder()
    rows = builder.global_table("rows", key=serdes.string, value=serdes.string)
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    stream.join(rows, lambda mine, its: mine + its, key_mapper=lambda key, _: key).to("out")
    settings = {"statestore.read.cache.max.bytes": limit}
    with TopologyTestDriver(builder.build(), settings) as driver:
        for turn in ("a", "b"):
            for n in range(20):
                driver.input("rows").send(f"{n}", f"{turn}{n}")
            for n in range(20):
                driver.input("in").send(f"{n}", "is ")
        found = [record.value for record in driver.output("out").read_all()]
    assert found == [f"is {turn}{n}" for turn in "ab" for n in range(20)]
