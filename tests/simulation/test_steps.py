"""Windows, sessions, joins, tables and processors under everything that can go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from streams.clients import TopicPartition
from streams.producer import PlainProducer
from streams.simulation import FaultPlan, Simulation
from tests.simulation.planted import BUGS_OF_STEPS, planted
from tests.simulation.seeds import AT_LEAST_ONCE
from tests.simulation.step_seeds import TOPOLOGY, run_block, run_seed, simulation_of
from tests.simulation.steps import AT_LAST, IN_ORDER, steps_inputs
from tests.simulation.test_seeds import told

IN_MEMORY = 120
ON_ROCKSDB = 15
BLOCK = 15
SLOW_BROKERS = FaultPlan(
    rate=0.5,
    crashes=0,
    stalls=0,
    restarts=0,
    calls=frozenset({"delivery"}),
    kinds=frozenset({"delay"}),
)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    # As in `test_seeds`.
    made = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    yield made
    made.shutdown(cancel_futures=True)


@pytest.mark.parametrize("first", range(0, IN_MEMORY, BLOCK))
def test_no_seed_changes_what_comes_of_steps(first: int, pool: ProcessPoolExecutor) -> None:
    failed, _ = pool.submit(run_block, first, first + BLOCK).result()
    assert not failed, told(failed)


@pytest.mark.parametrize("first", range(0, ON_ROCKSDB, 5))
def test_no_seed_changes_what_comes_of_steps_on_rocksdb(
    first: int, tmp_path: Path, pool: ProcessPoolExecutor
) -> None:
    failed, _ = pool.submit(run_block, first, first + 5, tmp_path).result()
    assert not failed, told(failed)


def test_every_step_has_results_to_compare() -> None:
    expected = simulation_of(0).reference()
    for topic in (*IN_ORDER, *AT_LAST):
        assert len(expected.outputs(topic)) > 2, topic
    for store in ("windows", "closed", "sessions", "near-this-join-store", "table", "groups"):
        assert expected.store(store), store
    alone = [pair for _, pair in expected.outputs("pairs") if pair[1] is None]
    assert 3 < len(alone) < len(expected.outputs("pairs"))


@pytest.mark.parametrize("bug", BUGS_OF_STEPS)
def test_a_planted_bug_of_steps_is_found(bug: str) -> None:
    with planted(bug):
        found = next((seed for seed in range(IN_MEMORY) if run_seed(seed)[0]), None)
    assert found is not None
    assert run_seed(found)[0] == [], "it fails without the bug too"


def test_no_row_is_sent_while_an_output_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """At-least-once: a row that let go of what it has told must not outlive what was told."""
    right = PlainProducer.send_changelog
    under_way: list[set[str]] = []

    def send_changelog(self: PlainProducer, place: TopicPartition, rows: Any) -> None:
        under_way.append({record.place.topic for record in self._client._queue})  # type: ignore[attr-defined]
        right(self, place, rows)

    monkeypatch.setattr(PlainProducer, "send_changelog", send_changelog)
    inputs, settings = steps_inputs(4), dict(AT_LEAST_ONCE)
    simulation = Simulation(
        TOPOLOGY, inputs=inputs, settings=settings, workers=1, faults=SLOW_BROKERS
    )
    simulation.run(4)
    assert len(under_way) > 20
    outputs = {topic for topics in under_way for topic in topics if "-changelog" not in topic}
    assert outputs == set()
