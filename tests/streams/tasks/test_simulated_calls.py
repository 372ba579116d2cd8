"""Calls under simulation: kills, aborts and stalls change nothing of what comes out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.simulation import Simulation
from headrace.topology import Call, StreamsBuilder, serdes


def simulation() -> Simulation:
    async def asked(value: int, call: Call) -> list[Any]:
        await asyncio.sleep(value % 3)
        return [value, call.topic, call.partition]

    def scored(values: list[Any]) -> list[int]:
        return [value[0] * 2 for value in values]

    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=serdes.string, value=serdes.integer)
    answers = numbers.map_async(asked, concurrency=7, name="ask")
    answers.to("answers", key=serdes.string, value=serdes.json)
    answers.map_batches(scored, max_records=5, name="score").group_by_key(
        key=serdes.string, value=serdes.integer
    ).reduce(lambda one, other: one + other, store="sums").to_stream().to(
        "sums", key=serdes.string, value=serdes.integer
    )
    rows = [(f"k{n % 5}", n) for n in range(60)]
    return Simulation(builder.build(), inputs={"numbers": rows}, workers=2)


def test_what_comes_out_is_as_without_faults() -> None:
    made = simulation()
    for seed in range(12):
        made.run(seed).check()


@pytest.mark.parametrize("seed", [3, 4])
def test_a_seed_does_the_same_again(seed: int) -> None:
    assert simulation().run(seed).history == simulation().run(seed).history
