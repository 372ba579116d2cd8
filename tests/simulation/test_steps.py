"""Windows, sessions, joins, tables and processors under everything that can go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.simulation import FaultPlan, Simulation
from headrace.streams.kafka.plain_producer import PlainProducer
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import SessionWindows, StreamsBuilder, Suppressed, Window, Windowed, serdes
from tests.simulation.cores import make_pool
from tests.simulation.planted import BUGS_OF_STEPS, found_by
from tests.simulation.seeds import AT_LEAST_ONCE
from tests.simulation.step_seeds import (
    TOPOLOGY,
    lost_sessions,
    problems_of,
    run_block,
    run_seed,
    simulation_of,
)
from tests.simulation.steps import AT_LAST, IN_ORDER, steps_inputs
from tests.simulation.test_seeds import told

pytestmark = [pytest.mark.slow, pytest.mark.faults]

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
REFUSED_COMMITS = FaultPlan(
    rate=0.15,
    crashes=1,
    stalls=1.5,
    restarts=1,
    longest_stall=3.0,
    calls=frozenset({"rebalance", "flush", "probe", "commit"}),
)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    made = make_pool()
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
    found = found_by(bug, lambda seed: run_seed(seed)[0], IN_MEMORY)
    assert found is not None
    assert run_seed(found)[0] == [], "it fails without the bug too"


def test_no_row_is_sent_while_an_output_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """At-least-once: a row that let go of what it has told must not outlive what was told."""
    right = PlainProducer.send_changelog
    under_way: list[set[str]] = []

    def send_changelog(self: PlainProducer, place: TopicPartition, rows: Any, *last: Any) -> None:
        under_way.append({record.place.topic for record in self._client._queue})  # type: ignore[attr-defined]
        right(self, place, rows, *last)

    monkeypatch.setattr(PlainProducer, "send_changelog", send_changelog)
    inputs, settings = steps_inputs(4), dict(AT_LEAST_ONCE)
    simulation = Simulation(
        TOPOLOGY, inputs=inputs, settings=settings, workers=1, faults=SLOW_BROKERS
    )
    simulation.run(4)
    assert len(under_way) > 20
    outputs = {topic for topics in under_way for topic in topics if "-changelog" not in topic}
    assert outputs == set()


def test_sessions_meet_when_records_are_read_again_after_a_refused_commit() -> None:
    """At-least-once: rows are ahead of the offsets, and no record is missing from what comes."""
    builder = StreamsBuilder()
    visits = builder.stream("visits", key=serdes.string, value=serdes.integer)
    windows = SessionWindows(inactivity_gap=timedelta(seconds=3), grace=timedelta(seconds=1))
    sets = visits.group_by_key(key=serdes.string, value=serdes.integer).windowed_by(windows)
    seen = sets.aggregate(
        lambda: 0, lambda _, bit, all_: bit | all_, lambda _, a, b: a | b, value=serdes.integer
    )
    seen.suppress(Suppressed.until_window_closes()).to_stream().to("out", value=serdes.integer)
    driver = TopologyTestDriver(
        builder.build(),
        {"processing.guarantee": "at_least_once", "statestore.cache.max.bytes": 0},
        commit="manual",
    )
    source = driver.input("visits")
    source.send("a", 1, timestamp=0)
    source.send("b", 1, timestamp=5_000)  # closes a's session
    source.send("a", 2, timestamp=2_500)  # too late for it, though not for one of its own
    driver.crash(at="offsets_sent")
    source.send("b", 2, timestamp=20_000)
    driver.commit()
    whole = Windowed("a", Window(0, 2_500))
    told = driver.output("out").as_dict()
    assert told[whole] == 1 | 2
    assert lost_sessions([Windowed("a", Window(2_500, 2_500)), whole], list(told)) == []
    assert lost_sessions([Windowed("a", Window(2_500, 2_501))], list(told)) != []
    assert lost_sessions([Windowed("c", Window(0, 0))], list(told)) != []


def test_sessions_that_have_met_are_not_taken_for_lost_ones() -> None:
    met = 0
    for seed in (4, 24):
        simulation = simulation_of(seed, REFUSED_COMMITS)
        result = simulation.run(seed)
        assert problems_of(seed, simulation, result) == []
        told = {key for key, _ in result.outputs("sessions")}
        met += any(key not in told for key, _ in simulation.reference().outputs("sessions"))
    assert met, "no session has met another one"
