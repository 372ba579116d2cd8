"""Brokers and tables that take less than workers could write: all of it comes there, and once."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.simulation import CALM, FaultPlan, Simulation
from headrace.streams.kafka.adaptive_batch_size import AdaptiveBatchSize
from headrace.topology import MemorySink, StreamsBuilder, Topology, serdes

ROWS, KEYS = 300, 3
RATE = 8.0
"""Records and rows per second: a transaction, and a statement, take many times fewer in time."""
SEEDS = range(8)


def counting() -> Topology:
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=serdes.string, value=serdes.integer)
    numbers.to("copies", key=serdes.string, value=serdes.integer)
    numbers.group_by_key().count(store="counts")
    return builder.build()


def writing() -> Topology:
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=serdes.string, value=serdes.integer)
    numbers.to_sink(MemorySink(), name="table", direct=True)
    return builder.build()


def run(topology: Topology, faults: FaultPlan, seed: int, rows: int = ROWS) -> list[str]:
    """Returns what was wrong."""
    simulation = Simulation(
        topology,
        inputs={"numbers": [(f"k{n % KEYS}", n) for n in range(rows)]},
        settings={"max.poll.records": 1000},
        workers=1,
        partitions=1,
        faults=faults,
    )
    result = simulation.run(seed)
    if result.problems:
        return list(result.problems)
    if topology.describe().count("copies"):
        written = Counter(value for _, value in result.outputs("copies"))
        counts = result.check().store("counts")
        wrong = [] if sum(counts.values()) == rows else [f"counts: {counts}"]
    else:
        written, wrong = Counter(row.value for row in result.sink("table")), []
    return wrong + ([] if written == Counter(range(rows)) else [f"lost or doubled: {written}"])


def replaced(calm: FaultPlan, **changes: object) -> FaultPlan:
    return FaultPlan(**{**{f: getattr(calm, f) for f in calm.__dataclass_fields__}, **changes})  # type: ignore[arg-type]


SLOW_BROKERS = replaced(CALM, broker_rate=RATE)
SLOW_TABLE = replaced(CALM, sink_rate=10.0)
"""A statement may take two seconds, which are 20 rows."""


@pytest.mark.parametrize("seed", SEEDS)
def test_brokers_that_are_slow_get_all_of_it(seed: int) -> None:
    assert run(counting(), SLOW_BROKERS, seed) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_that_is_slow_gets_all_of_it(seed: int) -> None:
    assert run(writing(), SLOW_TABLE, seed) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_slow_brokers_and_faults_lose_and_double_nothing(seed: int) -> None:
    faults = FaultPlan(rate=0.01, broker_rate=10 * RATE, twins=0.5)
    assert run(counting(), faults, seed, rows=300) == []


@pytest.mark.parametrize(
    ("topology", "faults"),
    [(counting(), SLOW_BROKERS), (writing(), SLOW_TABLE)],
    ids=["brokers", "table"],
)
def test_without_the_bound_it_stands_still(
    topology: Topology, faults: FaultPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug that is planted: sizes do not follow what is taken."""
    right = AdaptiveBatchSize.__init__

    def unbounded(self: AdaptiveBatchSize, **given: object) -> None:
        right(self, **given)  # type: ignore[arg-type]
        self.size = self.max_size

    monkeypatch.setattr(AdaptiveBatchSize, "__init__", unbounded)
    monkeypatch.setattr(AdaptiveBatchSize, "timed_out", lambda *_, **__: None)
    monkeypatch.setattr(AdaptiveBatchSize, "succeeded", lambda *_, **__: None)
    assert any("not done after" in problem for problem in run(topology, faults, 1))
