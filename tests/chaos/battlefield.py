"""What every fault needs: what it works on, what it hit, and how workers are hit and come back."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.cluster import Cluster
from tests.chaos.diary import Diary
from tests.chaos.query_hosts import QueryHosts
from tests.chaos.workers import FirstCommit, Fleet, Slot

INTERVAL_S = 0.8
"""The workers' commit interval: a strike comes at a random moment of it."""
RECOVERED_WITHIN_S = 60.0


@dataclass
class Struck:
    """What a fault hit.

    Args:
        target: the worker or the node.
        in_transaction: whether a transaction was open, or a commit under way, at that moment.
        worker: whose next commit ends the fault.
        at_ns: when it was hit, wall clock.
        details: for the diary.
        first_commit: waits for that commit already, where a fault goes on after it struck.
    """

    target: str
    in_transaction: bool
    worker: Slot | None = None
    at_ns: int = field(default_factory=time.time_ns)
    details: dict[str, Any] = field(default_factory=dict)
    first_commit: FirstCommit | None = None

    def watched(self) -> Struck:
        """Begin to wait for the worker's next commit."""
        assert self.worker is not None
        self.first_commit = FirstCommit(
            self.worker, since_ns=self.at_ns, seconds=RECOVERED_WITHIN_S
        )
        return self


class Turns:
    """Lets the lanes strike side by side, and one of them alone where it measures something."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._striking = 0
        self._is_closed = False

    @contextmanager
    def together(self, stop: threading.Event) -> Iterator[None]:
        """Strike beside others, once nobody is alone."""
        with self._changed:
            while self._is_closed and not stop.is_set():
                self._changed.wait(0.1)
            self._striking += 1
        try:
            yield
        finally:
            with self._changed:
                self._striking -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self, *, seconds: float) -> Iterator[bool]:
        """Have the other lanes end what they do and begin nothing, from within `together`.

        Args:
            seconds: how long to wait for them; False if they did not end in time, or if another
                lane waits to be alone.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            if self._is_closed:  # another lane waits for this one
                is_mine = is_alone = False
            else:
                is_mine = self._is_closed = True
                while self._striking > 1 and time.monotonic() < deadline:
                    self._changed.wait(0.1)
                is_alone = self._striking == 1
        try:
            if is_mine and not is_alone:
                self._open()
            yield is_alone
        finally:
            if is_mine:
                self._open()

    def _open(self) -> None:
        with self._changed:
            self._is_closed = False
            self._changed.notify_all()


@dataclass
class Battlefield:
    """What the faults work on.

    Args:
        cluster: the brokers.
        fleet: the workers.
        prefix: of the application's names.
        copies: where copies of local state are kept.
        diary: of the run.
        stop: set when the time is up.
        asked: what serves stores; None where nobody asks.
        turns: of the lanes.
    """

    cluster: Cluster
    fleet: Fleet
    prefix: str
    copies: Path
    diary: Diary
    stop: threading.Event
    asked: QueryHosts | None = None
    turns: Turns = field(default_factory=Turns)


Fault = Callable[[Battlefield, random.Random], Struck | None]


def reach_transaction(at: Battlefield, slot: Slot, choose: random.Random) -> bool:
    """Wait for a random moment at which a worker has a transaction open."""
    time.sleep(choose.uniform(0, INTERVAL_S))
    return at.fleet.wait_in_transaction(slot)


def kill(at: Battlefield, slot: Slot) -> Struck:
    """SIGKILL a worker, which then stays dead until `come_back`."""
    slot.held = True
    at.fleet.kill(slot)
    # The file is as it was when the worker died.
    return Struck(slot.name, slot.in_transaction, slot, details={"step": slot.status.step})


def come_back(at: Battlefield, slot: Slot, struck: Struck) -> Struck:
    """Have the supervisor start a worker again."""
    slot.held = False
    struck.details["restart_ns"] = time.time_ns()
    return struck


def may_change(slot: Slot) -> bool:
    """Whether a worker can be added, or removed."""
    return not slot.held and (not slot.wanted or slot.lives)


def restore_size(at: Battlefield) -> None:
    """Bring the regular workers back, send the spare ones away; those under a fault are let be."""
    for slot in at.fleet.slots:
        if not slot.lock.acquire(blocking=False):
            continue
        try:
            if slot.place.is_spare and slot.wanted:
                at.fleet.remove(slot)
            elif not slot.place.is_spare and not slot.wanted:
                at.fleet.add(slot)
        finally:
            slot.lock.release()
