"""Faults of local state, each while its owner is dead: lost, damaged, or that of earlier days."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.chaos import application, hosts
from tests.chaos.battlefield import (
    Battlefield,
    Struck,
    come_back,
    kill,
    may_change,
    reach_transaction,
)
from tests.chaos.status import Field
from tests.chaos.workers import Slot


def rebalance_during_restore(at: Battlefield, choose: random.Random) -> Struck | None:
    """A worker restores everything, slowly; meanwhile another comes, or goes."""
    with at.fleet.claim(choose) as slot:
        if slot is None or not reach_transaction(at, slot, choose):
            return None
        slot.held = True
        tasks = slot.tasks
        struck = kill(at, slot)
        done = [name for name in tasks if tamper(at, slot, name, hosts.delete)]
        slot.slow_restore_ms = choose.choice((100, 300, 600))
        slot.held = False
        if not at.fleet.wait(lambda: slot.status[Field.RESTORING] > 0, seconds=30, stop=at.stop):
            slot.slow_restore_ms = 0
            return None
        time.sleep(choose.uniform(0.0, 0.5))
        others = [other.in_transaction for other in at.fleet.slots if other is not slot]
        with at.fleet.claim(
            choose, suits=lambda other: other is not slot and may_change(other), busy=False
        ) as other:
            if other is None:
                slot.slow_restore_ms = 0
                return None
            struck.details |= {"lost": done, "restoring": slot.status[Field.RESTORING]}
            struck.in_transaction |= any(others)
            if other.wanted:
                at.fleet.remove(other)
                struck.details["rebalance"] = f"-{other.name}"
            else:
                at.fleet.add(other)
                struck.details["rebalance"] = f"+{other.name}"
        slot.slow_restore_ms = 0
        time.sleep(choose.uniform(1.0, 4.0))
        return struck


def lose_state(at: Battlefield, choose: random.Random) -> Struck | None:
    """SIGKILL, and the local state of its tasks is gone."""
    return _tamper_after_kill(at, choose, lambda directory: hosts.delete(directory))


def corrupt_state(at: Battlefield, choose: random.Random) -> Struck | None:
    """SIGKILL, and bytes of the local state of its tasks are overwritten or cut off."""
    return _tamper_after_kill(at, choose, lambda directory: hosts.corrupt(directory, choose))


def put_back_old_state(at: Battlefield, choose: random.Random) -> Struck | None:
    """SIGKILL, and the local state is that of an earlier SIGKILL, some commits ago."""
    with at.fleet.claim(choose) as slot:
        if slot is None or not reach_transaction(at, slot, choose):
            return None
        slot.held = True
        tasks = slot.tasks
        first = kill(at, slot)
        copied = [name for name in tasks if tamper(at, slot, name, partial(_keep, at, slot))]
        slot.held = False
        if not copied or at.fleet.wait_committed(slot, since_ns=first.at_ns, seconds=60) is None:
            return None
        time.sleep(choose.uniform(1.0, 3.0))
        if not reach_transaction(at, slot, choose):
            return None
        slot.held = True
        struck = kill(at, slot)
        struck.details["old"] = [
            name for name in copied if tamper(at, slot, name, partial(_put_back, at, slot))
        ]
        return come_back(at, slot, struck) if struck.details["old"] else None


def _tamper_after_kill(
    at: Battlefield, choose: random.Random, change: Callable[[Path], str | None]
) -> Struck | None:
    with at.fleet.claim(choose) as slot:
        if slot is None or not reach_transaction(at, slot, choose):
            return None
        slot.held = True
        tasks = slot.tasks
        struck = kill(at, slot)
        done = {name: what for name in tasks if (what := tamper(at, slot, name, change))}
        struck.details["state"] = done
        come_back(at, slot, struck)
        return struck if done else None


def tamper(
    at: Battlefield, slot: Slot, task: str, change: Callable[[Path], str | None]
) -> str | None:
    """Change the newest state of a task that nobody owns; returns what was done."""
    tasks = hosts.task_directories(slot.state_dir, application.application_id(at.prefix))
    with hosts.unowned_task(tasks, task) as directory:
        return None if directory is None else change(directory)


def _kept_at(at: Battlefield, slot: Slot, directory: Path) -> Path:
    return at.copies / slot.place.host / directory.name


def _keep(at: Battlefield, slot: Slot, directory: Path) -> str:
    hosts.copy(directory, _kept_at(at, slot, directory))
    return "copied"


def _put_back(at: Battlefield, slot: Slot, directory: Path) -> str:
    return hosts.put_back(_kept_at(at, slot, directory), directory)
