"""Holding back the last change of each row until the next flush.

What follows a table that is cached sees one change a row and flush: from the value that it was told
last to the one that the row has by then. So what is held is how the first change began and what
came with the last one; the value is read from the row when it goes on. Generated code does the
same for whole streams (`compile.update`).

Hot path: a change is noted in the lines of its operator, without a call: the first one as
``pending[row_key] = [key, old, headers]``, another one by its headers alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.topology.context.context import Receive
from headrace.topology.operators.stored_rows import to_all


class AtOnce:
    """What the operators have in common that hold nothing back."""

    __slots__ = ("_forward", "pending")

    def __init__(self, forward: Receive) -> None:
        self._forward = forward
        self.pending: dict[bytes, list[Any]] = {}

    def flush(self) -> None:
        """There is nothing to send."""


class LastChanges:
    """The changes of one store's rows that are held back.

    Args:
        forward: takes them at a flush; None where nothing follows.
        read: the value and timestamp of a row by its bytes.
    """

    __slots__ = ("_forward", "_read", "pending")

    def __init__(self, forward: Receive | None, read: Callable[[bytes], tuple[Any, int]]) -> None:
        self._forward = to_all(()) if forward is None else forward
        self._read = read
        self.pending: dict[bytes, list[Any]] = {}
        """By row key: the key, the value that was forwarded last, the latest headers."""

    def flush(self) -> None:
        """Forward the last change of each row, in the order of the first ones."""
        held = list(self.pending.items())
        self.pending.clear()
        for row_key, (key, old, headers) in held:
            value, timestamp = self._read(row_key)
            # A row that came and went since the last flush was never there for those below.
            if value is not None or old is not None:
                self._forward(key, value, old, timestamp, headers)
