"""The example topology, and a command that runs it with many seeds, by hand:

    python -m tests.simulation.example --seeds 10000

The topology has two parts: the first forwards each record and counts records by key. The second,
behind a repartition topic, has state that shows whether a record is lost, doubled or out of order.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import click

from headrace.streams.simulation.api import Simulation, SimulationError
from headrace.streams.simulation.world.faults import CALLS, FaultPlan
from headrace.topology import serdes
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology

KEYS = 9
MODULUS = 1_000_003


def step(state: int, value: int) -> int:
    """Combine a state with a value; the result depends on all values and their order."""
    return (state * 31 + value) % MODULUS


def example_topology() -> Topology:
    builder = StreamsBuilder()
    rows = builder.stream("rows", key=serdes.string, value=serdes.integer)
    rows.to("echo", key=serdes.string, value=serdes.integer)
    rows.group_by_key(key=serdes.string, value=serdes.integer).count(store="seen").to_stream().to(
        "seen", key=serdes.string, value=serdes.long
    )
    moved = rows.group_by(
        lambda key, _: f"r{key}", key=serdes.string, value=serdes.integer, name="moved"
    )
    folded = moved.aggregate(
        lambda: 0,
        lambda _key, value, state: step(state, value),
        store="folded",
        value=serdes.integer,
    )
    folded.to_stream().to("folded", key=serdes.string, value=serdes.integer)
    return builder.build()


def example_inputs(seed: int, count: int = 60) -> dict[str, list[tuple[Any, Any]]]:
    dice = random.Random(f"inputs/{seed}")
    rows = [(f"k{dice.randrange(KEYS)}", number) for number in range(count)]
    return {"rows": rows}


BLOCK = 25
SHOWN = 20


def simulation_of(seed: int, guarantee: str, records: int) -> Simulation:
    plan = FaultPlan()
    if guarantee == "at_least_once":
        # A worker that resumes after its session is not fenced, and its older rows win.
        plan = replace(plan, longest_stall=3.0)
    settings: dict[str, Any] = {"processing.guarantee": guarantee}
    if guarantee == "at_least_once":
        settings["commit.interval.ms"] = 200
    return Simulation(
        example_topology(),
        inputs=example_inputs(seed, records),
        settings=settings,
        workers=1 + seed % 3,
        faults=plan,
    )


def run_block(
    guarantee: str, records: int, seeds: range
) -> tuple[dict[int, str], Counter[tuple[str, str]]]:
    """Run some seeds, and return the failures by seed, and the number of each fault."""
    failed: dict[int, str] = {}
    faults: Counter[tuple[str, str]] = Counter()
    for seed in seeds:
        result = simulation_of(seed, guarantee, records).run(seed)
        faults.update(result.faults)
        try:
            result.check()
        except SimulationError as error:
            failed[seed] = str(error)
    return failed, faults


@click.command()
@click.option("--seeds", default=1000, show_default=True, help="How many.")
@click.option("--first", default=0, show_default=True, help="The first one.")
@click.option("--history", type=int, help="Show the history of this one seed instead.")
@click.option("--records", default=60, show_default=True, help="Records in the input.")
@click.option(
    "--guarantee",
    type=click.Choice(["exactly_once_v2", "at_least_once"]),
    default="exactly_once_v2",
    show_default=True,
)
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Processes at once.")
def main(
    seeds: int, first: int, history: int | None, records: int, guarantee: str, jobs: int
) -> None:
    """Run the example topology's workers on a cluster that fails, with many seeds."""
    if history is not None:
        result = simulation_of(history, guarantee, records).run(history)
        click.echo(result.history)
        try:
            result.check()
        except SimulationError as error:
            click.echo(str(error))
            sys.exit(1)
        return
    began = time.monotonic()
    failed: dict[int, str] = {}
    faults: Counter[tuple[str, str]] = Counter()
    blocks = [range(s, min(s + BLOCK, first + seeds)) for s in range(first, first + seeds, BLOCK)]
    with ProcessPoolExecutor(jobs) as pool:
        for bad, counts in pool.map(partial(run_block, guarantee, records), blocks):
            failed.update(bad)
            faults.update(counts)
            for seed, words in list(bad.items())[:SHOWN]:
                click.echo(f"FAILED seed {seed}: {words[:600]}")
    met = sum(1 for call, kinds in CALLS.items() for kind in kinds if faults[call, kind])
    points = sum(map(len, CALLS.values()))
    click.echo(
        f"{sum(faults.values()):,} faults; {met} of {points} kinds of fault at a call were met; "
        f"{faults['process', 'killed']:,} random kills, "
        f"{faults['process', 'left standing']:,} stalls; {time.monotonic() - began:.0f} s"
    )
    click.echo(f"{seeds - len(failed)} passed, {len(failed)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
