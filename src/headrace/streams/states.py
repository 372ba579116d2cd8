"""States of an application, and the transitions between them.

CREATED ─► CONNECTING ◄─► REBALANCING ◄─► RUNNING ─► PENDING_SHUTDOWN ─► NOT_RUNNING
               │              │            ◄─► PAUSED
               └──────────────┴──────────────┴──────► PENDING_ERROR ─────► ERROR
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

# Threshold of Python's garbage collector while modules are loaded and workers run.


COLLECT_AFTER_OBJECTS = 100_000
"""Allocations between collections. Python's default, 700, costs a counting application 10 %."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage less often: rows and imports allocate many objects and form no cycles."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class State(Enum):
    """State of an application.

    Examples:
        >>> state = State("running")
        >>> state, state.works, state.may_become(State.PAUSED), state.may_become(State.CREATED)
        (<State.RUNNING: 'running'>, True, True, False)
    """

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
        """Return whether a transition from this state to `state` is allowed."""
        return state in _NEXT[self]

    @property
    def works(self) -> bool:
        """Whether an application in this state processes records or prepares to."""
        return self in _WORKS


_ENDS = frozenset({State.PENDING_SHUTDOWN, State.PENDING_ERROR})
_WORKS = frozenset({State.CONNECTING, State.REBALANCING, State.RUNNING, State.PAUSED})
"""A lost connection changes any of these to `CONNECTING`; a restored connection changes it back."""
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
