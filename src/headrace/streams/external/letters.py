"""What the task of an external sink sends: dead letters, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Letters:
    """Sends dead letters in a transaction, which such a task does not open by itself.

    Args:
        begin: begins a transaction, unless one is open.
        send: the present producer's.
    """

    def __init__(self, begin: Callable[[], None], send: Callable[..., Any]) -> None:
        self._begin = begin
        self._send = send
        self.are_open = False
        """Whether some are in no commit yet."""

    def send(self, *record: Any) -> None:
        """Send one."""
        self._begin()
        self._send(*record)
        self.are_open = True

    def ended(self) -> None:
        """They are committed, or void."""
        self.are_open = False
