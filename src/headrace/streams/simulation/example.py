"""The topology that the simulation is run with when it is given none.

Two sub-topologies: one that echoes each record and counts them by their own key, and behind a
repartition topic one whose state says if a single record is lost, doubled or out of its order.
"""

from __future__ import annotations

import random
from typing import Any

from headrace.topology import serdes
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology

KEYS = 9
MODULUS = 1_000_003


def step(state: int, value: int) -> int:
    """Fold one value into a number that depends on all values and on their order."""
    return (state * 31 + value) % MODULUS


def example_topology() -> Topology:
    """Build it."""
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
    """Make an input for it."""
    dice = random.Random(f"inputs/{seed}")  # noqa: S311 - reproducible on purpose
    rows = [(f"k{dice.randrange(KEYS)}", number) for number in range(count)]
    return {"rows": rows}
