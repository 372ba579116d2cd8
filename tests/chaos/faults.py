"""One function for each kind of fault; the tables at the end name them.

A fault waits until what it wants to hit is in a transaction, strikes, and puts back what it took
away. It returns what it hit, or None if there was nothing to hit.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos import application, hosts
from tests.chaos.cluster import NODES, Cluster
from tests.chaos.diary import Diary
from tests.chaos.status import COMMIT_STEPS, Field
from tests.chaos.workers import (
    BOTH_SHORT,
    SHORT_SESSION,
    SHORT_TRANSACTION,
    Fleet,
    Profile,
    Slot,
    step_number,
)

INTERVAL_S = 0.4
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
    """

    target: str
    in_transaction: bool
    worker: Slot | None = None
    at_ns: int = field(default_factory=time.time_ns)
    details: dict[str, Any] = field(default_factory=dict)


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
    """

    cluster: Cluster
    fleet: Fleet
    prefix: str
    copies: Path
    diary: Diary
    stop: threading.Event


Fault = Callable[[Battlefield, random.Random], Struck | None]


# -- workers ---------------------------------------------------------------------------------------


def kill_worker(at: Battlefield, choose: random.Random) -> Struck | None:
    """SIGKILL at a random moment of a transaction; the worker comes back soon, or late."""
    with at.fleet.claim(choose) as slot:
        if slot is None or not _in_transaction(at, slot, choose):
            return None
        struck = _kill(at, slot)
        late_s = choose.choice((0.0, 0.0, 1.0, 8.0))
        time.sleep(late_s)
        struck.details["away_s"] = late_s
        return _come_back(at, slot, struck)


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
        struck = Struck(slot.name, slot.in_transaction, slot, details={"delay_ms": delay_ms})
        struck.details["step"] = slot.status.step
        return _come_back(at, slot, struck)


def pause_worker(
    at: Battlefield,
    choose: random.Random,
    *,
    profile: Profile,
    seconds: tuple[float, float],
) -> Struck | None:
    """SIGSTOP for longer than a time-out of the worker, then SIGCONT."""
    with at.fleet.claim(choose, suits=lambda slot: slot.place.profile is profile) as slot:
        if slot is None or not _in_transaction(at, slot, choose):
            return None
        slot.signal(signal.SIGSTOP)
        struck = Struck(slot.name, slot.in_transaction, slot)
        paused_s = choose.uniform(*seconds)
        time.sleep(paused_s)
        slot.signal(signal.SIGCONT)
        struck.details["paused_s"] = round(paused_s, 2)
        struck.at_ns = time.time_ns()
        return struck


def storm(at: Battlefield, choose: random.Random) -> Struck | None:
    """Workers are stopped cleanly and started, one soon after the other."""
    hit = False
    changes: list[str] = []
    for _ in range(choose.randrange(3, 6)):
        with at.fleet.claim(choose, suits=_may_change, seconds=5, busy=False) as slot:
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


def rebalance_during_restore(at: Battlefield, choose: random.Random) -> Struck | None:
    """A worker restores everything, slowly; meanwhile another comes, or goes."""
    with at.fleet.claim(choose) as slot:
        if slot is None or not _in_transaction(at, slot, choose):
            return None
        slot.held = True
        tasks = slot.tasks
        struck = _kill(at, slot)
        done = [name for name in tasks if _tamper(at, slot, name, hosts.delete)]
        slot.slow_restore_ms = choose.choice((100, 300, 600))
        slot.held = False
        if not at.fleet.wait(lambda: slot.status[Field.RESTORING] > 0, seconds=30, stop=at.stop):
            slot.slow_restore_ms = 0
            return None
        time.sleep(choose.uniform(0.0, 0.5))
        others = [other.in_transaction for other in at.fleet.slots if other is not slot]
        with at.fleet.claim(
            choose, suits=lambda other: other is not slot and _may_change(other), busy=False
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
        if slot is None or not _in_transaction(at, slot, choose):
            return None
        slot.held = True
        tasks = slot.tasks
        first = _kill(at, slot)
        copied = [name for name in tasks if _tamper(at, slot, name, partial(_keep, at, slot))]
        slot.held = False
        if not copied or at.fleet.wait_committed(slot, since_ns=first.at_ns, seconds=60) is None:
            return None
        time.sleep(choose.uniform(1.0, 3.0))
        if not _in_transaction(at, slot, choose):
            return None
        slot.held = True
        struck = _kill(at, slot)
        struck.details["old"] = [
            name for name in copied if _tamper(at, slot, name, partial(_put_back, at, slot))
        ]
        return _come_back(at, slot, struck) if struck.details["old"] else None


def _tamper_after_kill(
    at: Battlefield, choose: random.Random, change: Callable[[Path], str | None]
) -> Struck | None:
    with at.fleet.claim(choose) as slot:
        if slot is None or not _in_transaction(at, slot, choose):
            return None
        slot.held = True
        tasks = slot.tasks
        struck = _kill(at, slot)
        done = {name: what for name in tasks if (what := _tamper(at, slot, name, change))}
        struck.details["state"] = done
        _come_back(at, slot, struck)
        return struck if done else None


def _tamper(
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


def _in_transaction(at: Battlefield, slot: Slot, choose: random.Random) -> bool:
    """Wait for a random moment at which a worker has a transaction open."""
    time.sleep(choose.uniform(0, INTERVAL_S))
    return at.fleet.wait_in_transaction(slot)


def _kill(at: Battlefield, slot: Slot) -> Struck:
    slot.held = True
    at.fleet.kill(slot)
    # The file is as it was when the worker died.
    return Struck(slot.name, slot.in_transaction, slot, details={"step": slot.status.step})


def _come_back(at: Battlefield, slot: Slot, struck: Struck) -> Struck:
    slot.held = False
    struck.details["restart_ns"] = time.time_ns()
    return struck


def _may_change(slot: Slot) -> bool:
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


# -- brokers ---------------------------------------------------------------------------------------

Pick = Callable[[Battlefield, Slot, random.Random], "tuple[str, int | None]"]


def leader_of(at: Battlefield, slot: Slot, choose: random.Random) -> tuple[str, int | None]:
    """The leader of a partition that a task of this worker reads, writes or keeps its state in."""
    tasks = slot.tasks
    if not tasks:
        return "no task", None
    sub, partition = choose.choice(tasks).split("_")
    kinds = ("input", "output", "changelog") if sub == "0" else ("repartition", "changelog")
    prefix, kind = at.prefix, choose.choice(kinds)
    topic = {
        "input": application.topic(prefix, "orders"),
        "output": application.topic(prefix, "account-totals"),
        "changelog": application.changelog_topic(prefix, "totals" if sub == "0" else "regions"),
        "repartition": application.repartition_topic(prefix),
    }[kind]
    return f"{kind} {topic}-{partition}", at.cluster.leader(topic, int(partition))


def group_coordinator_of(at: Battlefield, _: Slot, __: random.Random) -> tuple[str, int | None]:
    """The coordinator of the application's group."""
    group = application.application_id(at.prefix)
    return f"group {group}", at.cluster.group_coordinator(group)


