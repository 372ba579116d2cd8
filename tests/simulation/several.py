"""Two inputs that meet by key, and a third one beside them: what a state of several inputs needs.

Each record of `left` and `right` counts once, by its key and, behind a repartition topic, by its
value's remainder, in whatever order they come. So the counts of a key are 1, 2, 3 …, and say at
once what is doubled and what is lost.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from headrace.simulation import SimulationResult
from headrace.topology import StreamsBuilder, Topology, serdes

INPUTS = ("left", "right")
KEYS = 5
REMAINDERS = 3

Row = tuple[str, int]


def several_topology() -> Topology:
    """Build it."""
    builder = StreamsBuilder()
    left, right = (
        builder.stream(topic, key=serdes.string, value=serdes.integer) for topic in INPUTS
    )
    both = left.merge(right)
    both.group_by_key().count(store="by-key").to_stream().to("by-key")
    both.group_by(
        lambda _, number: f"r{number % REMAINDERS}", key=serdes.string, name="by-remainder"
    ).count(store="by-remainder").to_stream().to("by-remainder")
    return builder.build()


def several_inputs(seed: int, count: int = 40) -> dict[str, list[tuple[Any, Any]]]:
    """Make an input for it; the right one is often quiet."""
    dice = random.Random(f"several/{seed}")
    quiet = dice.random() < 0.5
    return {
        topic: [
            (f"k{dice.randrange(KEYS)}", dice.randrange(100))
            for _ in range(count // 5 if quiet and topic == "right" else count)
        ]
        for topic in INPUTS
    }


def expected_of(inputs: dict[str, list[tuple[Any, Any]]]) -> dict[str, Counter[str]]:
    """How often each key is to be counted, by output topic."""
    rows = [row for topic in INPUTS for row in inputs[topic]]
    return {
        "by-key": Counter(key for key, _ in rows),
        "by-remainder": Counter(f"r{number % REMAINDERS}" for _, number in rows),
    }


def differences(
    result: SimulationResult,
    expected: dict[str, Counter[str]],
    *,
    exactly_once: bool,
    cached: bool,
) -> list[str]:
    """What is lost, doubled or out of order; where a worker refused to go on, nothing is lost."""
    found = []
    for topic, counts in expected.items():
        told: dict[str, list[int]] = {}
        for key, value in result.outputs(topic):
            told.setdefault(key, []).append(value)
        for key in sorted({*told, *counts}):
            mine, right = told.get(key, []), counts[key]
            problem = _problem(
                mine, right, exactly_once=exactly_once, cached=cached, ended=bool(result.refusals)
            )
            if problem:
                found.append(f"{topic} {key}: {problem}: {mine} for {right} records")
    return found


def _problem(
    mine: list[int], right: int, *, exactly_once: bool, cached: bool, ended: bool
) -> str | None:
    last = mine[-1] if mine else 0
    if last < right and not ended:
        return "lost"
    if not exactly_once:
        return None
    if last > right:
        return "doubled"
    in_order = sorted(set(mine)) if cached else list(range(1, last + 1))
    return None if mine == in_order else "out of sequence"
