"""Whether anybody is to have what comes of the calls under way."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.streams.worker_errors import AbortableError, TaskMigratedError

LOOK_S = 0.1
"""How often it is asked while calls are waited for."""
STOP_GRACE_S = 1.0
"""How long calls may go on behind the wish to stop: most of them end in that time."""

Look = Callable[[], None]
"""Raises where nobody is; called now and then by who waits."""


class CallWatch:
    """Watches over the calls of one worker.

    Args:
        is_stopping: whether the worker is to stop.
        is_given_up: whether its group has given it up, so that its partitions are others'.
    """

    def __init__(
        self,
        is_stopping: Callable[[], bool],
        is_given_up: Callable[[], bool],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_stopping = is_stopping
        self._is_given_up = is_given_up
        self._monotonic_s = monotonic_s
        self._stopping_s: float | None = None

    def look(self) -> None:
        """Look once.

        Raises:
            TaskMigratedError: the partitions are somebody else's.
            AbortableError: the worker is to stop, and has waited for as long as it may.
        """
        if self._is_given_up():
            raise TaskMigratedError(
                "the group has given this worker up; calls under way were cancelled, and who has "
                "the partitions makes them again"
            )
        if not self._is_stopping():
            return
        now_s = self._monotonic_s()
        if self._stopping_s is None:
            self._stopping_s = now_s
        if now_s - self._stopping_s >= STOP_GRACE_S:
            raise AbortableError(
                f"the worker stops; calls that took longer than {STOP_GRACE_S:g} s were cancelled, "
                "and who has the partitions next makes them again"
            )


def unwatched() -> None:
    """Nobody watches."""
