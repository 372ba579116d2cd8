"""How old rows may be that are given: what a task has left behind is not taken for its rows.

A task that moves to another host leaves its files here, and they look like those of one that is at
work. So rows which may lack changes of more than a minute are refused, unless a worker of this host
holds the task, or none of the application runs here: then they are what there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.streams.queries.answers import Place
from headrace.streams.queries.errors import TooOldError

AGE_MAX_S = 60.0
"""Rows that may lack changes of a longer time are given to whoever asks for such."""


@dataclass(frozen=True, slots=True)
class AgeLimit:
    """See the module.

    Args:
        most_ms: how old rows may be; None for a minute, as the module has it.
        advice: how to ask for older ones.
    """

    most_ms: int | None = None
    advice: str = "take them as they are with max_age="

    def require(self, store: str, place: Place, is_left: Callable[[], bool]) -> None:
        """See that the rows of a place may be given.

        Args:
            is_left: tells whether workers run here, and none of them holds the place's files.

        Raises:
            TooOldError: they may not.
        """
        most_ms = AGE_MAX_S * 1000 if self.most_ms is None else self.most_ms
        if place.age_ms <= most_ms or (self.most_ms is None and not is_left()):
            return
        which = "" if place.partition is None else f"partition {place.partition} of "
        raise TooOldError(
            f"{which}store {store!r} may lack changes of {place.age_ms / 1000:g} s: no worker of "
            f"this host tells that it has its task now, and {most_ms / 1000:g} s are the most; "
            f"ask all hosts over HTTP, or {self.advice}"
        )
