"""Faults of workers: killed, at random or at a step of the commit; paused; too many, too few."""

from __future__ import annotations

import random
import resource
import signal
import time
from contextlib import suppress

from tests.chaos.battlefield import (
    Battlefield,
    Struck,
    come_back,
    kill,
    may_change,
    reach_transaction,
    restore_size,
)
from tests.chaos.status import Field
from tests.chaos.workers import Profile, step_number

_LATE_END_S = 5.0


def kill_worker(at: Battlefield, choose: random.Random) -> Struck | None:
    """SIGKILL at a random moment of a transaction; the worker comes back soon, or late."""
    with at.fleet.claim(choose) as slot:
        if slot is None or not reach_transaction(at, slot, choose):
            return None
        struck = kill(at, slot)
        late_s = choose.choice((0.0, 0.0, 1.0, 8.0))
        time.sleep(late_s)
        struck.details["away_s"] = late_s
        return come_back(at, slot, struck)


def die_at_step(at: Battlefield, choose: random.Random, *, step: str) -> Struck | None:
    """SIGKILL by its own hand at a step of its next commit."""
    enough_tasks = 2 if step == "state_written" else 1
    with at.fleet.claim(
        choose, suits=lambda slot: slot.status[Field.TASKS] >= enough_tasks
    ) as slot:
        if slot is None:
            return None
        slot.held = True
        delay_ms = choose.choice((0, 0, 50, 200))
        slot.status[Field.DIE_AFTER_MS] = delay_ms
        slot.status[Field.DIE_AT] = step_number(step)
        if not at.fleet.wait(lambda: slot.process is None, seconds=20):
            slot.status[Field.DIE_AT] = 0
            return None
        if slot.status.step != step:  # something else ended it before it got there
            return None
        struck = Struck(slot.name, slot.in_transaction, slot, details={"delay_ms": delay_ms})
        return come_back(at, slot, struck)


def pause_worker(
    at: Battlefield,
    choose: random.Random,
    *,
    profile: Profile,
    seconds: tuple[float, float],
) -> Struck | None:
    """SIGSTOP for longer than a time-out of the worker, then SIGCONT."""
    with at.fleet.claim(choose, suits=lambda slot: slot.place.profile is profile) as slot:
        if slot is None or not reach_transaction(at, slot, choose):
            return None
        slot.signal(signal.SIGSTOP)
        struck = Struck(slot.name, slot.in_transaction, slot)
        paused_s = choose.uniform(*seconds)
        time.sleep(paused_s)
        slot.signal(signal.SIGCONT)
        struck.details["paused_s"] = round(paused_s, 2)
        struck.at_ns = time.time_ns()
        return struck


def fill_disk(at: Battlefield, choose: random.Random) -> Struck | None:
    """No file of the worker may grow any more; the worker that follows it has room again."""
    with at.fleet.claim(choose) as slot:
        if slot is None or not reach_transaction(at, slot, choose):
            return None
        process = slot.process
        if process is None:
            return None
        slot.held = slot.starved = True
        room = choose.choice((0, 4_096, 100_000))
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        struck = Struck(slot.name, slot.in_transaction, slot, details={"room": room})
        if not at.fleet.wait(lambda: slot.process is None, seconds=20, stop=at.stop):
            no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            with suppress(ProcessLookupError):  # it has ended at this very moment
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, no_limit)
            # A write may have failed a moment before, and the worker be on its way out.
            if not at.fleet.wait(lambda: slot.process is None, seconds=_LATE_END_S, stop=at.stop):
                slot.starved = False
                return None
        return come_back(at, slot, struck)


def move_clock(at: Battlefield, choose: random.Random) -> Struck | None:
    """The worker's clock on the wall jumps; it stays there until the next start."""
    with at.fleet.claim(choose) as slot:
        if slot is None or not reach_transaction(at, slot, choose):
            return None
        hours = choose.choice((-72, -1, 0.05, 1, 72))
        struck = Struck(slot.name, slot.in_transaction, slot, details={"hours": hours})
        slot.status[Field.WALL_AHEAD_MS] = int(hours * 3_600_000)
        return struck


def storm(at: Battlefield, choose: random.Random) -> Struck | None:
    """Workers are stopped cleanly and started, one soon after the other."""
    hit = False
    changes: list[str] = []
    for _ in range(choose.randrange(3, 6)):
        with at.fleet.claim(choose, suits=may_change, seconds=5, busy=False) as slot:
            if slot is None:
                continue
            if slot.wanted:
                hit |= slot.in_transaction
                at.fleet.remove(slot)
                changes.append(f"-{slot.name}")
            else:
                at.fleet.add(slot)
                changes.append(f"+{slot.name}")
        time.sleep(choose.uniform(0.1, 2.0))
    at_ns = time.time_ns()
    restore_size(at)
    last = next((slot for slot in at.fleet.slots if slot.wanted), None)
    return Struck(" ".join(changes), hit, last, at_ns) if changes else None
