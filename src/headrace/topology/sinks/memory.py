"""A sink in memory: for tests, and to be compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.topology.external_sink import (
    SinkBatch,
    SinkBatching,
    SinkFencedError,
    SinkRow,
)


class MemorySink:
    """Keeps rows and positions as long as it lives, over connections that come and go.

    Args:
        keyed: whether rows have keys, so that a null value deletes one.
        batching: how long rows are collected; None writes them with each commit.

    Example:
        >>> sink = MemorySink()
        >>> connection = sink.open("app/orders")
        >>> connection.write(SinkBatch("orders", 0, None, 8, [SinkRow("a", 1, 0, 7)]))
        >>> connection.positions("orders", [0, 1]), [row.value for row in sink.rows]
        ({0: 8}, [1])
        >>> connection.write(SinkBatch("orders", 0, None, 8, [SinkRow("a", 1, 0, 7)]))
        Traceback (most recent call last):
            ...
        headrace.topology.external_sink.SinkFencedError: orders-0 is at 8, and not at None
    """

    def __init__(self, *, keyed: bool = False, batching: SinkBatching | None = None) -> None:
        self.keyed = keyed
        self.batching = batching
        self.rows: list[SinkRow] = []
        """All that were written, in this order."""
        self._positions: dict[tuple[str, str, int], int] = {}

    def open(self, name: str, /) -> _Connection:
        """Connect with it."""
        return _Connection(self, name)

    def as_dict(self) -> dict[Any, Any]:
        """The last value of each key, without those that were deleted."""
        last = {row.key: row.value for row in self.rows}
        return {key: value for key, value in last.items() if value is not None}


class _Connection:
    def __init__(self, sink: MemorySink, name: str) -> None:
        self._sink = sink
        self._name = name
        self.batching = sink.batching

    def positions(self, source: str, partitions: Sequence[int], /) -> Mapping[int, int]:
        kept = self._sink._positions
        found = {p: kept.get((self._name, source, p)) for p in partitions}
        return {p: position for p, position in found.items() if position is not None}

    def keepers(self) -> Sequence[str]:
        """Return the names that positions are kept under, or none if it has no rows."""
        if not self._sink.rows:
            return []
        return list(dict.fromkeys(name for name, _, _ in self._sink._positions))

    def write(self, batch: SinkBatch, /) -> None:
        place = (self._name, batch.source, batch.partition)
        present = self._sink._positions.get(place)
        if present != batch.expected:
            raise SinkFencedError(
                f"{batch.source}-{batch.partition} is at {present}, and not at {batch.expected}"
            )
        self._sink._positions[place] = batch.next
        self._sink.rows.extend(batch.rows)

    def close(self) -> None:
        """Nothing is open."""
