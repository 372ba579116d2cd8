"""What an application is doing, and what it may do next.

CREATED ─► CONNECTING ◄─► REBALANCING ◄─► RUNNING ─► PENDING_SHUTDOWN ─► NOT_RUNNING
               │              │            ◄─► PAUSED
               └──────────────┴──────────────┴──────► PENDING_ERROR ─────► ERROR
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

# Python's cycle collector while modules are loaded, and while commands and workers run.


COLLECT_AFTER_OBJECTS = 100_000
"""Python's own is 700, which costs a tenth of the throughput of a counting application."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the cycle collector look less often: rows make many objects and no cycles.

    Modules make many that all stay; to look at them takes up to a tenth of the time of loading.
    """
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class State(Enum):
    """What an application is doing."""

    CREATED = "created"
    CONNECTING = "connecting"
    REBALANCING = "rebalancing"
    RUNNING = "running"
    PAUSED = "paused"
    PENDING_SHUTDOWN = "pending shutdown"
    NOT_RUNNING = "not running"
    PENDING_ERROR = "pending error"
    ERROR = "error"

    def may_become(self, state: State) -> bool:
        """Whether an application can go from this state to `state`."""
        return state in _NEXT[self]

    @property
    def works(self) -> bool:
        """Whether an application in this state is on its way to records, or at them."""
        return self in _WORKS


_ENDS = frozenset({State.PENDING_SHUTDOWN, State.PENDING_ERROR})
_WORKS = frozenset({State.CONNECTING, State.REBALANCING, State.RUNNING, State.PAUSED})
"""Brokers that are gone make any of them `CONNECTING`, and their return makes it what it was."""
_NEXT = {
    State.CREATED: frozenset({State.CONNECTING}) | _ENDS,
    State.CONNECTING: _WORKS | _ENDS,
    State.REBALANCING: _WORKS | _ENDS,
    State.RUNNING: _WORKS | _ENDS,
    State.PAUSED: _WORKS | _ENDS,
    State.PENDING_SHUTDOWN: frozenset({State.NOT_RUNNING, State.PENDING_ERROR}),
    State.NOT_RUNNING: frozenset[State](),
    State.PENDING_ERROR: frozenset({State.ERROR}),
    State.ERROR: frozenset[State](),
}
