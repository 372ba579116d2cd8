"""What is folded before a repartition topic is whole after kills, stalls and failing calls."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.simulation import Simulation
from headrace.topology import StreamsBuilder, Topology, serdes

NUMBERS = [(f"k{number % 7}", number) for number in range(80)]
CACHED = {"statestore.cache.max.bytes": 1_000_000}


def sums() -> Topology:
    """Numbers are added up, and gathered, by what remains when they are divided."""
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=serdes.string, value=serdes.long)
    added = numbers.group_by(lambda _, n: f"{n % 3}", key=serdes.string, name="by-rest")
    added.reduce(
        lambda one, other: one + other, merger=lambda _, one, other: one + other, store="sums"
    ).to_stream().to("sums")
    listed = numbers.group_by(lambda _, n: f"{n % 4}", key=serdes.string, name="by-other-rest")
    listed.aggregate(
        list,
        lambda _, n, ns: sorted([*ns, n]),
        merger=lambda _, one, other: sorted([*one, *other]),
        store="lists",
        value=serdes.json,
    ).to_stream().to("lists")
    return builder.build()


@pytest.mark.parametrize("optimization", ["none", "combine.before.repartition"])
def test_each_number_is_in_its_sum_once(optimization: str) -> None:
    settings: dict[str, Any] = {**CACHED, "topology.optimization": optimization}
    simulation = Simulation(sums(), inputs={"numbers": NUMBERS}, settings=settings, workers=2)
    for seed in range(12):
        result = simulation.run(seed).check()
        assert result.store("sums") == {
            f"{rest}": sum(n for _, n in NUMBERS if n % 3 == rest) for rest in range(3)
        }
        assert result.store("lists") == {
            f"{rest}": [n for _, n in NUMBERS if n % 4 == rest] for rest in range(4)
        }
