"""Kinds of steps and of input, one by one, without Spark or a broker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.spark_bridge.errors import BackfillError, CannotBackfillError, WallClockError
from headrace.spark_bridge.history.planning import make_plan
from headrace.spark_bridge.plan.job import CompiledApplication
from headrace.spark_bridge.run.refusals import refuse_early, refuse_processors
from headrace.state.codec import partition_for_key
from headrace.streams.config.handlers import Continue, Failure
from headrace.streams.errors import ConfigError
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.progress import OffsetMetadata
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.local_cluster import Transaction
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.topology import (
    JoinWindows,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    serdes,
)
from headrace.topology.payload_time import OnInvalid, event_time
from headrace.topology.timestamps import wallclock_timestamp
from headrace.topology.topology import Topology
from tests.spark_bridge.support.local_engine import (
    HistoryMemoryAdmin,
    backfilled,
    hand_over,
    last_of,
    outputs_of,
    store_rows_of,
)
from tests.support import processor_app
from tests.support.topologies import word_count

YEAR_2023_MS = 1_680_000_000_000
UNCACHED: dict[str, object] = {"statestore.cache.max.bytes": 0}
DEFAULTS: dict[str, object] = {}
MS = timedelta(milliseconds=1)

Sent = tuple[str, "str | None", "str | None", int]
"""Topic, key, value and timestamp."""


def put(cluster: MemoryCluster, sent: Sent, transaction: Transaction | None = None) -> None:
    topic, key, value, timestamp = sent
    encoded = [None if part is None else part.encode() for part in (value, key)]
    cluster.append(topic, *encoded, -1, timestamp, [("from", b"test")], transaction)


def compare(
    topology: Topology,
    sent: list[Sent],
    *,
    settings: dict[str, object] = UNCACHED,
    partitions: int = 1,
    cut: int | None = None,
    outputs: tuple[str, ...] = ("out",),
    state: Callable[[TopologyTestDriver], Any] = store_rows_of,
) -> tuple[TopologyTestDriver, TopologyTestDriver]:
    """Send records live alone, and behind a backfill; rows and outputs must be the same.

    Where caches leave out updates, it is the last output of each key that must be.
    """
    alone = TopologyTestDriver(topology, settings, partitions=partitions, commit="manual")
    for one in sent:
        put(alone.cluster, one)
        alone.run()
    alone.commit()
    both = TopologyTestDriver(topology, settings, partitions=partitions, commit="manual")
    cut = len(sent) * 2 // 3 if cut is None else cut
    for one in sent[:cut]:
        put(both.cluster, one)
    hand_over(*backfilled(topology, settings, both.cluster), both.cluster, "test")
    both.run()  # or what comes next might be what a worker that died had read
    for one in sent[cut:]:
        put(both.cluster, one)
        both.run()
    both.commit()
    assert state(both) == state(alone)
    assert any(state(alone).values())
    for topic in outputs:
        found, expected = outputs_of(both, topic), outputs_of(alone, topic)
        assert any(expected), topic
        if settings is not UNCACHED:
            assert last_of(found) == last_of(expected), topic
            continue
        if partitions > 1:
            found, expected = [[sorted(p, key=repr) for p in one] for one in (found, expected)]
        assert found == expected, topic
    return alone, both


def tables(join: Callable[[Any, Any], Any]) -> Topology:
    builder = StreamsBuilder()
    left = builder.table("left", key=serdes.string, value=serdes.string, store="left-rows")
    right = builder.table("right", key=serdes.string, value=serdes.string, store="right-rows")
    join(left, right).to_stream().to("out")
    return builder.build()


ORDERS: list[Sent] = [
    ("left", "o1", "c1-first", 10),
    ("right", "c1", "Ada", 11),
    ("left", "o2", "c2-second", 12),
    ("right", "c2", "Bob", 13),
    ("right", "c1", "Eve", 14),
    ("left", "o1", "c2-moved", 15),
    ("right", "c2", None, 16),
    ("left", "o3", "c1-third", 17),
    ("left", "o2", None, 18),
    ("right", "c2", "Bo", 19),
    ("right", "c1", None, 20),
    ("left", "o3", "c9-nobody", 21),
]


@pytest.mark.parametrize("settings", [UNCACHED, DEFAULTS], ids=["uncached", "defaults"])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("kind", ["join", "left_join"])
@pytest.mark.parametrize("cut", [0, 3, 8, 12])
def test_joins_by_a_foreign_key_go_around_their_circle(
    kind: str, partitions: int, cut: int, settings: dict[str, object]
) -> None:
    """What two sub-topologies write to each other is processed before the next record."""
    topology = tables(
        lambda left, right: getattr(left, kind)(
            right,
            lambda order, name: f"{order}+{name}",
            foreign_key=lambda order: order[:2],
            value=serdes.string,
            store="joined",
            name="fk",
        )
    )
    compare(topology, ORDERS, partitions=partitions, cut=cut, settings=settings)


@pytest.mark.parametrize("settings", [UNCACHED, DEFAULTS], ids=["uncached", "defaults"])
@pytest.mark.parametrize("cut", [2, 4, 6])
def test_tables_that_are_grouped_anew_come_to_the_same(
    cut: int, settings: dict[str, object]
) -> None:
    """How many orders each customer has; caches decide who ever had one that is gone."""
    builder = StreamsBuilder()
    (
        builder.table("left", key=serdes.string, value=serdes.string, store="left-rows")
        .group_by(lambda _, order: (order[:2], order), key=serdes.string, value=serdes.string)
        .count(store="counts")
    )
    orders = [one for one in ORDERS if one[0] == "left"]
    compare(
        builder.build(), orders, partitions=3, cut=cut, settings=settings, outputs=(),
        state=lambda driver: {k: n for k, n, _ in driver.store("counts").rows() if n},
    )  # fmt: skip


def test_windows_drop_what_is_late_as_live() -> None:
    builder = StreamsBuilder()
    (
        builder.stream("in", key=serdes.string, value=serdes.string)
        .group_by_key()
        .windowed_by(TimeWindows(size=10 * MS, grace=5 * MS))
        .count(store="counts")
        .suppress(Suppressed.until_window_closes())
        .to_stream()
        .to("out")
    )
    times = [5, 12, 3, 30, 29, 14, 41, 8, 60, 61, 44, 90]
    sent: list[Sent] = [("in", "ab"[n % 2], "v", YEAR_2023_MS + t) for n, t in enumerate(times)]
    for cut in range(len(sent) + 1):
        compare(builder.build(), sent, cut=cut)


def test_sessions_and_their_merges_are_as_live() -> None:
    builder = StreamsBuilder()
    (
        builder.stream("in", key=serdes.string, value=serdes.string)
        .group_by_key()
        .windowed_by(SessionWindows(inactivity_gap=5 * MS, grace=10 * MS))
        .count(store="counts")
        .to_stream()
        .to("out")
    )
    times = [1, 9, 5, 30, 22, 26, 60, 41, 55, 64]
    sent: list[Sent] = [("in", "a", "v", YEAR_2023_MS + t) for t in times]
    for cut in range(len(sent) + 1):
        compare(builder.build(), sent, cut=cut)


def test_a_join_of_streams_is_as_live() -> None:
    builder = StreamsBuilder()
    left = builder.stream("left", key=serdes.string, value=serdes.string)
    right = builder.stream("right", key=serdes.string, value=serdes.string)
    windows = JoinWindows(time_difference=5 * MS, grace=3 * MS)
    left.outer_join(right, lambda a, b: f"{a}+{b}", windows).to("out", value=serdes.string)
    sent: list[Sent] = [
        (("left", "right")[n * 5 % 3 % 2], "ab"[n % 2], f"v{n}", YEAR_2023_MS + 2 * n)
        for n in range(24)
    ]
    for cut in range(0, len(sent) + 1, 3):
        compare(builder.build(), sent, cut=cut)


def test_a_processor_goes_on_with_its_stores_and_its_stream_time_schedule() -> None:
    times = [1, 60, 120, 90, 250, 251, 420, 700, 1500, 1510]
    sent: list[Sent] = [("in", "ab"[n % 2], "v", YEAR_2023_MS + t) for n, t in enumerate(times)]
    for cut in range(len(sent) + 1):
        compare(processor_app.topology("in", "out"), sent, cut=cut)


def test_a_global_table_is_what_it_was_when_the_backfill_was_planned() -> None:
    builder = StreamsBuilder()
    table = builder.global_table("table", key=serdes.string, value=serdes.string, store="rows")
    (
        builder.stream("in", key=serdes.string, value=serdes.string)
        .join(table, lambda value, name: f"{value}+{name}", key_mapper=lambda key, _: key)
        .to("out", value=serdes.string)
    )
    driver = TopologyTestDriver(builder.build(), UNCACHED, partitions=2)
    for one in [("table", "a", "Ada", 1), ("table", "b", "Bob", 2), ("table", "a", "Eve", 3)]:
        put(driver.cluster, one)
    for one in [("in", "a", "1", 5), ("in", "b", "2", 6), ("in", "c", "3", 7)]:
        put(driver.cluster, one)
    plan, rows = backfilled(builder.build(), UNCACHED, driver.cluster)
    assert sorted(row.value or b"" for row in rows if row.kind == "sink") == [b"1+Eve", b"2+Bob"]
    assert {place.topic for place in plan.ends} == {"in"}
    assert {place.topic for place in plan.global_ends} == {"table"}


def test_only_committed_records_are_read_and_an_open_transaction_ends_the_range() -> None:
    driver = TopologyTestDriver(word_count(), UNCACHED, partitions=1)
    cluster = driver.cluster
    for committed, word in ((True, "kept"), (False, "void")) * 3:
        transaction = Transaction()
        put(cluster, ("lines", "k", word, 5), transaction)
        cluster.end(transaction, committed=committed)
    still_open = Transaction()
    put(cluster, ("lines", "k", "open", 6), still_open)
    put(cluster, ("lines", "k", "behind", 7))
    plan, rows = backfilled(word_count(), UNCACHED, cluster)
    place = TopicPartition("lines", 0)
    assert plan.ends[place] == cluster.log(place).last_stable == 12
    counted = {r.key: serdes.long.deserialize(r.value or b"") for r in rows if r.kind != "progress"}
    assert counted == {b"kept": 3}


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_history_with_aborted_records_is_read_as_live_reads_it(level: str, guarantee: str) -> None:
    """Trap 37: under either guarantee; at-least-once may read everything, and then both do."""
    settings = {
        **UNCACHED, "processing.guarantee": guarantee, "consumer.isolation.level": level
    }  # fmt: skip
    if (level, guarantee) == ("read_uncommitted", "exactly_once_v2"):
        with pytest.raises(ConfigError, match=r"isolation\.level"):
            TopologyTestDriver(word_count(), settings, partitions=1)
        return
    alone = TopologyTestDriver(word_count(), settings, partitions=1)
    both = TopologyTestDriver(word_count(), settings, partitions=1)
    for cluster in (alone.cluster, both.cluster):
        for committed, word in ((True, "kept"), (False, "void")) * 3:
            transaction = Transaction()
            put(cluster, ("lines", "k", word, 5), transaction)
            cluster.end(transaction, committed=committed)
        put(cluster, ("lines", "k", "undecided", 6), Transaction())
    plan, rows = backfilled(word_count(), settings, both.cluster)
    log = both.cluster.log(TopicPartition("lines", 0))
    assert plan.inputs == (TopicPartition("lines", 0),)
    assert list(plan.ends.values()) == [log.last_stable if level == "read_committed" else log.end]
    hand_over(plan, rows, both.cluster, "test")
    expected = {"kept": 3} if level == "read_committed" else {"kept": 3, "void": 3, "undecided": 1}
    for driver in (alone, both):
        driver.run()
        driver.commit()
        assert {k: v for k, v, _ in driver.store("counts").rows()} == expected


@pytest.mark.parametrize("end", range(7))
def test_a_range_may_end_in_aborted_records_and_markers(end: int) -> None:
    driver = TopologyTestDriver(word_count(), UNCACHED, partitions=1)
    for committed in (True, False, True):
        transaction = Transaction()
        put(driver.cluster, ("lines", "k", "word", 5), transaction)
        driver.cluster.end(transaction, committed=committed)
    plan, rows = backfilled(
        word_count(), UNCACHED, driver.cluster, until={TopicPartition("lines", 0): end}
    )
    assert plan.ends[TopicPartition("lines", 0)] == end
    # Records are at 0, 2 (aborted) and 4, each with its marker behind it.
    expected = (end > 0) + (end > 4)
    assert len([row for row in rows if row.kind == "sink"]) == expected


def test_headers_nulls_and_2023_timestamps_come_through() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string, value=serdes.string).to("out")
    driver = TopologyTestDriver(builder.build(), UNCACHED, partitions=1)
    headers = [("h", b"1"), ("h", b"2"), ("n", None)]
    driver.cluster.append("in", None, b"k", 0, YEAR_2023_MS, headers, None)
    driver.cluster.append("in", b"v", None, 0, YEAR_2023_MS + 1, None, None)
    _, rows = backfilled(builder.build(), UNCACHED, driver.cluster)
    first, second = [row for row in rows if row.kind == "sink"]
    assert (first.key, first.value, first.timestamp) == (b"k", None, YEAR_2023_MS)
    assert first.headers == headers
    assert (second.key, second.value, second.headers) == (None, b"v", None)


def test_dead_letters_are_outputs_and_a_handler_decides_as_live() -> None:
    def handler(failure: Failure) -> Continue:
        return Continue((failure.dead_letter("dead"),))

    builder = StreamsBuilder()
    numbers = builder.stream("in", key=serdes.string, value=serdes.string)
    numbers.map_values(lambda value: str(10 // int(value))).to("out", value=serdes.string)
    settings: dict[str, object] = {
        **UNCACHED,
        "processing.exception.handler": handler,
        "errors.dead.letter.queue.topic.name": "dead",
    }
    driver = TopologyTestDriver(builder.build(), settings, partitions=1)
    for number, value in enumerate(("5", "0", "2")):
        put(driver.cluster, ("in", "k", value, number))
    _, rows = backfilled(builder.build(), settings, driver.cluster)
    sent = {
        topic: [row.value for row in rows if (row.kind, row.topic) == ("sink", topic)]
        for topic in ("out", "dead")
    }
    assert sent == {"out": [b"2", b"5"], "dead": [b"0"]}


def test_a_record_that_cannot_be_processed_names_its_place() -> None:
    builder = StreamsBuilder()
    (
        builder.stream("in", key=serdes.string, value=serdes.string)
        .group_by(lambda _, value: value, name="by-value")
        .reduce(lambda old, new: str(1 // (int(new) - int(old))), store="s")
    )
    driver = TopologyTestDriver(builder.build(), UNCACHED, partitions=1)
    for number, value in enumerate(("5", "6", "5")):
        put(driver.cluster, ("in", "k", value, number))
    with pytest.raises(BackfillError, match="results from in-0 offset 2, and is not stored in"):
        backfilled(builder.build(), UNCACHED, driver.cluster)


def test_an_extractor_tells_the_order_among_inputs() -> None:
    """The time in the value decides which of two topics goes first."""
    builder = StreamsBuilder()

    def told(record: Any, _: int) -> int:
        return int(record.value)

    options: dict[str, Any] = {"key": serdes.string, "value": serdes.string, "timestamps": told}
    one, other = builder.stream("one", **options), builder.stream("other", **options)
    (
        one.merge(other)
        .group_by_key()
        .reduce(lambda old, new: f"{old},{new}", store="s")
        .to_stream()
        .to("out")
    )
    driver = TopologyTestDriver(builder.build(), UNCACHED, partitions=1)
    for topic, values in (("one", (1, 4, 2, 9)), ("other", (3, 5, 6))):
        for value in values:
            put(driver.cluster, (topic, "k", str(value), 100 - value))
    _, rows = backfilled(builder.build(), UNCACHED, driver.cluster)
    (row,) = [row for row in rows if row.kind == "changelog"]
    assert row.value == b"1,3,4,2,5,6,9"
    assert row.timestamp == 9
    times = [OffsetMetadata.decode((r.value or b"").decode()) for r in rows if r.kind == "progress"]
    assert [progress.partition_time for progress in times] == [9, 6]


@pytest.mark.parametrize("on_invalid", ["drop", "dead_letter", "record_time", "fail"])
def test_times_from_the_payload_are_as_live(on_invalid: OnInvalid) -> None:
    builder = StreamsBuilder()
    extractor = event_time(int, format="epoch_ms", on_invalid=on_invalid)
    options: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
    builder.stream("in", timestamps=extractor, name="read", **options).to("out")
    settings = {**UNCACHED}
    if on_invalid == "dead_letter":
        settings["errors.dead.letter.queue.topic.name"] = "dead"
    driver = TopologyTestDriver(builder.build(), settings, partitions=1, commit="manual")
    for value in ("7", None, "x", "3"):
        put(driver.cluster, ("in", "k", value, 5))
    if on_invalid == "fail":
        with pytest.raises(BackfillError, match="no valid event time in the value: a null value"):
            backfilled(builder.build(), settings, driver.cluster)
        return
    _, rows = backfilled(builder.build(), settings, driver.cluster)
    found = [(row.value, row.timestamp) for row in rows if row.kind == "sink"]
    expected: dict[str, list[tuple[bytes | None, int]]] = {
        "drop": [(b"7", 7), (b"3", 3)],
        "dead_letter": [(b"3", 3), (b"7", 7), (b"x", 5), (None, 5)],
        "record_time": [(b"3", 3), (b"7", 7), (b"x", 5), (None, 5)],
    }
    assert sorted(found, key=repr) == sorted(expected[on_invalid], key=repr)


def words(cluster: MemoryCluster) -> None:
    for number in range(40):
        line = " ".join(f"w{number * step % 7}" for step in range(6))
        put(cluster, ("lines", f"k{number}", line, 1000 - 3 * number))


@pytest.mark.parametrize("order", ["exact", "combine"])
def test_counts_that_are_combined_or_held_back_end_as_the_same(order: str) -> None:
    """Rows with their timestamps, and of each key the last output."""
    alone = TopologyTestDriver(word_count(), UNCACHED, partitions=3, commit="manual")
    words(alone.cluster)
    alone.commit()
    both = TopologyTestDriver(word_count(), partitions=3, commit="manual")
    words(both.cluster)
    plan, rows = backfilled(word_count(), {}, both.cluster, order=order)
    outputs = [row for row in rows if row.kind == "sink"]
    assert len(outputs) == 7
    hand_over(plan, rows, both.cluster, "test")
    assert store_rows_of(both) == store_rows_of(alone)
    for mine, others in zip(
        outputs_of(both, "word-counts"), outputs_of(alone, "word-counts"), strict=True
    ):
        assert {key: seen for key, *seen in mine} == {key: seen for key, *seen in others}


def sums_of_lengths() -> Topology:
    """How many letters there are of each first letter, and the last word of it."""
    builder = StreamsBuilder()
    lines = builder.stream("lines", key=serdes.string, value=serdes.string)
    words = lines.flat_map_values(str.split).map(lambda _, word: (word[-1], len(word)))
    lengths = words.group_by_key(key=serdes.string, value=serdes.long, name="by-letter")
    lengths.reduce(
        lambda one, other: one + other, merger=lambda _, a, b: a + b, store="letters"
    ).to_stream().to("letters-out")
    many = words.group_by_key(key=serdes.string, value=serdes.json, name="by-letter-too")
    many.aggregate(
        lambda: {"n": 0, "max": 0},
        lambda _, n, seen: {"n": seen["n"] + 1, "max": max(n, seen["max"])},
        merger=lambda _, a, b: {"n": a["n"] + b["n"], "max": max(a["max"], b["max"])},
        store="seen",
        value=serdes.json,
    ).to_stream().to("seen-out")
    return builder.build()


@pytest.mark.parametrize("order", ["exact", "combine", "auto"])
def test_folds_that_merge_end_as_the_same(order: str) -> None:
    """Rows with their timestamps, and what goes on live."""
    topology = sums_of_lengths()
    alone = TopologyTestDriver(topology, UNCACHED, partitions=3, commit="manual")
    both = TopologyTestDriver(topology, partitions=3, commit="manual")
    words(alone.cluster)
    alone.commit()
    words(both.cluster)
    plan, rows = backfilled(topology, {}, both.cluster, order=order)
    hand_over(plan, rows, both.cluster, "test")
    assert store_rows_of(both) == store_rows_of(alone)
    for driver in (alone, both):
        words(driver.cluster)
        driver.commit()
    assert store_rows_of(both) == store_rows_of(alone)


def test_combined_counts_are_one_record_a_key_and_task() -> None:
    driver = TopologyTestDriver(word_count(), partitions=2)
    words(driver.cluster)
    _, rows = backfilled(word_count(), {}, driver.cluster, order="combine")
    assert sum(
        serdes.long.deserialize(r.value or b"") for r in rows if r.kind == "changelog"
    ) == 240  # fmt: skip


def test_nothing_is_combined_or_held_back_in_front_of_what_goes_by_stream_time() -> None:
    """A window behind a cache would see all updates at the end, most of them late."""
    builder = StreamsBuilder()
    (
        builder.stream("in", key=serdes.string, value=serdes.string)
        .group_by(lambda _, value: value, name="by-value")
        .count(store="counts")
        .to_stream()
        .group_by_key(value=serdes.long)
        .windowed_by(TimeWindows(size=10 * MS, grace=0 * MS))
        .count(store="windows")
        .to_stream()
        .to("out")
    )
    sent: list[Sent] = [("in", "k", "ab"[n % 2], YEAR_2023_MS + 3 * n) for n in range(30)]
    driver = TopologyTestDriver(builder.build(), commit="manual", partitions=1)
    for one in sent:
        put(driver.cluster, one)
    expected = TopologyTestDriver(builder.build(), UNCACHED, commit="manual", partitions=1)
    for one in sent:
        put(expected.cluster, one)
    expected.commit()
    hand_over(
        *backfilled(builder.build(), {}, driver.cluster, order="combine"), driver.cluster, "test"
    )
    assert store_rows_of(driver) == store_rows_of(expected)


# -- what is refused ---------------------------------------------------------------------------


def application(topology: Topology, **settings: Any) -> CompiledApplication:
    named = {"application.id": "test", "bootstrap.servers": "nowhere:1", **settings}
    return CompiledApplication.of(topology, named)


def test_the_wall_clock_as_the_time_of_records_is_refused() -> None:
    topology = word_count()
    with pytest.raises(
        CannotBackfillError, match="KSTREAM-SOURCE-0000000000 takes timestamps from the wall clock"
    ):
        refuse_early(
            topology, application(topology, **{"default.timestamp.extractor": wallclock_timestamp})
        )


def test_a_store_without_a_changelog_is_refused() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string)
    stream.group_by_key().count(store=Materialized("counts", logged=False))
    topology = builder.build()
    with pytest.raises(CannotBackfillError, match="store counts has no changelog"):
        refuse_early(topology, application(topology))


class Ticking(Processor[Any, Any, Any, Any]):
    """Asks for the clock at its start, or at the first record."""

    def __init__(self, *, late: bool = False) -> None:
        self.late = late

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        super().init(context)
        if not self.late:
            context.schedule(MS, lambda now: None, kind="wall_clock")

    def process(self, record: Record[Any, Any]) -> None:
        self.context.schedule(MS, lambda now: None, kind="wall_clock")


def ticking(*, late: bool) -> Topology:
    return (
        Topology()
        .add_source("read", "in", key=serdes.string, value=serdes.string)
        .add_processor("tick", lambda: Ticking(late=late), "read")
    )


def test_a_schedule_by_the_wall_clock_is_found_before_anything_runs() -> None:
    driver = TopologyTestDriver(ticking(late=False), partitions=1)
    run = application(ticking(late=False))
    admin = HistoryMemoryAdmin(driver.cluster)
    plan = make_plan(run, admin, id="b", now_ms=0, until="latest", create=True)
    with pytest.raises(CannotBackfillError, match=r"processor tick .* by the wall clock"):
        refuse_processors(run, plan)
    refuse_processors(application(ticking(late=True)), plan)


def test_a_schedule_by_the_wall_clock_that_comes_later_stops_the_task() -> None:
    driver = TopologyTestDriver(ticking(late=True), partitions=1)
    put(driver.cluster, ("in", "k", "v", 1))
    with pytest.raises(WallClockError, match="processor tick"):
        backfilled(ticking(late=True), {}, driver.cluster)


def test_ends_that_cannot_be_are_refused() -> None:
    driver = TopologyTestDriver(word_count(), partitions=2)
    words(driver.cluster)
    one, other = TopicPartition("lines", 0), TopicPartition("lines", 1)
    for until, why in (
        ({one: 1}, r"lacks input partitions \(lines-1\)"),
        ({one: 1, other: 99}, "after the last stable offset"),
        ({one: 1, other: 1, TopicPartition("x", 0): 1}, r"not inputs \(x-0\)"),
    ):
        with pytest.raises(CannotBackfillError, match=why):
            backfilled(word_count(), {}, driver.cluster, until=until)
    with pytest.raises(CannotBackfillError, match="has no time zone"):
        backfilled(word_count(), {}, driver.cluster, until=datetime(2023, 1, 1))


def test_a_time_as_the_end_leaves_what_is_not_older() -> None:
    driver = TopologyTestDriver(word_count(), partitions=1)
    for second in range(5):
        put(driver.cluster, ("lines", "k", "word", YEAR_2023_MS + 1000 * second))
    until = datetime.fromtimestamp(YEAR_2023_MS / 1000 + 3, tz=UTC)
    plan, _ = backfilled(word_count(), {}, driver.cluster, until=until)
    assert plan.ends == {TopicPartition("lines", 0): 3}


def test_a_second_attempt_makes_the_same_rows_in_the_same_order() -> None:
    """So that Spark may run a task again, and a hand-over may leave out what is written."""
    driver = TopologyTestDriver(word_count(), UNCACHED, partitions=3)
    words(driver.cluster)
    for number in range(20):  # without keys, which live go anywhere
        put(driver.cluster, ("lines", None, f"w{number} again", 500))
    first = backfilled(word_count(), UNCACHED, driver.cluster)
    assert backfilled(word_count(), UNCACHED, driver.cluster) == first


def test_a_backfill_and_a_live_backlog_count_every_record_of_skewed_partitions() -> None:
    """Partitions with more or fewer records for the same hours: none is late in either."""
    hour_ms = 3_600_000
    keys, sent = ["a", "b", "c", "d", "e"], list[Sent]()
    for key, count in zip(keys, (10, 20, 40, 100, 300), strict=True):
        for number in range(count):
            time = YEAR_2023_MS + number * 24 * hour_ms // count
            sent.append(("in", key, f"group-{number % 3}", time))
    # One partition after the other, each in the order of its times.
    sent.sort(key=lambda one: (partition_for_key((one[1] or "").encode(), 4), one[3]))
    builder = StreamsBuilder()
    rows = builder.stream("in", key=serdes.string, value=serdes.string)
    group = rows.group_by(lambda _, value: value, key=serdes.string, name="moved")
    windows = TimeWindows(size=timedelta(hours=1), grace=timedelta(minutes=1))
    flat = (
        group.windowed_by(windows)
        .count(store="hourly")
        .to_stream(lambda key, _: f"{key.key}@{key.window.start_ms}")
    )
    flat.to("out", key=serdes.string, value=serdes.long)
    topology = builder.build()
    settings = {**UNCACHED, "processing.guarantee": "exactly_once_v2", "max.poll.records": 7}
    alone = TopologyTestDriver(topology, settings, partitions=4, commit="manual")
    both = TopologyTestDriver(topology, settings, partitions=4, commit="manual")
    for one in sent:
        put(alone.cluster, one)
        put(both.cluster, one)
    alone.commit()
    hand_over(*backfilled(topology, settings, both.cluster), both.cluster, "test")
    both.commit()
    assert alone.dropped == both.dropped == {}
    counts = alone.output("out").as_dict()
    assert sum(counts.values()) == len(sent)
    assert both.output("out").as_dict() == counts
