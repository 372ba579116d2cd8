"""Whose turn it is where records of several inputs wait.

Hot path: two inputs of a join may take turns at each record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.streams.seams.clients import ReceivedMessage, TopicPartition
from headrace.streams.task.input_queue import InputQueue

Batch = Sequence[ReceivedMessage]


def in_order(
    queues: Mapping[TopicPartition, InputQueue], waiting: Sequence[TopicPartition], count: int
) -> Iterator[tuple[TopicPartition, Batch]]:
    """Take records of several inputs, as long as each of these has some.

    Records of one input keep their order; among inputs the lowest head timestamp goes first, then
    the lowest name.

    Args:
        waiting: the inputs of which records wait, at least two.
        count: how many to take at most.

    Yields:
        The input, and those of its records that come before the others'.
    """
    heads = sorted((queues[place].head_timestamp(), place) for place in waiting)
    while count > 0:
        place, (limit, other) = heads[0][1], heads[1]
        queue = queues[place]
        batch = queue.take_until(limit if place < other else limit - 1, count)
        count -= len(batch)
        yield place, batch
        if not queue:
            return
        heads[0] = (queue.head_timestamp(), place)
        heads.sort()
