"""What whoever looks after an application knows of it at one moment, for those who ask."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.streams.facts.snapshots import ApplicationSnapshot
from headrace.topology.show.picture import Picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """See the module.

    Args:
        facts: the application and its workers.
        turned_s: when the loop that looks after the workers turned last, in seconds of the clock
            of the snapshots' `at_s`.
        is_loaded: whether the application was loaded, and its settings are right.
        picture: what the topology looks like; None before it is loaded.
        is_given_up: whether a worker has failed for good, and the others are told to stop.
        why: what has come to pass then, in words.
    """

    facts: ApplicationSnapshot
    turned_s: float
    is_loaded: bool
    is_given_up: bool
    why: str = "a worker is given up"
    picture: Picture | None = None
