"""Every call of clients and stores is struck in every phase of a worker: a seed for each, in turn.

The topology has what seeds of the others have apart: two inputs that meet in a count, a count
behind a repartition topic, a join by a foreign key, a global table. What comes out is compared with
a recount of the input.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

from headrace.simulation import CALLS, FaultPlan, Simulation, SimulationResult
from headrace.streams.simulation.run import DISASTERS
from headrace.streams.simulation.world.coverage import PHASES, Coverage
from headrace.topology import KTable, StreamsBuilder, Topology, serdes
from tests.simulation.seeds import AT_LEAST_ONCE

KEYS = 4
REMAINDERS = 3
GROUPS = 3
EVENTS = 24
NAMES = [(f"k{n}", f"name{n}") for n in range(KEYS)]

TRANSACTIONAL = ("init_transactions", "send_offsets_to_transaction", "commit_transaction",
                 "abort_transaction")  # fmt: skip
PLAIN = ("commit", "flush")

_COMMITS = ("send_offsets_to_transaction", "commit_transaction", "commit")
_RESTORES = ("store.begin_restore", "store.restore")

UNREACHABLE: dict[tuple[str, str], str] = {
    **{
        (call, "connecting"): "a worker that connects asks what there is, and makes its clients"
        for call in CALLS
        if call not in ("describe", "consume", "end_offsets", "start_offsets")
    },
    **{
        (call, "joining"): "without tasks there is nothing to process, to commit or to restore"
        for call in (*_COMMITS, *_RESTORES, "committed", "delivery", "produce")
    },
    **{
        (call, phase): "with its first step a commit is the phase `committing`, or `closing`"
        for call in _COMMITS
        for phase in ("restoring", "running")
    },
    **{
        (call, "running"): "a task that is opened or reads its changelog does not run yet"
        for call in ("store.open", "store.restore")
    },
    **{
        (call, "committing"): "the tasks that a commit is of all run, and keep what they have"
        for call in (*_RESTORES, "store.drop", "store.open", "committed")
    },
    **{
        (call, "committing"): "the phase ends with the error that is the reason for it"
        for call in ("init_transactions",)
    },
    **{
        (call, "closing"): "who closes begins nothing"
        for call in (*_RESTORES, "store.drop", "store.open", "committed", "init_transactions")
    },
}
"""The calls that no worker makes in a phase, and why; the tests see that none does."""

SELDOM: dict[tuple[str, str], str] = {
    ("abort_transaction", "joining"): "the partitions go while work is in hand",
    ("abort_transaction", "restoring"): "new tasks come while work is in hand, and then all go",
    ("abort_transaction", "committing"): "a commit finds that an input is another topic now",
    ("abort_transaction", "closing"): "the last commit fails in a way that leaves the client well",
    ("consume", "committing"): "a commit is given up without a reaction: the process ends",
    ("consume", "connecting"): "records are read at the start only where offsets are gone",
    ("delete_records", "committing"): "a purge goes on beside the next commit",
    ("delete_records", "restoring"): "a purge follows a commit, and tasks come meanwhile",
    ("delete_records", "joining"): "a purge follows the commit in which the last task goes",
    ("flush", "joining"): "at least once, with work in hand while the place is lost",
    ("flush", "restoring"): "the same, while new tasks come",
    ("init_transactions", "restoring"): "a commit is refused while new tasks come",
    ("flush", "running"): "at least once, when an abort has work in hand",
    ("producer.poll", "joining"): "reports come after the partitions have gone",
    ("rebalance", "closing"): "a generation begins between the last commit and the close",
    ("start_offsets", "running"): "a task without offsets begins anew while others run",
    ("start_offsets", "committing"): "asked beside the worker, for tasks that come",
    ("start_offsets", "closing"): "the same, of a worker that is told to stop meanwhile",
    ("store.begin_restore", "running"): "a task that was lost comes back with its files broken",
    ("store.drop", "running"): "the same, with a position",
    ("store.end_restore", "committing"): "tasks go while a commit fails",
    ("store.end_restore", "closing"): "the end comes in the middle of a restore",
    ("store.end_restore", "running"): "a restore is given up for another reason than its own",
    ("store.write", "running"): "an empty changelog is noted while others run",
}
"""What needs several rare things at once: it may be met by no seed of the range."""

_AIMED_AT = {
    ("consume", "connecting"),
    ("start_offsets", "running"),
    ("start_offsets", "closing"),
    ("store.write", "running"),
}
"""Those of them that have seeds all the same."""


_SCARCE = (
    ("commit_transaction", "closing"),
    ("committed", "running"),
    ("end_offsets", "running"),
    ("end_offsets", "closing"),
    ("start_offsets", "closing"),
    ("delete_records", "closing"),
    ("flush", "closing"),
    ("store.write", "running"),
)
"""What is made seldom has more seeds."""


def targets() -> list[tuple[str, str]]:
    """Each call in each phase where it is struck, by the seeds that have it in focus."""
    pairs = [(call, phase) for call in CALLS for phase in PHASES]
    without = (UNREACHABLE | SELDOM).keys() - _AIMED_AT
    return [*(pair for pair in pairs if pair not in without), *_SCARCE, *_SCARCE]


def strikes_topology() -> Topology:
    """Build it."""
    builder = StreamsBuilder()
    left, right = (
        builder.stream(topic, key=serdes.string, value=serdes.integer)
        for topic in ("left", "right")
    )
    both = left.merge(right)
    both.group_by_key().count(store="by-key").to_stream().to("by-key")
    both.group_by(
        lambda _, number: f"r{number % REMAINDERS}", key=serdes.string, name="by-remainder"
    ).count(store="by-remainder").to_stream().to("by-remainder")
    names = builder.global_table("names", key=serdes.string, value=serdes.string, store="names")
    left.join(names, lambda n, name: f"{name}:{n}", key_mapper=lambda key, _: key).to(
        "named", key=serdes.string, value=serdes.string
    )
    orders: KTable[str, Any] = builder.table(
        "orders", key=serdes.string, value=serdes.json, store="orders"
    )
    groups: KTable[str, Any] = builder.table(
        "groups", key=serdes.string, value=serdes.json, store="groups"
    )
    orders.left_join(
        groups,
        lambda order, group: [order["n"], None if group is None else group["n"]],
        foreign_key=lambda order: order["group"],
        value=serdes.json,
        store="joined",
        name="joined",
    ).to_stream().to("joined", key=serdes.string, value=serdes.json)
    return builder.build()


TOPOLOGY = strikes_topology()


def inputs_of(seed: int) -> dict[str, list[tuple[Any, Any]]]:
    """What a seed writes; all names are there from the beginning."""
    dice = random.Random(f"strikes/{seed}")
    rows = {
        topic: [(f"k{dice.randrange(KEYS)}", dice.randrange(100)) for _ in range(EVENTS)]
        for topic in ("left", "right")
    }
    orders = [
        (f"o{dice.randrange(KEYS)}", {"n": n, "group": f"g{dice.randrange(GROUPS)}"})
        for n in range(EVENTS // 2)
    ]
    groups = [
        (f"g{dice.randrange(GROUPS)}", None if n % 5 == 4 else {"n": n}) for n in range(EVENTS // 3)
    ]
    return {**rows, "orders": orders, "groups": groups, "names": NAMES}


def _mixed(seed: int) -> int:
    """What the rest of a seed follows from, so that a call does not always meet the same."""
    return seed + 5 * (seed // len(targets()))


def exactly_once_of(seed: int) -> bool:
    """Each call is struck under either guarantee, as far as it is made there."""
    call, phase = targets()[seed % len(targets())]
    if (call, phase) == ("end_offsets", "closing"):
        return False
    return call not in PLAIN and (call in TRANSACTIONAL or seed // len(targets()) % 4 != 3)


def disaster_of(seed: int) -> str | None:
    """Every sixth run has one, whatever is struck besides."""
    if not exactly_once_of(seed) or _mixed(seed) % 6:
        return None
    return list(DISASTERS)[_mixed(seed) // 6 % len(DISASTERS)]


REPLACING = FaultPlan(
    rate=0.1,
    crashes=4.0,
    stalls=0.3,
    restarts=4.0,
    lost_state=1.0,
    slow_restores=0.97,
    calls=frozenset(TRANSACTIONAL),
    kinds=frozenset({"timeout_lost", "timeout_done", "fatal", "expire", "retriable", "abortable"}),
)
"""Producers are replaced while tasks that have come are being restored."""


def plan_of(seed: int) -> FaultPlan:
    call, phase = targets()[seed % len(targets())]
    if call in TRANSACTIONAL and phase in ("running", "committing"):
        return replace(REPLACING, focus=(call, phase))
    often = phase in ("closing", "connecting", "joining", "restoring")
    # After an abort tasks ask again while others run.
    asks = call in ("committed", "end_offsets", "start_offsets", "flush", "store.write")
    slow = phase == "restoring"
    return FaultPlan(
        rate=0.04 if asks and phase == "running" else 0.01,
        crashes=3.0 if slow else 1.0,
        restarts=5.0 if often else 1.5,
        longest_stall=16.0 if exactly_once_of(seed) else 3.0,
        lost_state=0.5 if slow or call.startswith("store.") else 0.2,
        disaster=disaster_of(seed),
        slow_restores=0.9 if slow else 0.0,
        twins=1.5 if _mixed(seed) % 4 == 1 and exactly_once_of(seed) else 0.0,
        focus=(call, phase),
    )


def settings_of(seed: int) -> dict[str, Any]:
    chosen: dict[str, Any] = {} if exactly_once_of(seed) else dict(AT_LEAST_ONCE)
    _, phase = targets()[seed % len(targets())]
    if phase == "closing":
        # So that there is something to commit at the end.
        chosen["commit.interval.ms"] = 3_000
    if phase != "running":
        # So that restores take a while, and others go on in the middle of them.
        chosen["restore.batch.records"] = 2
    if _mixed(seed) % 5 == 0:
        chosen["on.stop"] = "stay"
    return chosen


def simulation_of(seed: int) -> Simulation:
    return Simulation(
        TOPOLOGY,
        inputs=inputs_of(seed),
        settings=settings_of(seed),
        # What restores beside others that run needs others.
        workers=3 if plan_of(seed).slow_restores else 1 + _mixed(seed) % 3,
        faults=plan_of(seed),
    )


def expected_of(inputs: dict[str, list[tuple[Any, Any]]]) -> dict[str, Counter[str]]:
    """How often each key is counted, and each number named."""
    both = [*inputs["left"], *inputs["right"]]
    return {
        "by-key": Counter(key for key, _ in both),
        "by-remainder": Counter(f"r{number % REMAINDERS}" for _, number in both),
        "named": Counter(f"{dict(NAMES)[key]}:{number}" for key, number in inputs["left"]),
    }


def joined_of(inputs: dict[str, list[tuple[Any, Any]]]) -> dict[str, Any]:
    """What the join by a foreign key comes to."""
    orders, groups = dict(inputs["orders"]), dict(inputs["groups"])
    return {
        key: [order["n"], None if (group := groups.get(order["group"])) is None else group["n"]]
        for key, order in orders.items()
    }


def problems_of(seed: int, result: SimulationResult) -> list[str]:
    """What is neither as it should be, nor named by an error that ended the application."""
    inputs = inputs_of(seed)
    ended, exactly_once = bool(result.refusals), exactly_once_of(seed)
    if not ended:
        # Who deletes a topic of which nothing was read has lost the records, and nobody else.
        inputs = {topic: result.inputs(topic) for topic in inputs if topic != "names"}
    found = list(result.problems)
    for topic, wanted in expected_of(inputs).items():
        told: dict[str, list[int]] = {}
        for key, value in result.outputs(topic):
            if topic == "named":
                told.setdefault(value, []).append(len(told.get(value, [])) + 1)
            else:
                told.setdefault(key, []).append(value)
        for key in sorted({*told, *wanted}):
            mine, right = told.get(key, []), wanted[key]
            last = max(mine, default=0)
            if last < right and not ended:
                found.append(f"{topic} {key}: lost: {mine} for {right} records")
            if exactly_once and (last > right or mine != list(range(1, last + 1))):
                found.append(f"{topic} {key}: doubled or disordered: {mine} for {right} records")
    if not ended:
        # As far as an order was deleted with its topic, what was told of it before is told.
        last_told = dict(result.outputs("joined"))
        for key, pair in joined_of(inputs).items():
            if last_told.get(key) != pair:
                found.append(f"joined {key}: {last_told.get(key)} instead of {pair}")
        found += result._check_states()
    return found


def run_seed(seed: int) -> tuple[list[str], Coverage, Counter[tuple[str, str]]]:
    """Run one seed and say what was wrong, and what was met."""
    result = simulation_of(seed).run(seed)
    return problems_of(seed, result), result.coverage, result.faults


def run_block(first: int, last: int) -> tuple[dict[int, list[str]], Coverage, Counter[Any]]:
    """Run some seeds; returns what was wrong by seed, and what was met."""
    failed: dict[int, list[str]] = {}
    coverage, faults = Coverage(), Counter[Any]()
    for seed in range(first, last):
        problems, met, counts = run_seed(seed)
        coverage.add(met)
        faults.update(counts)
        if problems:
            failed[seed] = problems
    return failed, coverage, faults
