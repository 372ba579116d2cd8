"""What writes a run's input ends what it began."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from headrace.simulation import CALM, Simulation
from headrace.topology import StreamsBuilder, serdes


@pytest.mark.parametrize("seed", range(3))
def test_rows_without_keys_that_are_written_in_transactions_are_all_decided(seed: int) -> None:
    """Each goes to a partition of its own; that one, and no other, is part of the transaction."""
    rows = [(None, str(number)) for number in range(300)]
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string, value=serdes.string).to("out")
    simulation = Simulation(
        builder.build(),
        inputs={"in": rows},
        partitions=4,
        workers=1,
        faults=replace(CALM, foreign_transactions=True),
    )
    result = simulation.run(seed)
    assert re.search(r"input-\d+ commits", result.history)
    assert re.search(r"input-\d+ aborts", result.history)
    assert result.problems == ()
    assert sorted(v for _, v in result.outputs("out")) == sorted(v for _, v in rows)