def transaction_coordinator_of(
    at: Battlefield, slot: Slot, _: random.Random
) -> tuple[str, int | None]:
    """The coordinator of a worker's transactions."""
    identity = at.fleet.transactional_id(slot)
    return f"transactions of {identity}", at.cluster.transaction_coordinator(identity)


def down_broker(
    at: Battlefield, choose: random.Random, *, pick: Pick, clean: bool
) -> Struck | None:
    """SIGKILL, or a clean stop, of the node that has a role; it is started again soon after."""
    with at.fleet.claim(choose) as slot:
        if slot is None:
            return None
        role, node = pick(at, slot, choose)
        if node is None or not _in_transaction(at, slot, choose):
            return None
        in_transaction = slot.in_transaction
        began = time.monotonic()
        if clean:
            at.cluster.stop(node)
        else:
            at.cluster.kill(node)
            in_transaction = slot.in_transaction
        struck = Struck(f"node {node}", in_transaction, slot, details={"role": role})
    if pick is leader_of:
        struck.details |= _new_leader(at, role.split(" ", 1)[1], node, struck)
    time.sleep(max(0.0, choose.uniform(0.2, 5.0) - (time.monotonic() - began)))
    _mend(at, struck)
    return struck


def kill_all_brokers(at: Battlefield, choose: random.Random) -> Struck | None:
    """SIGKILL of every node, within a moment."""
    with at.fleet.claim(choose) as slot:
        if slot is None or not _in_transaction(at, slot, choose):
            return None
        for node in choose.sample(NODES, len(NODES)):
            at.cluster.kill(node)
        struck = Struck("all nodes", slot.in_transaction, slot)
    time.sleep(choose.uniform(0.2, 3.0))
    _mend(at, struck)
    struck.at_ns = time.time_ns()
    return struck


