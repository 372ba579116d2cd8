"""The step that keeps records for a sink outside of Kafka until the worker writes them.

Hot path: `process` runs for each record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.external_sink import (
    ExternalSink,
    SinkBatch,
    SinkBatching,
    SinkFencedError,
    SinkRow,
)

# A sink in memory: for tests, and to be compared with.


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


# A record as it is now, whatever becomes of its objects.


_IMMUTABLE = frozenset({str, int, float, bool, bytes, type(None)})


def snapshot(given: Any) -> Any:
    """A copy that nobody else has; what cannot change is returned itself.

    Hot path: it runs for each record that a function has made.

    Example:
        >>> row = {"id": 7, "tags": ["new"]}
        >>> kept = snapshot(row)
        >>> row["tags"].append("sold")
        >>> kept
        {'id': 7, 'tags': ['new']}
    """
    kind = type(given)
    if kind in _IMMUTABLE:
        return given
    if kind is dict:
        return {
            key: value if type(value) in _IMMUTABLE else snapshot(value)
            for key, value in given.items()
        }
    if kind is list:
        return [snapshot(value) for value in given]
    return deepcopy(given)


ROW_BYTES = 1_000
"""About what a row takes besides its record's bytes; measured with dicts of five fields."""

Kept = tuple[Any, Any, int, Any]
"""Key, value and timestamp of a row, and the message that it is of."""
_ROW = partial(tuple.__new__, SinkRow)
"""Makes a row of a tuple, in a third of the time that a call of the class takes."""


@dataclass(frozen=True, slots=True)
class WriteOutside(OperatorSpec):
    """Keeps records for an external sink; it is all that its sub-topology is for.

    `direct` is one that reads a source topic itself, with steps without state in between.
    """

    needs_record: ClassVar[bool] = True
    """Rows know which records they are."""

    is_timed: ClassVar[bool] = False

    sink: ExternalSink
    direct: bool = False

    @property
    def writes_outside(self) -> ExternalSink:
        """Where to."""
        return self.sink

    @property
    def reads_directly(self) -> bool:
        """As it was given."""
        return self.direct

    def make(self, context: OperatorContext, /) -> Outbox:
        """Make what keeps the rows of one task."""
        return Outbox(self, context)


class Outbox:
    """The rows of one task that the sink does not have yet.

    Who owns what: the step adds rows, and who writes them moves `position` and takes them away.
    The number ``written`` is committed beside the input's offset: a sink whose position is before
    it has gone back.
    """

    __slots__ = ("_bytes", "_copies", "_counted", "_facts", "_is_first", "_written", "batching",
                 "kept", "node", "pending", "position", "since_s", "source")  # fmt: skip

    def __init__(self, spec: WriteOutside, context: OperatorContext) -> None:
        del spec
        # Who made an object that goes on may change it later; rows are written then.
        self._copies = not context.has_its_own
        self._is_first = False
        self.node = context.node
        self.pending: dict[Any, Any] = {}
        self.source = ""
        self.position: int | None = None
        """Where the sink is; None where it has not begun."""
        self.batching: SinkBatching | None = None
        """How long rows are collected; None where they are written with each commit."""
        self.since_s: float | None = None
        """When the first of them was seen, by the clock of who writes them."""
        self.kept: list[Kept] = []
        """What rows are to be made of; always the same list."""
        self._bytes = self._counted = 0
        self._facts = context.task
        self._written = context.number("written")
        context.task.outbox = self

    def process(self, key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        """Keep one record."""
        del old, headers
        if self._copies:
            key, value = snapshot(key), snapshot(value)
        self.kept.append((key, value, timestamp, self._facts.record))

    @property
    def bytes(self) -> int:
        """About what the rows take; those of one record share what it has."""
        if not self._copies:  # no step makes several rows of a record
            sizes = [len(one[3].value() or b"") for one in self.kept[self._counted :]]
            self._bytes += sum(sizes) + ROW_BYTES * len(sizes)
            self._counted = len(self.kept)
            return self._bytes
        before = self.kept[self._counted - 1][3] if self._counted else None
        for _, _, _, message in islice(self.kept, self._counted, None):
            self._bytes += ROW_BYTES
            if message is not before:
                self._bytes += len(message.key() or b"") + len(message.value() or b"")
            before = message
        self._counted = len(self.kept)
        return self._bytes

    @property
    def is_held(self) -> bool:
        """Whether there are rows that the sink wants to be collected."""
        return self.batching is not None and bool(self.kept) and not self._is_first

    def flush(self) -> None:
        """What is kept goes nowhere downstream."""

    def begin(
        self,
        source: str,
        position: int | None,
        batching: SinkBatching | None = None,
        *,
        is_first: bool = False,
    ) -> None:
        """The sink was asked where it is.

        Args:
            source: what its positions are of.
            batching: how long it wants rows to be collected.
            is_first: whether nobody says yet where to begin: the first rows are not collected.
        """
        self.source, self.position, self.batching = source, position, batching
        self._is_first = is_first
        if position is not None:
            # The group is to know of it, also where nothing is written any more.
            self._written.value = position

    def wrote(self, next_offset: int) -> None:
        """The sink has everything before an offset."""
        self.position = self._written.value = next_offset
        self._is_first = False

    def take(self) -> tuple[Sequence[SinkRow], Sequence[Kept]]:
        """Take the rows, and what they are made of."""
        kept = self.kept[:]
        self.kept.clear()
        self.since_s = None
        self._bytes = self._counted = 0
        return [_ROW((k, v, timestamp, m.offset())) for k, v, timestamp, m in kept], kept
