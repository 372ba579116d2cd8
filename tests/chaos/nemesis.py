"""Chooses faults by a seed and strikes, in several lanes, until each kind has hit often enough.

A lane is a thread with its own kinds and its own random numbers, so a seed fixes the order of its
faults and what they choose; the moments follow from what the processes do.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.battlefield import RECOVERED_WITHIN_S, Battlefield, Fault, Struck, restore_size
from tests.chaos.workers import events_between


@dataclass
class Tally:
    """What was struck so far; lanes share it."""

    total: Counter[str] = field(default_factory=Counter)
    mid_transaction: Counter[str] = field(default_factory=Counter)
    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, struck: Struck) -> None:
        with self.lock:
            self.total[kind] += 1
            self.mid_transaction[kind] += struck.in_transaction

    def recovered(self, kind: str, seconds: float) -> None:
        with self.lock:
            self.recovery_s.setdefault(kind, []).append(seconds)


@dataclass(frozen=True, slots=True)
class Aim:
    """When a lane is done.

    Args:
        each: how often each kind is to hit an open transaction.
        seconds: after which no new fault begins.
    """

    each: int
    seconds: float


class Lane(threading.Thread):
    """Strikes one fault after another."""

    def __init__(
        self,
        name: str,
        kinds: Mapping[str, Fault],
        *,
        at: Battlefield,
        tally: Tally,
        aim: Aim,
        seed: int | str,
        pause_s: tuple[float, float] = (0.2, 2.5),
    ) -> None:
        super().__init__(name=name)
        self._kinds = kinds
        self._at = at
        self._tally = tally
        self._aim = aim
        self._choose = random.Random(f"{seed}-{name}")
        self._pause_s = pause_s

    def run(self) -> None:
        deadline = time.monotonic() + self._aim.seconds
        while not self._at.stop.is_set() and time.monotonic() < deadline:
            kinds = [k for k in self._kinds if self._tally.mid_transaction[k] < self._aim.each]
            if not kinds:
                return
            self._choose.shuffle(kinds)
            for kind in kinds:
                if self._at.stop.is_set() or time.monotonic() >= deadline:
                    return
                with self._at.turns.together(self._at.stop):
                    self._strike(kind)
                self._at.stop.wait(self._choose.uniform(*self._pause_s))

    def _strike(self, kind: str) -> None:
        choose = random.Random(self._choose.getrandbits(64))
        began = time.monotonic()
        try:
            struck = self._kinds[kind](self._at, choose)
        except Exception as error:  # a fault that breaks must not end the run in silence
            self._tally.errors.append(f"{kind}: {type(error).__name__}: {error}")
            self._at.diary.write("fault_broken", kind=kind, reason=repr(error))
            self._at.stop.wait(2.0)
            return
        if struck is None:
            self._at.diary.write("fault_missed", kind=kind)
            return
        self._tally.add(kind, struck)
        recovery_s = self._wait_recovered(kind, struck)
        self._at.diary.write(
            "fault",
            lane=self.name,
            kind=kind,
            target=struck.target,
            in_transaction=struck.in_transaction,
            took_s=round(time.monotonic() - began, 2),
            recovery_s=recovery_s,
            **struck.details,
        )
        restore_size(self._at)

    def _wait_recovered(self, kind: str, struck: Struck) -> float | None:
        """Wait for the next commit of the worker that was hit, unless another fault hits it."""
        slot = struck.worker
        if slot is None:
            return None
        if struck.first_commit is not None:
            found = struck.first_commit.result()
            if struck.first_commit.was_disturbed():
                return None
        elif slot.lock.acquire(blocking=False):
            try:
                since_ns = struck.details.get("restart_ns", struck.at_ns)
                found = self._at.fleet.wait_committed(
                    slot,
                    since_ns=since_ns,
                    seconds=RECOVERED_WITHIN_S,
                    excused=lambda: self._at.cluster.is_away or self._at.cluster.is_throttled,
                )
            finally:
                slot.lock.release()
        else:
            return None
        if found is None:
            if slot.wanted:
                self._tally.stuck.append(
                    f"{slot.name} did not commit within {RECOVERED_WITHIN_S:g} s of: {kind}"
                )
                happened = events_between(slot.log, struck.at_ns, time.time_ns())
                self._tally.stuck += [f"  {event}" for event in happened]
                self._at.diary.write("worker_idle", worker=slot.name, after=kind)
                for one in self._at.fleet.slots:
                    self._at.fleet.dump(one)
            return None
        self._tally.recovered(kind, found)
        return round(found, 3)


def run_lanes(lanes: Sequence[Lane]) -> None:
    """Run all lanes to their end."""
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
