"""Whatever the topology: no record of a backlog in order is late, however partitions are read."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import KeySerdeWarning, StreamsBuilder, TopologyError
from tests.reference.checking import Way, program_of, settings_of
from tests.reference.programs import GLOBAL, Program, write

PARTITIONS = 3
SEEDS = 120
PARTS = 4
_PARTS = [
    pytest.param(part, marks=[] if part == 0 else [pytest.mark.faults]) for part in range(PARTS)
]


def late_records(seed: int, stream_time: str) -> Mapping[tuple[str, str], int] | None:
    """What is late if a program's records are all there at first, in the order of their times.

    None if the program is refused.
    """
    way = Way(partitions=PARTITIONS, interrupted=seed % 2 == 0, exactly_once=seed % 3 > 0)
    program = program_of(seed, way)
    builder = StreamsBuilder()
    dice = random.Random(f"skew/{seed}")
    settings = settings_of(program, way) | {
        "stream.time": stream_time,
        "max.poll.records": dice.choice([1, 2, 7, 100]),
        "processing.exception.handler": "continue",
    }
    try:
        write(program, builder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KeySerdeWarning)
            driver = TopologyTestDriver(
                builder.build(), settings, partitions=PARTITIONS, commit="manual", seed=seed
            )
    except TopologyError:
        return None
    with driver:
        _fill(driver, program, dice)
        if way.interrupted:
            driver.run()
            driver.commit(rounds=1)
            driver.crash(keep=dice.random() < 0.5)
        driver.commit()
        return {what: n for what, n in driver.dropped.items() if what[1].startswith("late")}


def _fill(driver: TopologyTestDriver, program: Program, dice: random.Random) -> None:
    sent = [e for e in program.events if e.kind == "send" and e.topic in driver.input_topics]
    # More records, over a longer time, than the program has: windows are to close.
    more = [replace(e, timestamp=e.timestamp * (1 + n)) for n in range(6) for e in sent]
    for event in sorted(more, key=lambda event: event.timestamp):
        topic = driver.input(event.topic)
        # A few partitions have most of the records.
        partition = min(int(dice.expovariate(1)), PARTITIONS - 1)
        if event.topic != GLOBAL:
            encoded = topic._encoded(event.key, event.value)
            topic.append(*encoded, timestamp=event.timestamp, partition=partition)


@pytest.mark.parametrize("part", _PARTS)
def test_no_record_is_late_that_came_in_order(part: int) -> None:
    outcomes = Counter[str]()
    for seed in range(part, SEEDS, PARTS):
        late = late_records(seed, "slowest")
        outcomes["refused" if late is None else "run"] += 1
        assert not late, f"seed {seed}: {late}"
        outcomes["late with fastest"] += bool(late_records(seed, "fastest"))
    assert outcomes["run"] > SEEDS // PARTS // 2, outcomes
    assert outcomes["late with fastest"] > 0, outcomes
