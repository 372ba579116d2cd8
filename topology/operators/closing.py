"""Closing windows without a later record, where an input has gone quiet."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from headrace.topology.context.context import Operator


@runtime_checkable
class _Closing(Protocol):
    def close_idle(self) -> None:
        """Close what is open as if stream time had passed it, and emit what is emitted then."""


def close_idle(operator: Operator) -> None:
    """Close the windows of an operator, if it has any."""
    if isinstance(operator, _Closing):
        operator.close_idle()
