"""Several inputs, default caches, and what may end an application: exact, or ended by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from headrace.simulation import CALM, FaultPlan, Simulation
from headrace.streams.simulation.run import DISASTERS
from headrace.topology import StreamsBuilder, serdes
from headrace.topology.errors import TopologyError
from tests.simulation.cores import make_pool
from tests.simulation.planted import BUGS_OF_SEVERAL, found_by
from tests.simulation.several import several_inputs
from tests.simulation.several_seeds import NAMES, TOPOLOGY, run_block, run_seed
from tests.simulation.test_seeds import Found, told

pytestmark = [pytest.mark.slow, pytest.mark.faults]

IN_MEMORY = 160
ON_ROCKSDB = 20
BLOCK = 20


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    made = make_pool()
    yield made
    made.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def blocks(pool: ProcessPoolExecutor) -> dict[int, Found]:
    firsts = range(0, IN_MEMORY, BLOCK)
    made = {first: pool.submit(run_block, first, first + BLOCK) for first in firsts}
    return {first: future.result() for first, future in made.items()}


def test_no_seed_is_doubled_or_lost_in_silence(blocks: dict[int, Found]) -> None:
    failed = {seed: words for found, _ in blocks.values() for seed, words in found.items()}
    assert not failed, told(failed)


def test_every_disaster_is_refused_by_its_name(blocks: dict[int, Found]) -> None:
    """What never happened proved nothing."""
    counts: Counter[tuple[str, str]] = sum((c for _, c in blocks.values()), Counter())
    refused = {name for what, name in counts if what == "refused"}
    for name in NAMES:
        if name is not None:
            assert refused & {error.__name__ for error in DISASTERS[name].refusals}, name
    assert counts["store.write", "full"] > 10
    assert counts["clock", "jumped"] > 30


def test_no_seed_is_doubled_or_lost_in_silence_on_rocksdb(
    tmp_path: Path, pool: ProcessPoolExecutor
) -> None:
    failed, _ = pool.submit(run_block, 0, ON_ROCKSDB, tmp_path).result()
    assert not failed, told(failed)


@pytest.mark.parametrize("bug", BUGS_OF_SEVERAL)
def test_a_planted_bug_of_several_inputs_is_found(bug: str) -> None:
    found = found_by(bug, lambda seed: run_seed(seed)[0], IN_MEMORY)
    assert found is not None
    assert run_seed(found)[0] == [], "it fails without the bug too"


def test_a_refusal_without_a_disaster_is_a_failure() -> None:
    """Only an error that names what has happened is a good end."""
    inputs = several_inputs(0)
    simulation = Simulation(TOPOLOGY, inputs=inputs, faults=FaultPlan(disaster="recreated topic"))
    assert simulation.run(3).refusals
    assert not Simulation(TOPOLOGY, inputs=inputs, faults=CALM).run(3).refusals


def test_inputs_whose_keys_have_other_serdes_are_not_simulated() -> None:
    """There is nothing to run: the same key has other bytes, so it lies elsewhere."""
    builder = StreamsBuilder()
    left = builder.stream("left", key=serdes.string, value=serdes.integer)
    right = builder.stream("right", key=serdes.json, value=serdes.integer)
    left.merge(right).group_by_key().count(store="counts").to_stream().to("out")
    with pytest.raises(TopologyError, match=r"string.*json|json.*string"):
        Simulation(builder.build(), inputs={"left": [("a", 1)], "right": [("a", 1)]})
