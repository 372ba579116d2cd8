"""Backfill and then live is what live alone is: any topology, any cut, without Spark or a broker.

Live, the records come in the order in which the backfill reads them, and each goes all the way
before the next one: the run of perfect timeliness that docs/backfill.md promises.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from heapq import merge
from typing import Any

import pytest

from headrace.state.codec import partition_for_key
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, TopologyError, serdes
from headrace.topology.topology import Topology
from headrace.topology.windows import JoinWindows
from tests.reference.functions import MS, joined
from tests.reference.programs import (
    BEHIND_CACHES,
    FEWER_OPS,
    PLAIN_OPS,
    Event,
    random_program,
    write,
)
from tests.spark_bridge.support.local_engine import (
    Seen,
    backfilled,
    goes_anywhere,
    hand_over,
    last_of,
    outputs_of,
    store_rows_of,
)

CACHED: dict[str, object] = {
    "null.key.policy": "drop",
    "default.key.serde": "string",
    # Rows are compared, and with `slowest` live keeps them until a commit of all upstream tasks.
    "stream.time": "fastest",
}
UNCACHED: dict[str, object] = {**CACHED, "statestore.cache.max.bytes": 0}
CONTINUE: dict[str, object] = {"processing.exception.handler": "continue"}


def in_order(events: Sequence[Event], partitions: int = 1) -> list[Event]:
    """The order in which tasks take records of two topics that are all there."""
    streams: dict[tuple[str, int], list[tuple[tuple[int, str, int, int], Event]]] = {}
    for number, event in enumerate(events):
        partition = partition_of(event, partitions)
        stream = streams.setdefault((event.topic, partition), [])
        largest = max(event.timestamp, stream[-1][0][0] if stream else -1)
        stream.append(((largest, event.topic, partition, number), event))
    return [event for _, event in merge(*streams.values(), key=lambda pair: pair[0])]


def partition_of(event: Event, partitions: int) -> int:
    if event.key is None:
        return event.timestamp % partitions
    return partition_for_key(event.key.encode(), partitions)


def send(driver: TopologyTestDriver, event: Event, *, run: bool) -> None:
    written: Any = driver.input(event.topic)
    key = None if event.key is None else written.key_serde.serialize(event.key)
    value = None if event.value is None else written.value_serde.serialize(event.value)
    partition = partition_of(event, len(driver.cluster.topics[event.topic].logs))
    driver.cluster.append(event.topic, value, key, partition, event.timestamp, None)
    if run:
        driver.run()


def check(
    topology: Topology,
    events: Sequence[Event],
    cut: int,
    *,
    partitions: int = 1,
    cached: bool = False,
    failing: bool = False,
    **options: Any,
) -> bool:
    """Compare a run that is live alone with a backfill at a cut that goes on live.

    Returns:
        Whether they were compared: not where live itself leaves open what is done
        (`goes_anywhere`).

    Which updates caches leave out is theirs to choose, so behind them the last ones are compared,
    and folds of updates that do not take back what they have added are left out (`BEHIND_CACHES`).
    """
    ordered = in_order(events, partitions)
    settings = {**(CACHED if cached else UNCACHED), **(CONTINUE if failing else {})}
    alone = TopologyTestDriver(topology, settings, partitions=partitions, commit="manual")
    for event in ordered:
        send(alone, event, run=True)
    alone.commit()
    if partitions > 1 and goes_anywhere(alone):
        return False
    both = TopologyTestDriver(topology, settings, partitions=partitions, commit="manual")
    for event in ordered[:cut]:
        send(both, event, run=False)
    plan, rows = backfilled(topology, settings, both.cluster, **options)
    hand_over(plan, rows, both.cluster, "test")
    both.run()  # or what comes next might be what a worker that died had read
    for event in ordered[cut:]:
        send(both, event, run=True)
    both.commit()
    kept = values_of if cached else store_rows_of
    assert kept(both) == kept(alone)
    for topic in alone.cluster.topics:
        if topic.startswith(("stream-", "table-")):
            found, expected = outputs_of(both, topic), outputs_of(alone, topic)
            if cached and topic.startswith("table-"):
                assert last_values_of(found) == last_values_of(expected), topic
                continue
            if partitions > 1:
                found, expected = pooled(found), pooled(expected)
            elif meets_itself(topology):
                found, expected = of_keys(found), of_keys(expected)
            assert found == expected, topic
    return True


def meets_itself(topology: Topology) -> bool:
    """Whether one task reads several repartition topics: of equal times, any may come first.

    In a backfill each record's consequences follow it at once, and live they come as the topics are
    fetched: docs/backfill.md, "Guarantees". Each key has its own order in both.
    """
    internal = [
        sum(len(source.topics) for source in sub.sources if source.internal)
        for sub in topology.sub_topologies
    ]
    return max(internal) > 1


def values_of(driver: TopologyTestDriver) -> Any:
    """The rows without times: one that is computed keeps its time while its value is the same."""
    rows = store_rows_of(driver)
    return {place: {key: value for key, value, _ in found} for place, found in rows.items()}


def last_values_of(seen: Sequence[Sequence[Seen]]) -> Any:
    return [{key: one[1] for key, one in last.items()} for last in last_of(seen)]


def pooled(seen: Sequence[Sequence[Seen]]) -> list[list[Seen]]:
    """All partitions as one: tasks that write to one do so in any order, and records without a key
    go anywhere."""
    return [sorted((record for partition in seen for record in partition), key=repr)]


def of_keys(seen: Sequence[Sequence[Seen]]) -> list[list[Seen]]:
    """Each key's records in their order; those of different keys in any."""
    return [sorted(records, key=lambda record: repr(record[0])) for records in seen]


