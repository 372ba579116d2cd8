"""Whatever is committed, aborted and crashed in between: the results are those of a recount."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.streams.testing.driver import CrashPoint, TopologyTestDriver
from headrace.topology import Materialized, StreamsBuilder, Topology, serdes
from tests.support.examples import examples
from tests.support.topologies import EXACTLY_ONCE, NO_CACHE

pytestmark = pytest.mark.slow

Action = tuple[Any, ...]

KEYS = st.sampled_from(["a", "b", "c", "dd", "ee", "f"])
SENDS = st.tuples(
    st.just("send"),
    st.sampled_from(["left", "right"]),
    st.lists(st.tuples(KEYS, st.integers(0, 9)), min_size=1, max_size=4),
)
DISTURBANCES = st.one_of(
    st.just(("commit",)),
    st.just(("commit once",)),
    st.just(("abort",)),
    st.just(("restart",)),
    st.just(("run",)),
    st.tuples(st.just("crash"), st.none(), st.booleans()),
    st.tuples(st.just("crash"), st.sampled_from(get_args(CrashPoint)), st.booleans()),
)
ACTIONS = st.lists(st.one_of(SENDS, SENDS, DISTURBANCES), max_size=20)
PARTITIONS = st.integers(1, 3)
SETTINGS = st.sampled_from([EXACTLY_ONCE, NO_CACHE])


def perform(driver: TopologyTestDriver, action: Action) -> None:
    match action:
        case ("send", topic, records):
            driver.input(topic).send_many(records)
        case ("commit",):
            driver.commit()
        case ("commit once",):
            driver.commit(rounds=1)
        case ("abort",):
            driver.abort()
        case ("restart",):
            driver.restart()
        case ("run",):
            driver.run()
        case ("crash", at, keep):
            driver.crash(at, keep=keep)
        case _:
            raise AssertionError(action)


def sent(actions: list[Action]) -> list[tuple[str, str, int]]:
    """What went in: topic, key and value, in order."""
    return [
        (action[1], key, value)
        for action in actions
        if action[0] == "send"
        for key, value in action[2]
    ]


def values_by_key(driver: TopologyTestDriver, topic: str) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for record in driver.output(topic).read_all():
        found[record.key].append(record.value)
    return dict(found)


def check_rising(found: dict[Any, list[int]], expected: dict[Any, int], *, cached: bool) -> None:
    assert {key: values[-1] for key, values in found.items()} == expected
    for values in found.values():
        assert values == (sorted(set(values)) if cached else list(range(1, values[-1] + 1)))


def counts() -> Topology:
    """Two inputs that meet in one count, and a second count behind a repartition."""
    builder = StreamsBuilder()
    left, right = (builder.stream(t, key=serdes.string, value=serdes.long) for t in SIDES)
    both = left.merge(right)
    both.group_by_key().count(store="by-key").to_stream().to("by-key")
    grouped = both.group_by(lambda _, value: value, key=serdes.long, name="by-value")
    grouped.count(store="by-value").to_stream().to("by-value")
    return builder.build()


SIDES = ("left", "right")


@settings(max_examples=examples(120), deadline=None)
@given(actions=ACTIONS, partitions=PARTITIONS, chosen=SETTINGS, seed=st.integers(0, 5))
def test_counts_are_those_of_a_recount(
    actions: list[Action], partitions: int, chosen: dict[str, object], seed: int
) -> None:
    driver = TopologyTestDriver(counts(), chosen, partitions=partitions, commit="manual", seed=seed)
    for action in actions:
        perform(driver, action)
    driver.commit()
    driver.commit()  # an armed crash may have ended the one before
    by_key: dict[Any, int] = defaultdict(int)
    by_value: dict[Any, int] = defaultdict(int)
    for _, key, value in sent(actions):
        by_key[key] += 1
        by_value[value] += 1
    for name, expected in (("by-key", by_key), ("by-value", by_value)):
        assert dict(driver.store(name)) == expected
        assert dict(driver.store(name, committed=True)) == expected
        assert driver.output(f"test-{name}-changelog").as_dict() == expected
        check_rising(values_by_key(driver, name), expected, cached=chosen is EXACTLY_ONCE)
    for side in SIDES:
        ends = {p.partition: driver.cluster.log(p).end for p in driver.cluster.partitions(side)}
        committed = driver.committed_offsets(side)
        assert {p: end for p, end in ends.items() if end} == {
            p: offset for p, offset in committed.items() if offset
        }


def histories(*, kind: Any) -> Topology:
    """The values of each key in their order, in a list that is changed in place."""

    def append(key: str, value: int, seen: list[int]) -> list[int]:
        seen.append(value)
        return seen

    builder = StreamsBuilder()
    stream = builder.stream("left", key=serdes.string, value=serdes.long)
    kept = Materialized("histories", kind=kind)
    stream.group_by_key().aggregate(list, append, store=kept).to_stream().to("out")
    builder.stream("right", key=serdes.string, value=serdes.long).to_table(store="last")
    return builder.build()


@settings(max_examples=examples(120), deadline=None)
@given(
    actions=ACTIONS,
    partitions=PARTITIONS,
    chosen=SETTINGS,
    kind=st.sampled_from(["rocksdb", "memory"]),
)
def test_values_keep_their_order_and_none_is_lost_or_doubled(
    actions: list[Action], partitions: int, chosen: dict[str, object], kind: str
) -> None:
    driver = TopologyTestDriver(
        histories(kind=kind), chosen, partitions=partitions, commit="manual"
    )
    for action in actions:
        perform(driver, action)
    driver.commit()
    driver.commit()
    expected: dict[str, list[int]] = defaultdict(list)
    last: dict[str, int] = {}
    for topic, key, value in sent(actions):
        if topic == "left":
            expected[key].append(value)
        else:
            last[key] = value
    assert dict(driver.store("histories")) == expected
    assert driver.output("test-histories-changelog").as_dict() == expected
    assert dict(driver.store("last")) == last
    for key, outputs in values_by_key(driver, "out").items():
        lengths = [len(output) for output in outputs]
        assert outputs == [expected[key][:length] for length in lengths]
        assert lengths == sorted(set(lengths))


@settings(max_examples=examples(60), deadline=None)
@given(actions=st.lists(SENDS, max_size=12), partitions=PARTITIONS, seed=st.integers(0, 9))
def test_commits_and_caches_change_no_final_result(
    actions: list[Action], partitions: int, seed: int
) -> None:
    """One commit for each record, one for all, with a cache or without it."""

    def results(chosen: dict[str, object], commit: Any) -> list[Any]:
        driver = TopologyTestDriver(
            counts(), chosen, partitions=partitions, commit=commit, seed=seed
        )
        for action in actions:
            perform(driver, action)
        driver.commit()
        names = ("by-key", "by-value")
        stores = [dict(driver.store(name)) for name in names]
        return [*stores, *(driver.output(name).as_dict() for name in names)]

    first = results(NO_CACHE, "each_record")
    assert results(NO_CACHE, "manual") == first
    assert results(EXACTLY_ONCE, "each_record") == first
    assert results(EXACTLY_ONCE, "manual") == first
    assert results({}, "manual") == first