def pause_broker(at: Battlefield, choose: random.Random) -> Struck | None:
    """SIGSTOP of a node, for less or for longer than the other nodes wait for it."""
    with at.fleet.claim(choose) as slot:
        if slot is None:
            return None
        role, node = choose.choice((leader_of, group_coordinator_of, transaction_coordinator_of))(
            at, slot, choose
        )
        if node is None or not _in_transaction(at, slot, choose):
            return None
        at.cluster.pause(node)
        struck = Struck(f"node {node}", slot.in_transaction, slot, details={"role": role})
    paused_s = choose.uniform(1.5, 9.0)
    time.sleep(paused_s)
    at.cluster.resume(node)
    struck.details["paused_s"] = round(paused_s, 2)
    _mend(at, struck)
    return struck


def _new_leader(at: Battlefield, place: str, node: int, struck: Struck) -> dict[str, Any]:
    """Wait for the next leader of a partition, then for the next commit."""
    topic, _, partition = place.rpartition("-")
    began = time.monotonic()

    def moved() -> bool:
        leader = at.cluster.leader(topic, int(partition))
        return leader is not None and leader != node

    if not at.fleet.wait(moved, seconds=20):
        return {}
    led_ns = time.time_ns()
    found = {"new_leader_s": round(time.monotonic() - began, 3)}
    slot = struck.worker
    # Another fault may hit this worker now; then its next commit says nothing of the leader.
    if slot is not None and slot.lock.acquire(blocking=False):
        try:
            committed_s = at.fleet.wait_committed(slot, since_ns=led_ns, seconds=30)
        finally:
            slot.lock.release()
        if slot.lives:
            found["commit_after_leader_s"] = 30.0 if committed_s is None else round(committed_s, 3)
    return found


def _mend(at: Battlefield, struck: Struck) -> None:
    """Have all nodes up, and every partition replicated, before the next fault may come."""
    began = time.monotonic()
    at.cluster.start()
    struck.details["started_s"] = round(time.monotonic() - began, 1)
    whole = at.cluster.wait_whole(60)
    struck.details["whole_s"] = round(time.monotonic() - began, 1)
    if not whole:
        struck.details["not_whole"] = True


# -- all of them -----------------------------------------------------------------------------------

KILL_FAULTS: dict[str, Fault] = {
    "worker killed": kill_worker,
    "worker killed as its transaction begins": partial(die_at_step, step="transaction_begun"),
    **{
        f"worker killed after {step.replace('_', ' ')}": partial(die_at_step, step=step)
        for step in COMMIT_STEPS
    },
}

STATE_AND_PAUSE_FAULTS: dict[str, Fault] = {
    "worker paused beyond session and transaction": partial(
        pause_worker, profile=BOTH_SHORT, seconds=(8.0, 11.0)
    ),
    "worker paused beyond its session": partial(
        pause_worker, profile=SHORT_SESSION, seconds=(7.0, 10.0)
    ),
    "worker paused beyond its transaction": partial(
        pause_worker, profile=SHORT_TRANSACTION, seconds=(7.0, 9.0)
    ),
    "workers added and removed in a storm": storm,
    "rebalance during a restore": rebalance_during_restore,
    "state deleted": lose_state,
    "state corrupted": corrupt_state,
    "state replaced by an older copy": put_back_old_state,
}

BROKER_FAULTS: dict[str, Fault] = {
    "leader killed": partial(down_broker, pick=leader_of, clean=False),
    "leader bounced": partial(down_broker, pick=leader_of, clean=True),
    "group coordinator killed": partial(down_broker, pick=group_coordinator_of, clean=False),
    "group coordinator bounced": partial(down_broker, pick=group_coordinator_of, clean=True),
    "transaction coordinator killed": partial(
        down_broker, pick=transaction_coordinator_of, clean=False
    ),
    "transaction coordinator bounced": partial(
        down_broker, pick=transaction_coordinator_of, clean=True
    ),
    "all brokers killed": kill_all_brokers,
    "broker paused": pause_broker,
}
