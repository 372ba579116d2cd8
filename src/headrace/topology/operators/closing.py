"""Closing windows without a later record: an input is idle, or a watermark has advanced."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from headrace.topology.context.context import Operator


@runtime_checkable
class _Closing(Protocol):
    def close_idle(self) -> None:
        """Close what is open as if stream time had passed it, and emit what is emitted then."""


@runtime_checkable
class _Timed(Protocol):
    def is_due(self, time: int, /) -> bool:
        """Return whether the operator emits results when its stream time reaches `time`."""

    def advance(self, time: int, /) -> None:
        """Advance the operator's stream time without a record."""


@runtime_checkable
class _Holding(Protocol):
    def held_from(self) -> int | None:
        """Return the earliest time that a result which waits may have; None if none waits."""


def holds_results(operator: Operator) -> bool:
    """Return whether an operator may emit results that are earlier than its stream time."""
    return isinstance(operator, _Holding)


def held_from(operator: Operator) -> int | None:
    """Return the earliest time of the results that wait in an operator; None if none waits."""
    return operator.held_from() if isinstance(operator, _Holding) else None


def is_due(operator: Operator, time: int) -> bool:
    """Return whether an operator emits results when stream time reaches `time`."""
    return isinstance(operator, _Timed) and operator.is_due(time)


def advance(operator: Operator, time: int) -> None:
    """Advance the stream time of an operator that has one."""
    if isinstance(operator, _Timed):
        operator.advance(time)


def close_idle(operator: Operator) -> None:
    """Close the windows of an operator, if it has any."""
    if isinstance(operator, _Closing):
        operator.close_idle()
