"""The life of a task: created, restoring, running, closed."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """Where a task is in its life, which may leave phases out and never goes back."""

    CREATED = 0
    RESTORING = 1
    RUNNING = 2
    CLOSED = 3
