"""The order of records among inputs, against a task that has all its inputs buffered."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark_bridge.records.order import Block, merged, orders_of
from headrace.spark_bridge.records.outputs import SyntheticRecord
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes

Timestamps = st.lists(st.lists(st.integers(0, 8), max_size=12), min_size=1, max_size=4)


def lowest_head_first(inputs: list[list[int]]) -> list[tuple[int, int]]:
    """What Kafka Streams does: of the heads of all inputs the lowest, ties by the input."""
    positions = [0] * len(inputs)
    taken = []
    while any(at < len(one) for at, one in zip(positions, inputs, strict=True)):
        _, lowest = min(
            (one[at], number)
            for number, (at, one) in enumerate(zip(positions, inputs, strict=True))
            if at < len(one)
        )
        taken.append((lowest, positions[lowest]))
        positions[lowest] += 1
    return taken


def blocks(number: int, timestamps: list[int], size: int) -> Iterator[Block]:
    place, largest = TopicPartition("t", number), -1
    rows = iter(
        [SyntheticRecord((place, n, None, None, time, None)) for n, time in enumerate(timestamps)]
    )
    while some := list(islice(rows, size)):
        orders, largest = orders_of(some, number, largest)
        yield Block(some, orders)


@given(Timestamps, st.integers(1, 5), st.integers(1, 5))
def test_the_largest_timestamp_so_far_sorts_as_the_lowest_head_goes_first(
    inputs: list[list[int]], size: int, limit: int
) -> None:
    """However the inputs are cut into blocks, and the result into runs."""
    sources = [blocks(number, one, size) for number, one in enumerate(inputs)]
    runs = list(merged(sources, limit=limit))
    taken = [(row.partition(), row.offset()) for run in runs for row in run.records]
    assert taken == lowest_head_first(inputs)
    assert all(len({row.partition() for row in run.records}) == 1 for run in runs)
    assert all(len(run.records) == len(run.orders) <= limit for run in runs)


@given(Timestamps)
def test_the_orders_are_those_that_a_sort_brings_about(inputs: list[list[int]]) -> None:
    """What Spark's sort does with the rows of several tasks."""
    everything = [
        order
        for number, one in enumerate(inputs)
        for block in blocks(number, one, 3)
        for order in block.orders
    ]
    assert [(source, offset) for _, source, offset in sorted(everything)] == lowest_head_first(
        inputs
    )


def _records(*times: int) -> list[SyntheticRecord]:
    place = TopicPartition("t", 0)
    return [SyntheticRecord((place, n, None, None, time, None)) for n, time in enumerate(times)]


def test_the_largest_timestamp_goes_on_from_block_to_block() -> None:
    orders, largest = orders_of(_records(3, 9, 4), 0, 5)
    assert [mts for mts, _, _ in orders] == [5, 9, 9]
    assert largest == 9
    orders, largest = orders_of(_records(2), 0, largest)
    assert (list(orders), largest) == ([(9, 0, 0)], 9)


def test_of_equal_times_the_first_input_goes_first_and_whole() -> None:
    """A run ends before what is equal in an earlier input, and not before that of a later one."""
    left = Block("abc", [(1, 0, 0), (2, 0, 1), (2, 0, 2)])
    right = Block("xy", [(2, 1, 0), (2, 1, 1)])
    for inputs in ([left, right], [right, left]):
        runs = merged([iter([block]) for block in inputs], limit=9)
        assert [run.records for run in runs] == ["abc", "xy"]


def test_three_inputs_end_a_run_at_the_lowest_of_the_others() -> None:
    one = Block("abc", [(1, 0, 0), (4, 0, 1), (9, 0, 2)])
    two = Block("x", [(8, 1, 0)])
    three = Block("y", [(3, 2, 0)])
    runs = merged([iter([one]), iter([two]), iter([three])], limit=9)
    assert [run.records for run in runs] == ["a", "y", "b", "x", "c"]


def test_records_of_equal_times_go_by_their_partition_live_and_in_a_backfill() -> None:
    """Whatever the order in which the inputs are handed over."""
    times = {"a": [5, 5, 6], "b": [1, 5, 6]}
    live = [(5, "a"), (5, "a"), (5, "b"), (6, "a"), (6, "b")]
    live.insert(0, (1, "b"))
    assert _live(times) == live
    sources = [blocks(number, times[topic], 3) for number, topic in enumerate(times)]
    runs = merged(sources[::-1], limit=10)
    assert [(r.timestamp()[1], "ab"[r.partition()]) for run in runs for r in run.records] == live


def _live(times: dict[str, list[int]]) -> list[tuple[int, str]]:
    """The records of two topics as a task takes them that has all of them."""
    builder = StreamsBuilder()
    texts: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
    one, other = (builder.stream(topic, **texts) for topic in times)
    one.merge(other).to("out", **texts)
    driver = TopologyTestDriver(builder.build(), commit="manual")
    for topic, found in times.items():
        for time in found:
            driver.cluster.append(topic, topic.encode(), None, 0, time, None)
    driver.commit()
    return [(record.timestamp, record.value) for record in driver.output("out").read_all()]
