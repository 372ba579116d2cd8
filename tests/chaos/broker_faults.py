"""Faults of brokers, each of a node for what it leads or coordinates at that moment."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from tests.chaos import application
from tests.chaos.battlefield import Battlefield, Struck, reach_transaction
from tests.chaos.cluster import NODES
from tests.chaos.workers import Slot

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
    """SIGKILL, or a clean stop, of the node that has a role; it is started again soon after."""
    with at.fleet.claim(choose) as slot:
        if slot is None:
            return None
        role, node = pick(at, slot, choose)
        if node is None or not reach_transaction(at, slot, choose):
            return None
        in_transaction = slot.in_transaction
        began = time.monotonic()
        if clean:
            at.cluster.stop(node)
        else:
            at.cluster.kill(node)
            in_transaction = slot.in_transaction
        struck = Struck(f"node {node}", in_transaction, slot, details={"role": role}).watched()
    if pick is leader_of:
        struck.details |= _new_leader(at, role.split(" ", 1)[1], node, struck)
    time.sleep(max(0.0, choose.uniform(0.2, 5.0) - (time.monotonic() - began)))
    _mend(at, struck)
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
