"""Order in which a task reads the records of its inputs. Pure functions.

Each record has an order ``(mts, src, off)``, see `headrace.spark_bridge.records.packs`. Within an
input it never decreases; the merge keeps the order of every input.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.integer[Any]]

Order = tuple[int, int, int]
"""mts, src, off."""


class Orders(Sequence[Order]):
    """Orders of records as columns; tuples are created on access."""

    __slots__ = ("_columns",)

    def __init__(self, mts: Column, src: Column, off: Column) -> None:
        self._columns = (mts, src, off)

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, at: int) -> Order: ...

    @overload
    def __getitem__(self, at: slice) -> Orders: ...

    def __getitem__(self, at: int | slice) -> Order | Orders:
        mts, src, off = self._columns
        if isinstance(at, slice):
            return Orders(mts[at], src[at], off[at])
        return int(mts[at]), int(src[at]), int(off[at])

    def __iter__(self) -> Iterator[Order]:
        return zip(*(column.tolist() for column in self._columns), strict=True)


class Block(NamedTuple):
    """Consecutive records of an input, with the order of each."""

    records: Sequence[Any]
    orders: Sequence[Order]


def orders_of(records: Sequence[Any], source: int, largest: int) -> tuple[Orders, int]:
    """Return the orders of records of a source partition, and the largest timestamp up to them.

    Args:
        records: in the order of their offsets; not empty.
        largest: the largest timestamp of the partition before these records.

    >>> from collections import namedtuple
    >>> Message = namedtuple("Message", "at ms")
    >>> class Sent(Message):
    ...     def timestamp(self): return (1, self.ms)
    ...     def offset(self): return self.at
    >>> orders, largest = orders_of([Sent(0, 5), Sent(1, 3), Sent(2, 6)], 0, -1)
    >>> list(orders), largest
    ([(5, 0, 0), (5, 0, 1), (6, 0, 2)], 6)
    """
    times = np.array([record.timestamp()[1] for record in records], np.int64)
    times[0] = max(times[0], largest)
    mts = np.maximum.accumulate(times)
    off = np.array([record.offset() for record in records], np.int64)
    return Orders(mts, np.full(len(off), source, np.int64), off), int(mts[-1])


class _MergeInput:
    """Input of the merge, with its current block and position."""

    __slots__ = ("_block", "_blocks", "_position")

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self._block = Block((), ())
        self._position = 0

    def head(self) -> Order | None:
        while self._position == len(self._block.orders):
            following = next(self._blocks, None)
            if following is None:
                return None
            self._block, self._position = following, 0
        return self._block.orders[self._position]

    def take(self, before: Order | None, limit: int) -> Block:
        """Take the next record, and the following records of the block before an order."""
        start, orders = self._position, self._block.orders
        end = min(len(orders), start + limit)
        if before is not None:
            end = max(start + 1, bisect_left(orders, before, start, end))
        self._position = end
        if start == 0 and end == len(orders):
            return self._block
        return Block(self._block.records[start:end], orders[start:end])


def merged(inputs: Sequence[Iterator[Block]], *, limit: int) -> Iterator[Block]:
    """Yield the records of all inputs in order, as runs from a single input each.

    Args:
        inputs: non-empty blocks; the blocks of an input are in order.
        limit: maximum length of a run.

    >>> left = Block("ab", [(1, 0, 0), (5, 0, 1)])
    >>> right = Block("xy", [(1, 1, 0), (4, 1, 1)])
    >>> [run.records for run in merged([iter([left]), iter([right])], limit=10)]
    ['a', 'xy', 'b']
    """
    open_inputs = [_MergeInput(blocks) for blocks in inputs]
    heads = [(head, one) for one in open_inputs if (head := one.head()) is not None]
    while heads:
        if len(heads) == 1:
            (_, first) = heads[0]
            before = None
            at = 0
        else:
            at = min(range(len(heads)), key=lambda i: heads[i][0])
            first = heads[at][1]
            before = min(head for i, (head, _) in enumerate(heads) if i != at)
        yield first.take(before, limit)
        head = first.head()
        if head is None:
            del heads[at]
        else:
            heads[at] = (head, first)
