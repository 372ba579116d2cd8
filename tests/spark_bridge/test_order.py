"""The order of records among inputs, against a task that has all its inputs buffered."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.order import Block, merged, orders_of
from spark_bridge.outputs import Row
from streams.clients import TopicPartition

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
    rows = iter([Row((place, n, None, None, time, None)) for n, time in enumerate(timestamps)])
    while some := list(islice(rows, size)):
        orders, largest = orders_of(some, number, largest)
        yield Block(some, orders)


@given(Timestamps, st.integers(1, 5), st.integers(1, 5))
def test_the_largest_timestamp_so_far_sorts_as_the_lowest_head_goes_first(
    inputs: list[list[int]], size: int, limit: int
) -> None:
    """However the inputs are cut into blocks, and the result into runs."""
    sources = [blocks(number, one, size) for number, one in enumerate(inputs)]
    runs = list(merged(sources, limit=lambda: limit))
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
