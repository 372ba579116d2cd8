"""How old rows may be that are given: what a task has left behind is not taken for its rows.

A task that moves to another host leaves its files here, and they look like those of one that is at
work. So rows which may lack changes of more than a minute are refused, unless a worker of this host
holds the task, or none of the application runs here: then they are what there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.streams.facts.snapshots import SILENT_S
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
        raise too_old(store, place, most_ms, then=f"ask all hosts over HTTP, or {self.advice}")


def too_old(store: str, place: Place, most_ms: float, *, then: str) -> TooOldError:
    """What rows are refused with that are older than whoever asks accepts.

    Args:
        then: what to do.
    """
    which = f"store {store!r}"
    if place.partition is not None:
        which = f"partition {place.partition} of {which}"
    is_followed = place.state == "running" or place.partition is None
    if is_followed and place.age_ms <= SILENT_S * 1000:
        said = (
            f"the rows of {which} are {place.age_ms} ms old, and at most {most_ms:g} ms are "
            "asked for"
        )
    else:
        said = (
            f"{which} may lack changes of {place.age_ms / 1000:g} s: {_why(place)}, and "
            f"{most_ms / 1000:g} s are the most"
        )
    return TooOldError(f"{said}; {then}")


def _why(place: Place) -> str:
    if place.partition is None:
        return "no worker of this host follows it now"
    if place.state is None:
        return "no worker of this host has its task now"
    if place.state == "running":
        return "the worker of this host that has its task is silent"
    return f"its task here is {place.state}"
