"""Tables outside of Kafka, by seeds: each row once, in each key's order, whatever fails."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from headrace.simulation import FaultPlan, Simulation
from headrace.streams.connectors.duckdb import DuckDbSink
from headrace.streams.connectors.parquet import ParquetSink
from headrace.streams.simulation.world.faults import SINK_CALLS
from headrace.topology import MemorySink, SinkBatching, StreamsBuilder, Topology, serdes
from tests.simulation.blocks import RunSeed, run_each

SEEDS = 80
KEYS = 5


def topology(batching: SinkBatching | None = None) -> Topology:
    builder = StreamsBuilder()
    rows = builder.stream("rows", key=serdes.string, value=serdes.integer)
    rows.filter(lambda _, n: n % 7 != 3).to_sink(MemorySink(batching=batching), name="events")
    counted = MemorySink(keyed=True, batching=batching)
    rows.group_by_key().count(store="counts").to_sink(counted, name="counted")
    return builder.build()


def direct(batching: SinkBatching | None = None) -> Topology:
    """Each record is two rows, which no topic is in front of."""
    builder = StreamsBuilder()
    rows = builder.stream("rows", key=serdes.string, value=serdes.integer)
    twice = rows.filter(lambda _, n: n % 7 != 3).flat_map_values(lambda n: [n, -n])
    twice.to_sink(MemorySink(batching=batching), name="events", direct=True)
    return builder.build()


def inputs() -> dict[str, list[tuple[Any, Any]]]:
    return {"rows": [(f"k{n % KEYS}", n) for n in range(60)]}


def expected() -> dict[str, list[int]]:
    """Counted without the runtime."""
    kept = [n for n in range(60) if n % 7 != 3]
    return {f"k{key}": [n for n in kept if n % KEYS == key] for key in range(KEYS)}


def run_seed(
    seed: int, state_dir: Path | None = None
) -> tuple[list[str], Counter[tuple[str, str]]]:
    faults = FaultPlan(rate=0.05, twins=1.0 if seed % 4 == 1 else 0.0)
    batching = SinkBatching(every=timedelta(minutes=1)) if seed % 2 else None
    simulation = Simulation(
        topology(batching), inputs=inputs(), workers=1 + seed % 3, faults=faults
    )
    result = simulation.run(seed, state_dir=state_dir)
    found: dict[str, list[int]] = {}
    for row in result.sink("events"):
        found.setdefault(row.key, []).append(row.value)
    problems = list(result.problems)
    if found != expected():
        problems.append(f"events: {found}")
    last = {row.key: row.value for row in result.sink("counted")}
    if last != {f"k{key}": 60 // KEYS for key in range(KEYS)}:
        problems.append(f"counted: {last}")
    return problems, result.faults


def run_direct_seed(
    seed: int, state_dir: Path | None = None
) -> tuple[list[str], Counter[tuple[str, str]]]:
    """At least once, as often as not: nothing is written again in front of the sink."""
    batching = SinkBatching(every=timedelta(minutes=1)) if seed % 2 else None
    guarantee = "at_least_once" if seed % 4 < 2 else "exactly_once_v2"
    simulation = Simulation(
        direct(batching),
        inputs=inputs(),
        settings={"processing.guarantee": guarantee},
        workers=1 + seed % 3,
        faults=FaultPlan(rate=0.05, twins=1.0 if seed % 4 == 1 else 0.0),
    )
    result = simulation.run(seed, state_dir=state_dir)
    found: dict[str, list[int]] = {}
    for row in result.sink("events"):
        found.setdefault(row.key, []).append(row.value)
    wanted = {key: [one for n in kept for one in (n, -n)] for key, kept in expected().items()}
    problems = list(result.problems)
    if found != wanted:
        problems.append(f"events: {found}")
    return problems, result.faults


def run_block(
    run: RunSeed, first: int, last: int
) -> tuple[dict[int, list[str]], Counter[tuple[str, str]]]:
    return run_each(run, first, last)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("run", [run_seed, run_direct_seed])
def test_no_row_is_doubled_or_lost(run: RunSeed) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        half = SEEDS // 2
        blocks = [pool.submit(run_block, run, first, first + half) for first in (0, half)]
        results = [block.result() for block in blocks]
    failed = {seed: words for found, _ in results for seed, words in found.items()}
    assert not failed
    faults: Counter[tuple[str, str]] = sum((counts for _, counts in results), Counter())
    happened = {(call, kind) for call, kinds in SINK_CALLS.items() for kind in kinds}
    assert [pair for pair in sorted(happened) if not faults[pair]] == []


def test_files_of_sinks_are_simulated_and_not_made(tmp_path: Path) -> None:
    """Rows are collected as such sinks like it, only for less long."""
    builder = StreamsBuilder()
    rows = builder.stream("rows", key=serdes.string, value=serdes.integer)
    rows.to_sink(ParquetSink(tmp_path / "events", {"n": int}), name="events")
    counted = DuckDbSink(tmp_path / "counts.db", "counts", {"k": str, "n": int}, key="k")
    rows.group_by_key().count(store="counts").to_sink(counted, name="counted")
    simulation = Simulation(builder.build(), inputs=inputs(), faults=FaultPlan(rate=0.05))
    for seed in range(3):
        result = simulation.run(seed)
        assert not result.problems
        assert sorted(row.value for row in result.sink("events")) == list(range(60))
        assert {row.key: row.value for row in result.sink("counted")} == {
            f"k{key}": 60 // KEYS for key in range(KEYS)
        }
    assert list(tmp_path.iterdir()) == []


def test_the_same_seed_does_the_same_again() -> None:
    simulation = Simulation(topology(), inputs=inputs(), faults=FaultPlan(rate=0.05))
    assert simulation.run(3).history == simulation.run(3).history
