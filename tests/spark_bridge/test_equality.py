"""Backfill and then live is what live alone is: any topology, any cut, without Spark or a broker.

Live, the records come in the order in which the backfill reads them, and each goes all the way
before the next one: the run of perfect timeliness that docs/backfill.md promises.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from heapq import merge
from typing import Any

import pytest

from streams.testing import TopologyTestDriver
from tests.reference.programs import OPS, SOURCES, Event, random_program, write
from tests.spark_bridge.local_engine import backfilled, hand_over, outputs_of, rows_of
from topology import StreamsBuilder, TopologyError
from topology.graph import Topology

SETTINGS: dict[str, object] = {"null.key.policy": "drop", "statestore.cache.max.bytes": 0}


def in_order(events: Sequence[Event]) -> list[Event]:
    """The order in which a task takes records of two topics that are all there."""
    streams = []
    for number, topic in enumerate(SOURCES):
        largest, keyed = -1, []
        for place, event in enumerate(e for e in events if e.topic == topic):
            largest = max(largest, event.timestamp)
            keyed.append(((largest, number, place), event))
        streams.append(keyed)
    return [event for _, event in merge(*streams, key=lambda pair: pair[0])]


def send(driver: TopologyTestDriver, event: Event, *, run: bool) -> None:
    written: Any = driver.input(event.topic)
    key = None if event.key is None else written._key.serialize(event.key)
    value = None if event.value is None else written._value.serialize(event.value)
    driver.cluster.append(event.topic, value, key, -1, event.timestamp, None)
    if run:
        driver.run()


def check(topology: Topology, events: Sequence[Event], cut: int, **options: Any) -> None:
    """Compare a run that is live alone with a backfill at a cut that goes on live."""
    ordered = in_order(events)
    alone = TopologyTestDriver(topology, SETTINGS, commit="manual")
    for event in ordered:
        send(alone, event, run=True)
    alone.commit()
    both = TopologyTestDriver(topology, SETTINGS, commit="manual")
    for event in ordered[:cut]:
        send(both, event, run=False)
    plan, rows = backfilled(topology, SETTINGS, both.cluster, **options)
    hand_over(plan, rows, both.cluster, "test")
    for event in ordered[cut:]:
        send(both, event, run=True)
    both.commit()
    assert rows_of(both) == rows_of(alone)
    for topic in alone.cluster.topics:
        if topic.startswith(("stream-", "table-")):
            assert outputs_of(both, topic) == outputs_of(alone, topic), topic


@pytest.mark.parametrize("part", range(8))
def test_backfill_and_then_live_is_live_alone(part: int) -> None:
    compared = 0
    for seed in range(part * 1000, part * 1000 + 60):
        program = random_program(seed, interrupted=False, cached=False, ops=tuple(OPS))
        builder = StreamsBuilder()
        try:
            write(program, builder)
            topology = builder.build()
        except TopologyError:
            continue
        cut = random.Random(seed).randint(0, len(program.events))
        try:
            check(topology, program.events, cut)
        except Exception as error:
            raise AssertionError(f"seed {seed}, cut {cut}: {error}") from error
        compared += 1
    assert compared > 20
