"""A backlog of partitions that are far apart in event time: no record is late, and windows close.

Each partition has its records in the order of their times, and all of them are there before the
first worker starts. Some partitions have few records for the same hours, so workers are far ahead
in these; one may be empty, and some have a record of the future, which is dropped. A join has one
input behind a repartition topic and one that is read directly: a row is unmatched only if it is.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace import event_time
from headrace.simulation import FaultPlan, Simulation, SimulationResult
from headrace.state.codec import partition_for_key
from headrace.topology import JoinWindows, StreamsBuilder, TimeWindows, Topology, serdes
from headrace.topology.context.task_context import RESULTS_PER_COMMIT
from tests.simulation.blocks import run_each
from tests.simulation.seeds import plan_of, settings_of

PARTITIONS = 4
SPAN_MS = 100_000
SIZE_MS = 1_000
GROUPS = 5
END_MS = SPAN_MS + 2 * SIZE_MS
"""Time of the last record of each partition, after all others are closed."""
FUTURE_MS = 4_000_000_000_000
"""Ahead of any clock: `max_ahead` drops it."""
PAID_MS = 400
"""How far the times of joined records may be apart."""
MS = timedelta(milliseconds=1)
KEYS = {
    partition: next(
        f"k{n}" for n in range(99) if partition_for_key(f"k{n}".encode(), 4) == partition
    )
    for partition in range(PARTITIONS)
}


def skew_topology() -> Topology:
    """Windows after a repartition topic, and after a second one what these emit when they close."""
    builder = StreamsBuilder()
    times = event_time(
        lambda time: time, format="epoch_ms", max_ahead=timedelta(hours=1), on_invalid="drop"
    )
    rows = builder.stream("rows", key=serdes.string, value=serdes.long, timestamps=times)
    by_time = rows.map(lambda _, time: (paid_key(time), time))
    paid = builder.stream("paid", key=serdes.string, value=serdes.long, timestamps=times)
    near = JoinWindows(before=PAID_MS * MS, after=PAID_MS * MS, grace=0 * MS)
    joined = by_time.repartition(key=serdes.string, value=serdes.long, name="by-time").left_join(
        paid, lambda _, paid: "unmatched" if paid is None else "matched", windows=near
    )
    joined.to("joined", key=serdes.string, value=serdes.string)
    group = rows.group_by(lambda _, time: f"g{time % GROUPS}", key=serdes.string, name="by-group")
    windows = TimeWindows(size=SIZE_MS * MS)
    counts = group.windowed_by(windows).count(store="counts")
    counts.to_stream(_flat).to("counts", key=serdes.string, value=serdes.long)
    waiting = TimeWindows(size=SIZE_MS * MS, grace=SIZE_MS * MS)
    closed = group.windowed_by(waiting, emit="on_window_close").count(store="closed")
    flat = closed.to_stream(_flat)
    flat.to("closed", key=serdes.string, value=serdes.long)
    moved = closed.to_stream(lambda key, _: key.key[:1])
    all_of = moved.group_by_key(key=serdes.string, value=serdes.long, name="all")
    sums = all_of.windowed_by(TimeWindows(size=SIZE_MS * MS)).aggregate(
        lambda: 0, lambda _, count, total: total + count, store="sums", value=serdes.long
    )
    sums.to_stream(_flat).to("sums", key=serdes.string, value=serdes.long)
    return builder.build()


def paid_key(time: int) -> str:
    return f"t{time}"


def is_paid(time: int) -> bool:
    return time % 3 != 0


def _flat(key: Any, _: Any) -> str:
    return f"{key.key}@{key.window.start_ms}"


TOPOLOGY = skew_topology()
"""One for all seeds: it is compiled for each run."""


def results_per_commit(seed: int) -> int:
    """Few in two of three seeds: what closes together is emitted over many commits."""
    return (RESULTS_PER_COMMIT, 1, 7)[seed // 2 % 3]


def _crowded(seed: int, time: int) -> int:
    """Fewer windows with more rows each, where few results fit into a commit."""
    if results_per_commit(seed) == RESULTS_PER_COMMIT:
        return time
    return time - time % (10 * SIZE_MS) + time % SIZE_MS


def skew_inputs(seed: int) -> dict[str, list[tuple[Any, Any]]]:
    """The records of each partition in the order of their times, more of some than of others."""
    dice = random.Random(f"skew/{seed}")
    rows: list[tuple[Any, Any]] = []
    empty = dice.choice([None, *range(PARTITIONS)])
    for partition, key in KEYS.items():
        if partition != empty:
            count = dice.choice([12, 25, 120])
            times = sorted(_crowded(seed, dice.randrange(1, SPAN_MS)) for _ in range(count))
            if dice.random() < 0.3:
                times.insert(dice.randrange(len(times)), FUTURE_MS)
            rows += [(key, time) for time in (*times, END_MS)]
    known = {time for _, time in rows if time < END_MS and is_paid(time)}
    paid = sorted((time + dice.randrange(-PAID_MS, PAID_MS + 1), paid_key(time)) for time in known)
    last = [(key, END_MS) for key in KEYS.values()]
    return {"rows": rows, "paid": [*((key, max(0, time)) for time, key in paid), *last]}


LATE_ANSWERS = FaultPlan(
    rate=0.4,
    crashes=0.5,
    stalls=0,
    restarts=0.5,
    calls=frozenset({"end_offsets"}),
    kinds=frozenset({"delay"}),
)
"""Much is written between two questions to the cluster."""


def skew_plan(seed: int) -> FaultPlan:
    """As of other seeds, with slow markers more often: a time may be visible before its records."""
    plan = LATE_ANSWERS if seed % 4 == 1 else plan_of(seed)
    slow = 0.5 if seed % 2 else plan.slow_markers
    return replace(
        plan,
        backlog=True,
        foreign_transactions=False,
        slow_markers=slow,
        results_per_commit=results_per_commit(seed),
    )


def simulation_of(seed: int) -> Simulation:
    return Simulation(
        TOPOLOGY,
        inputs=skew_inputs(seed),
        settings={
            **settings_of(seed),
            "max.poll.records": (1, 5, 20)[seed % 3],
            "commit.interval.ms": 10,
            "commit.interval.min.ms": 10,
        },
        workers=1 + seed % 3,
        partitions=PARTITIONS,
        faults=skew_plan(seed),
    )


def problems_of(seed: int, result: SimulationResult) -> list[str]:
    """Where something else was counted than every record once."""
    exactly_once = seed % 5 != 4
    expected, sums, joined = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for _, time in skew_inputs(seed)["rows"]:
        if time == FUTURE_MS:
            continue
        start = time - time % SIZE_MS
        expected[f"g{time % GROUPS}@{start}"] += 1
        sums[f"g@{start}"] += 1
        if time < END_MS:
            joined[paid_key(time), "matched" if is_paid(time) else "unmatched"] += 1
    # All partitions have passed the windows before the last one.
    last = f"@{END_MS}"
    ended = {key: n for key, n in expected.items() if not key.endswith(last)}
    ended_sums = {key: n for key, n in sums.items() if not key.endswith(last)}
    found = list(result.problems)
    for topic, right in (("counts", expected), ("closed", ended), ("sums", ended_sums)):
        mine = dict(result.outputs(topic))
        for key, count in right.items():
            has = mine.get(key, 0)
            if has != count if exactly_once else has < count:
                found.append(f"{topic} {key}: {has} instead of {count}")
        if exactly_once and topic == "closed" and len(result.outputs(topic)) != len(right):
            found.append(f"closed: {len(result.outputs(topic))} results instead of {len(right)}")
    results = Counter(result.outputs("joined"))
    for pair in joined.keys() | results.keys():
        has, right = results[pair], joined[pair]
        # At-least-once may emit a row as unmatched before it is read again.
        if has != right if exactly_once else has < right:
            found.append(f"joined {pair}: {has} instead of {right}")
    return found


def run_seed(
    seed: int, state_dir: Path | None = None
) -> tuple[list[str], Mapping[tuple[str, str], int]]:
    """Run one seed and say what was wrong, and which faults there were."""
    result = simulation_of(seed).run(seed, state_dir=state_dir)
    return problems_of(seed, result), result.faults


def run_block(
    first: int, last: int, state_dir: Path | None = None
) -> tuple[dict[int, list[str]], Counter[tuple[str, str]]]:
    """Run some seeds; returns what was wrong by seed, and all faults."""
    return run_each(run_seed, first, last, state_dir)
