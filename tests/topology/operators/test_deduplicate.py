"""deduplicate: the first record of each id goes on, those near it in time do not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import RecordError
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.deployment_changes import changes
from headrace.streams.plan.plan import plan_application
from headrace.streams.plan.topic_plan import changelog_config
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import Materialized, StreamsBuilder, TopologyError, serdes
from headrace.topology.checks.unnamed import unnamed_steps
from headrace.topology.graph.combinable import reaches_time
from headrace.topology.operators.deduplicate import Seen, SeenSerde
from headrace.topology.topology import Topology
from tests.spark_bridge.run.test_local_runs import Sent, compare
from tests.support.operators import HEADERS, Stream, driver_of, results

MS = timedelta(milliseconds=1)
TEN = {"within": 10 * MS, "store": "seen"}

Given = tuple[Any, Any, int]


def _gone_on(records: list[Given], **options: Any) -> list[tuple[Any, Any, int]]:
    """Key, value and time of what goes on."""
    driver = driver_of(lambda s: s.deduplicate(**{**TEN, **options}))
    for key, value, timestamp in records:
        driver.input("in").send(key, value, timestamp=timestamp)
    return [(r.key, r.value, r.timestamp) for r in driver.output("out").read_all()]


def _times(records: list[tuple[str, int]], **options: Any) -> list[int]:
    found = _gone_on([(key, 0, time) for key, time in records], **options)
    return [time for _, _, time in found]


def test_what_lies_near_the_first_one_is_left_out() -> None:
    assert _times([("a", 100), ("a", 105), ("a", 110), ("a", 111)]) == [100, 111]


def test_what_is_left_out_starts_no_interval() -> None:
    """As KIP-655 has it: t, t+8 s and t+11 s with ten seconds."""
    assert _times([("a", 100), ("a", 108), ("a", 111)]) == [100, 111]


def test_records_before_the_first_one_are_near_it_too() -> None:
    assert _times([("a", 100), ("a", 92), ("a", 90)]) == [100]


def test_what_comes_late_goes_on_unless_one_that_is_still_known_lies_near() -> None:
    """KIP-655: it may be lost otherwise, as nobody knows any more what went on then."""
    assert _times([("a", 100), ("a", 120), ("a", 95)]) == [100, 120, 95]
    assert _times([("a", 110), ("b", 120), ("a", 109)]) == [110, 120]


def test_within_the_grace_period_nothing_is_missed() -> None:
    late = [("a", 100), ("a", 120), ("a", 95)]
    assert _times(late, grace=20 * MS) == [100, 120]
    assert _times(late, store=Materialized("seen", retention=40 * MS)) == [100, 120]


def test_one_that_came_late_and_went_on_is_known() -> None:
    assert _times([("a", 120), ("a", 105), ("a", 101)], grace=20 * MS) == [120, 105]


def test_ids_are_of_their_keys() -> None:
    records: list[Given] = [("a", 1, 0), ("b", 1, 0), ("a", 2, 0), ("a", 1, 1)]
    assert _gone_on(records) == [("a", 1, 0), ("b", 1, 0)]
    by_value = _gone_on(records, key=lambda value: value, id_serde=serdes.long)
    assert by_value == [("a", 1, 0), ("b", 1, 0), ("a", 2, 0)]


def test_the_function_may_look_at_the_key() -> None:
    records: list[Given] = [("a", 1, 0), ("a", 3, 0), ("a", 2, 0)]

    def odd(key: str, value: int) -> str:
        return f"{key}{value % 2}"

    assert [v for _, v, _ in _gone_on(records, key=odd, with_key=True)] == [1, 2]


def test_records_without_a_key_or_an_id_always_go_on() -> None:
    records: list[Given] = [(None, 1, 0), (None, 1, 0), ("a", None, 0), ("a", None, 0)]
    found = _gone_on(records, key=lambda value: value, id_serde=serdes.long)
    assert found == records


def test_a_null_value_is_a_record_like_any_other_for_its_key() -> None:
    assert _gone_on([("a", None, 0), ("a", 1, 1)]) == [("a", None, 0)]


def test_records_without_a_key_pass_the_repartition_topic() -> None:
    def step(stream: Stream) -> Stream:
        rekeyed = stream.select_key(lambda _, value: value)
        return rekeyed.deduplicate(within=10 * MS, name="once", store="seen")

    assert results(step, [("a", None), ("b", None)]) == [(None, None), (None, None)]


def test_headers_and_times_stay() -> None:
    driver = driver_of(lambda s: s.deduplicate(**TEN))
    driver.input("in").send("a", 1, timestamp=7, headers=HEADERS)
    (record,) = driver.output("out").read_all()
    assert (record.timestamp, list(record.headers)) == (7, HEADERS)


def test_longer_keys_do_not_come_between() -> None:
    keys = ["a", "a\0", "a\0\0\0\0\0\0\0\0\0\0\0\0", "aa"]
    for ordered in (keys, keys[::-1]):
        sent = [(key, time) for time in (1, 2) for key in ordered]
        assert _times(sent) == [1, 1, 1, 1]
    ids: list[Given] = [("a", "bc", 0), ("ab", "c", 0), ("abc", "", 0), ("", "abc", 0)]
    assert len(_gone_on(ids, key=lambda v: v)) == 4


def test_what_is_forgotten_leaves_the_store() -> None:
    driver = driver_of(lambda s: s.deduplicate(**TEN))
    for time in (0, 5, 30):
        driver.input("in").send(f"k{time}", 0, timestamp=time)
    driver.commit()
    assert list(driver.store("seen")) == [Seen("k30", None, 30)]


@pytest.mark.parametrize("serde", [SeenSerde(serdes.string, serdes.long)])
def test_rows_are_read_as_they_were_written(serde: SeenSerde) -> None:
    seen = Seen("a", 7, 1 << 40)
    assert serde.deserialize(serde.serialize(seen)) == seen


def test_keys_that_change_are_brought_together_first() -> None:
    def step(stream: Stream) -> Stream:
        rekeyed = stream.select_key(lambda _, value: value)
        return rekeyed.deduplicate(within=10 * MS, key_serde=serdes.json, store="seen")

    driver = driver_of(step, partitions=3)
    driver.input("in").send_many([(f"k{n}", n % 2) for n in range(12)])
    assert sorted(r.key for r in driver.output("out").read_all()) == [0, 1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"within": 0 * MS}, "within must be at least 1 ms"),
        ({"within": 10}, "within must be a timedelta"),
        ({"grace": -MS}, "grace must be at least 0 ms"),
        ({"with_key": True}, "which require key="),
        ({"id_serde": serdes.string}, "which require key="),
        ({"store": Materialized("seen", retention=9 * MS)}, "has a retention of 9 ms"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        _gone_on([], **options)


@pytest.mark.parametrize(
    ("step", "argument"),
    [
        (lambda s: s.deduplicate(**TEN, key=lambda v: v, id_serde=serdes.string), "id_serde"),
        (lambda s: s.map(lambda k, v: (v, v)).deduplicate(**TEN), "key_serde"),
        (
            lambda s: s.map(lambda k, v: (k, 5)).deduplicate(**TEN, value_serde=serdes.string),
            "value_serde",
        ),
        (lambda s: s.deduplicate(**TEN, key_serde=serdes.integer), "key_serde"),
    ],
    ids=["id", "repartitioned key", "repartitioned value", "key"],
)
def test_an_error_of_a_serde_names_the_argument(
    step: Callable[[Stream], Stream], argument: str
) -> None:
    driver = driver_of(step)
    with pytest.raises(RecordError, match=rf"pass {argument}=serdes\.\w+ \("):
        driver.input("in").send("k", 1)


@pytest.mark.parametrize("given", [{}, {"cleanup.policy": "compact,delete"}])
def test_settings_of_the_changelog_go_over_the_defaults(given: dict[str, str]) -> None:
    store = Materialized("seen", topic_config={"segment.ms": "60000", **given})
    (sub,) = _topology(store=store).sub_topologies
    found = changelog_config(sub.stores[0].spec, 0)
    defaults = {"cleanup.policy": "delete", "retention.ms": "10"}
    assert found == {**defaults, "segment.ms": "60000", **given}


def test_ids_that_are_equal_in_python_differ_where_their_bytes_do() -> None:
    sent: list[Given] = [("a", value, 0) for value in (1, 1.0, True, 1)]
    found = _gone_on(sent, key=lambda value: value, id_serde=serdes.json)
    assert [repr(value) for _, value, _ in found] == ["1", "1.0", "True"]


# -- what everybody else knows of it -----------------------------------------------------------


def _topology(**options: Any) -> Topology:
    builder = StreamsBuilder()
    lines = builder.stream("in", key=serdes.string, value=serdes.string)
    lines.deduplicate(**{**TEN, **options}).to("out")
    return builder.build()


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_or_an_abort_anywhere_changes_nothing(seed: int) -> None:
    rng = random.Random(seed)
    time, sent = 100, list[tuple[str, str, int]]()
    for _ in range(30):
        time = max(0, time + rng.choice((0, 1, 3, 6, 12, -2, -7, -15)))
        sent.append((rng.choice("ab"), rng.choice("xy"), time))
    topology = _topology(key=lambda value: value, grace=rng.choice((0, 5, 20)) * MS)
    found = []
    for disturbed in (False, True):
        settings = {"default.key.serde": "string", "processing.guarantee": "exactly_once_v2"}
        driver = TopologyTestDriver(topology, settings, commit="manual")
        for key, value, timestamp in sent:
            driver.input("in").send(key, value, timestamp=timestamp)
            if disturbed:
                rng.choice((driver.commit, driver.abort, driver.crash, driver.restart, int))()
                driver.run()
        driver.commit()
        found.append([(r.key, r.value, r.timestamp) for r in driver.output("out").read_all()])
        driver.close()
    assert found[0] == found[1]
    assert 0 < len(found[0]) < len(sent)


@pytest.mark.parametrize("cut", [0, 7, 16, 24])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_backfill_is_as_live(cut: int, partitions: int) -> None:
    year_2023_ms = 1_680_000_000_000
    sent: list[Sent] = [
        ("in", "abc"[n % 3], f"{n % 2}", year_2023_ms + 4 * n - 9 * (n % 5)) for n in range(24)
    ]
    compare(_topology(key=lambda value: value), sent, cut=cut, partitions=partitions)


CONFIG = StreamsConfig.parse({"application.id": "a", "bootstrap.servers": "localhost:1"})


def _changes(**options: Any) -> Iterator[tuple[bool, str]]:
    both = (_topology(), _topology(**options))
    old, new = (Deployment.of(plan_application(one, CONFIG), CONFIG) for one in both)
    kept = Deployment.decode(old.encode())
    assert kept == old
    return ((change.refused, change.what) for change in changes(kept, new))


def test_another_interval_is_refused_at_a_start_and_another_grace_is_told() -> None:
    refused = dict(_changes(within=11 * MS))
    assert refused[True].startswith("the within of store seen was 10 ms and is 11 ms")
    assert {was for was, _ in _changes(grace=5 * MS)} == {False}
    (other,) = _changes(key=lambda value: value)
    assert other[0], "the rows are other ones"
    assert list(_changes()) == []


def test_a_store_without_a_name_is_told_with_the_call() -> None:
    (found,) = unnamed_steps(_topology(store=None).sub_topologies)
    assert found.advice == 'deduplicate(store="...")'


def test_it_is_described_with_its_store() -> None:
    topology = _topology()
    assert "Processor: KSTREAM-DEDUPLICATE-0000000001 (stores: [seen])" in topology.describe()
    assert '[("seen")]' in topology.to_mermaid()
    assert "KSTREAM-SOURCE-0000000000" in reaches_time(topology)
