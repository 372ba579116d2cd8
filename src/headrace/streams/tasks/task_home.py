"""Protocol of a task's local state."""

from __future__ import annotations

from typing import Protocol

from headrace.state.store import TaskState


class TaskHome(Protocol):
    """A task's local state, and the lock on its directory."""

    state: TaskState

    def wipe(self) -> None:
        """Empty the local state and keep the lock."""

    def close(self) -> None:
        """Close the state and release the lock."""
