"""Cache of the last change of each row until the next flush.

Downstream of a cached table, each row has at most one change per flush: from the value that was
forwarded last to the current value. So the cache holds the old value of the first change and the
headers of the last; the new value is read from the row at the flush. Generated code does the same
for whole streams (`compile.update`).

Hot path: operators note a change inline, without a call: the first as ``pending[row_key] = [key,
old, headers]``, later changes only by their headers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from headrace.topology.context.context import Operator, Receive
from headrace.topology.operators.stored_rows import to_all

# Closing windows without a later record: an input is idle, or a watermark has advanced.


@runtime_checkable
class _Closing(Protocol):
    def close_idle(self) -> None:
        """Close open windows as if stream time had passed them, and emit their final results."""


@runtime_checkable
class _Timed(Protocol):
    def is_due(self, time: int, /) -> bool:
        """Return whether the operator emits results when its stream time reaches `time`."""

    def advance(self, time: int, /) -> None:
        """Advance the operator's stream time without a record."""


@runtime_checkable
class _Holding(Protocol):
    def held_from(self) -> int | None:
        """Return the earliest time that a waiting result may have; None if no result waits."""


@runtime_checkable
class _Emitting(Protocol):
    @property
    def emits_earlier(self) -> bool:
        """Whether it emits results of earlier records when its time advances."""

    def has_results_left(self) -> bool:
        """Return whether results are due that did not fit into the last commit."""

    def emit_left(self) -> None:
        """Emit the results left by the last commit, within the budget of the next commit."""


def emits_earlier(operator: Operator) -> bool:
    return isinstance(operator, _Emitting) and operator.emits_earlier


def has_results_left(operator: Operator) -> bool:
    return isinstance(operator, _Emitting) and operator.has_results_left()


def emit_left(operator: Operator) -> None:
    if isinstance(operator, _Emitting) and operator.has_results_left():
        operator.emit_left()


def holds_results(operator: Operator) -> bool:
    """Return whether an operator may emit results that are earlier than its stream time."""
    return isinstance(operator, _Holding)


def held_from(operator: Operator) -> int | None:
    return operator.held_from() if isinstance(operator, _Holding) else None


def is_due(operator: Operator, time: int) -> bool:
    return isinstance(operator, _Timed) and operator.is_due(time)


def advance(operator: Operator, time: int) -> None:
    if isinstance(operator, _Timed):
        operator.advance(time)


def close_idle(operator: Operator) -> None:
    if isinstance(operator, _Closing):
        operator.close_idle()


class Uncached:
    """Base of operators without a record cache."""

    __slots__ = ("_forward", "pending")

    def __init__(self, forward: Receive) -> None:
        self._forward = forward
        self.pending: dict[bytes, list[Any]] = {}

    def flush(self) -> None: ...


class RecordCache:
    """Cache of uncommitted changes of a store's rows.

    Args:
        forward: receives the changes at a flush; None if the node has no children.
        read: returns the value and timestamp of a row by its key bytes.
    """

    __slots__ = ("_forward", "_read", "pending")

    def __init__(self, forward: Receive | None, read: Callable[[bytes], tuple[Any, int]]) -> None:
        self._forward = to_all(()) if forward is None else forward
        self._read = read
        self.pending: dict[bytes, list[Any]] = {}
        """By row key: the key, the value that was forwarded last, the latest headers."""

    def flush(self) -> None:
        """Forward the last change of each row, in the order of the first changes."""
        held = list(self.pending.items())
        self.pending.clear()
        for row_key, (key, old, headers) in held:
            value, timestamp = self._read(row_key)
            # A row that was added and deleted since the last flush was never forwarded.
            if value is not None or old is not None:
                self._forward(key, value, old, timestamp, headers)