def check_seeds(
    seeds: range,
    *,
    cached: bool = False,
    failing: bool = False,
    ops: tuple[str, ...] = (),
    **options: Any,
) -> None:
    compared = 0
    ops = ops or (BEHIND_CACHES if cached else PLAIN_OPS)
    for seed in seeds:
        program = random_program(seed, interrupted=False, cached=cached, ops=ops, plain=True)
        program = replace(program, failing=failing)
        builder = StreamsBuilder()
        try:
            write(program, builder)
            topology = builder.build()
        except TopologyError:
            continue
        events = program.events
        if options.get("partitions", 1) > 1:
            # Live, records without a key go to any partition.
            events = tuple(event for event in events if event.key is not None)
        cut = random.Random(seed).randint(0, len(events))
        try:
            compared += check(topology, events, cut, cached=cached, failing=failing, **options)
        except Exception as error:
            raise AssertionError(f"seed {seed}, cut {cut}: {error}") from error
    assert compared > len(seeds) // 2


PARTS = [pytest.param(part, marks=[] if part < 2 else [pytest.mark.faults]) for part in range(4)]
"""Some are compared with all tests; `make faults` compares the others."""


@pytest.mark.parametrize("part", PARTS)
def test_backfill_and_then_live_is_live_alone(part: int) -> None:
    """Outputs in their order, rows, and what the live tasks go on with."""
    check_seeds(range(part * 1000, part * 1000 + 50))


@pytest.mark.parametrize("part", PARTS)
def test_backfill_of_several_partitions_and_then_live_is_live_alone(part: int) -> None:
    check_seeds(range(part * 1000, part * 1000 + 40), partitions=3)


@pytest.mark.parametrize("part", PARTS)
def test_a_backfill_of_functions_that_fail_and_then_live_is_live_alone(part: int) -> None:
    first = 10_000 + part * 1000
    check_seeds(range(first, first + 40), failing=True)
    check_seeds(range(first, first + 40), failing=True, partitions=3)
    check_seeds(range(first, first + 40), failing=True, cached=True)


def test_fewer_records_go_on_in_a_backfill_as_live() -> None:
    around = ("map", "select_key", "filter", "merge", "repartition", "count", "to_table")
    check_seeds(range(40), ops=(*FEWER_OPS, *around))


@pytest.mark.parametrize(("order", "partitions"), [("exact", 1), ("combine", 3)])
def test_behind_the_default_caches_the_same_is_left(order: str, partitions: int) -> None:
    check_seeds(range(9000, 9030), cached=True, order=order, partitions=partitions)


def test_state_that_is_written_all_the_time_and_moves_to_disk_is_the_same() -> None:
    check_seeds(range(7000, 7040), uncommitted_bytes=1, memory_bytes=2000)


def joined_without_keys() -> Topology:
    """An outer join behind a step that takes some keys away."""
    builder = StreamsBuilder()
    left, right = (builder.stream(f"in-{n}", value=serdes.long) for n in range(2))
    rekeyed = right.select_key(lambda k, v: None if k == "gone" else k)
    windows = JoinWindows(before=MS, after=MS, grace=MS)
    left.outer_join(rekeyed, joined, windows, name="j").to("stream-0", value=serdes.long)
    return builder.build()


@pytest.mark.parametrize("partitions", [1, 2, 3])
@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
def test_where_a_record_without_a_key_goes_is_left_open(cached: bool, partitions: int) -> None:
    """Its time ends what waits in its partition and nowhere else, in a backfill as live.

    A backfill comes to what live comes to with one of its places.
    """
    topology, settings = joined_without_keys(), CACHED if cached else UNCACHED
    sent = (("in-1", "dd", 12, 92), ("in-0", "a", 4, 101), ("in-1", "gone", 17, 152))
    events = [Event("send", *one) for one in sent]

    def driver() -> TopologyTestDriver:
        return TopologyTestDriver(topology, settings, partitions=partitions, commit="manual")

    live = []
    for place in range(partitions):
        one = driver()
        one.cluster._next_keyless["test-j-right-repartition"] = place
        for event in in_order(events, partitions):
            send(one, event, run=True)
        one.commit()
        live.append(store_rows_of(one))
    backfill = driver()
    for event in events:
        send(backfill, event, run=False)
    hand_over(*backfilled(topology, settings, backfill.cluster), backfill.cluster, "test")
    assert store_rows_of(backfill) in live
    assert len({repr(rows) for rows in live}) == partitions
    assert check(topology, events, 3, partitions=partitions, cached=cached) == (partitions == 1)
