"""Faults of brokers, each of a node for what it leads or coordinates at that moment."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from tests.chaos import application
from tests.chaos.battlefield import Battlefield, Struck, reach_transaction
from tests.chaos.cluster import NODES
from tests.chaos.workers import Slot, events_between

LEADER_WITHIN_S = 10.0
"""Time in which a commit is aimed at after a new leader, where nothing else was struck."""
LEADER_PROMISED_S = 15.0
"""Time in which it is promised: a call of the client may hang until it is given up, and the member
may have to join again."""
_MEASURED_SHARE = 0.5
_ALONE_S = 90.0
_BUSY_S = 30.0
_HUNG_S = 50.0
_SLOW_S = 5.0

Pick = Callable[[Battlefield, Slot, random.Random], "tuple[str, int | None]"]


def leader_of(at: Battlefield, slot: Slot, choose: random.Random) -> tuple[str, int | None]:
    """The leader of a partition that a task of this worker reads, writes or keeps its state in."""
    tasks = slot.tasks
    if not tasks:
        return "no task", None
    sub, partition = choose.choice(tasks).split("_")
    kinds = ("input", "output", "changelog") if sub == "0" else ("repartition", "changelog")
    prefix, kind = at.prefix, choose.choice(kinds)
    stores = [store for store, home in application.STORES.items() if home == int(sub)]
    between = application.REPARTITIONS[max(0, int(sub) - 1)]
    topic = {
        "input": application.topic(prefix, choose.choice(list(application.INPUTS))),
        "output": application.topic(prefix, choose.choice(application.OUTPUTS_OF_TASKS)),
        "changelog": application.changelog_topic(prefix, choose.choice(stores)),
        "repartition": application.repartition_topic(prefix, between),
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
    """SIGKILL, or a clean stop, of the node that has a role; it is started again soon after.

    Half of the leaders fall while no other lane strikes: only then the time to the next commit is
    that of the leader change alone.
    """
    began = time.monotonic()
    is_measured = pick is leader_of and choose.random() < _MEASURED_SHARE
    turn = at.turns.alone(seconds=_ALONE_S) if is_measured else nullcontext(False)
    with turn as is_alone:
        if is_alone:
            is_alone = at.fleet.wait_busy(seconds=_BUSY_S)
        struck = _take_down(at, choose, pick=pick, clean=clean)
        if struck is None:
            return None
        struck.details["alone"] = is_alone
    time.sleep(max(0.0, choose.uniform(0.2, 5.0) - (time.monotonic() - began)))
    _mend(at, struck)
    return struck


def _take_down(at: Battlefield, choose: random.Random, *, pick: Pick, clean: bool) -> Struck | None:
    with at.fleet.claim(choose) as slot:
        if slot is None:
            return None
        role, node = pick(at, slot, choose)
        if node is None or not reach_transaction(at, slot, choose):
            return None
        in_transaction = slot.in_transaction
        if clean:
            at.cluster.stop(node)
        else:
            at.cluster.kill(node)
            in_transaction = slot.in_transaction
        struck = Struck(f"node {node}", in_transaction, slot, details={"role": role}).watched()
    if pick is leader_of:
        struck.details |= _new_leader(at, role.split(" ", 1)[1], node, struck)
    return struck


def kill_all_brokers(at: Battlefield, choose: random.Random) -> Struck | None:
    """SIGKILL of every node, within a moment."""
    with at.fleet.claim(choose) as slot:
        if slot is None or not reach_transaction(at, slot, choose):
            return None
        at.cluster.is_away = True
        for node in choose.sample(NODES, len(NODES)):
            at.cluster.kill(node)
        struck = Struck("all nodes", slot.in_transaction, slot)
    try:
        time.sleep(choose.uniform(0.2, 3.0))
        at.cluster.start()
        # Nothing can go on before that.
        struck.at_ns = time.time_ns()
        struck.watched()
        _mend(at, struck)
    finally:
        at.cluster.is_away = False
    return struck


def pause_broker(at: Battlefield, choose: random.Random) -> Struck | None:
    """SIGSTOP of a node, for less or for longer than the other nodes wait for it."""
    with at.fleet.claim(choose) as slot:
        if slot is None:
            return None
        role, node = choose.choice((leader_of, group_coordinator_of, transaction_coordinator_of))(
            at, slot, choose
        )
        if node is None or not reach_transaction(at, slot, choose):
            return None
        at.cluster.pause(node)
        struck = Struck(f"node {node}", slot.in_transaction, slot, details={"role": role}).watched()
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
    found: dict[str, Any] = {"new_leader_s": round(time.monotonic() - began, 3)}
    slot = struck.worker
    # Another fault may hit this worker now; then its next commit says nothing of the leader.
    if slot is not None and slot.lock.acquire(blocking=False):
        try:
            committed_s = at.fleet.wait_committed(slot, since_ns=led_ns, seconds=LEADER_WITHIN_S)
            if committed_s is None:
                at.fleet.dump(slot)
                committed_s = at.fleet.wait_committed(slot, since_ns=led_ns, seconds=_HUNG_S)
        finally:
            slot.lock.release()
        if slot.lives:
            took_s = LEADER_WITHIN_S + _HUNG_S if committed_s is None else committed_s
            found |= {"commit_after_leader_s": round(took_s, 3), "worker": slot.name}
            if took_s > _SLOW_S:
                end_ns = led_ns + int(took_s * 1e9)
                found["happened"] = events_between(slot.log, led_ns, end_ns)
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
