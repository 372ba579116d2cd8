"""A group that is deleted, with tasks without state in front of those that count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.simulation import FaultPlan, Simulation, SimulationResult
from headrace.streams.admin.start_check import LostGroup
from headrace.topology import StreamsBuilder, Topology, serdes

SEEDS = range(12)
WORDS = 5
INPUTS: dict[str, list[tuple[Any, Any]]] = {"a": [(f"k{n}", f"w{n % WORDS}") for n in range(40)]}
BETWEEN = "simulated-by-word-repartition"


def counted() -> Topology:
    builder = StreamsBuilder()
    lines = builder.stream("a", key=serdes.string, value=serdes.string)
    words = lines.group_by(lambda _, word: word, key=serdes.string, name="by-word")
    words.count(store="n").to_stream().to("out")
    return builder.build()


TOPOLOGY = counted()


def run(seed: int) -> SimulationResult:
    faults = FaultPlan(rate=0.01, disaster="whole group")
    settings = {"repartition.purge.interval.ms": 500 if seed % 2 else 30_000}
    simulation = Simulation(
        TOPOLOGY, inputs=INPUTS, workers=1 + seed % 3, faults=faults, settings=settings
    )
    return simulation.run(seed)


def test_nothing_is_written_between_once_more() -> None:
    refused = 0
    for seed in SEEDS:
        result = run(seed)
        assert not result.problems, seed
        assert len(result.outputs(BETWEEN)) <= len(INPUTS["a"]), seed
        assert all("a-0" in text for text in result.refusals), seed
        refused += bool(result.refusals)
    assert refused > 3


def test_without_the_look_it_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above looks at does happen."""
    nothing: Callable[..., frozenset[Any]] = lambda *_: frozenset()  # noqa: E731
    monkeypatch.setattr(LostGroup, "__call__", nothing)
    assert any(len(run(seed).outputs(BETWEEN)) > len(INPUTS["a"]) for seed in SEEDS)
