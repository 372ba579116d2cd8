"""Stream time behind repartition topics: skew between partitions makes no record late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import pytest

from headrace import (
    JoinWindows,
    Processor,
    ProcessorContext,
    Record,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyTestDriver,
    serdes,
)
from headrace.streams.testing.driver_store import CrashPoint
from headrace.topology.topology import Topology

Emit = Literal["on_window_update", "on_window_close"]

BEGIN_MS = 1_699_999_200_000
HOUR_MS = 3_600_000
HOUR = timedelta(hours=1)
GRACE = timedelta(minutes=5)
SPAN_MS = 12 * HOUR_MS
EXACTLY_ONCE = {"processing.guarantee": "exactly_once_v2", "application.id": "time"}
FASTEST = {**EXACTLY_ONCE, "stream.time": "fastest"}
PARTITIONS = 4


def hourly(emit: Emit = "on_window_update", *, suppressed: bool = False) -> Topology:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serdes.string, value=serdes.string)
    by_city = orders.group_by(lambda _, city: city, key=serdes.string, name="by-city")
    windows = TimeWindows(size=HOUR, grace=GRACE)
    counts = by_city.windowed_by(windows, emit=emit).count(store="hourly")
    if suppressed:
        counts = counts.suppress(Suppressed.until_window_closes())
    flat = counts.to_stream().map(
        lambda key, count: (f"{key.key}@{key.window.start_ms}", count),
    )
    flat.to("counts", key=serdes.string, value=serdes.long)
    return builder.build()


def city(number: int) -> str:
    return f"city-{number % 7}"


def fill(driver: TopologyTestDriver, count: int = 1200, *, empty: int | None = None) -> Counter:
    """Write records in perfect order over twelve hours; returns the counts that are right."""
    orders, expected = driver.input("orders"), Counter[str]()
    for number in range(count):
        time = BEGIN_MS + number * SPAN_MS // count
        partition = number % PARTITIONS
        if partition == empty:
            continue
        value = city(number)
        orders.append(b"k", value.encode(), timestamp=time, partition=partition)
        expected[f"{value}@{time - time % HOUR_MS}"] += 1
    return expected


def driver_of(
    topology: Topology, settings: Mapping[str, object] = EXACTLY_ONCE, **options: Any
) -> TopologyTestDriver:
    options = {"partitions": PARTITIONS, "commit": "manual", **options}
    return TopologyTestDriver(topology, settings, **options)


@pytest.mark.parametrize("records", [1, 10, 1000])
def test_nothing_that_came_in_order_is_late(records: int) -> None:
    with driver_of(hourly(), {**EXACTLY_ONCE, "max.poll.records": records}) as driver:
        expected = fill(driver)
        driver.commit()
        assert driver.dropped == {}
        assert driver.output("counts").as_dict() == expected


def test_fastest_is_the_rule_of_kafka_streams() -> None:
    with driver_of(hourly(), {**FASTEST, "max.poll.records": 100}) as driver:
        fill(driver)
        driver.commit()
        assert sum(driver.dropped.values()) > 100


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
@pytest.mark.parametrize("empty", [None, 2])
def test_windows_close_when_all_partitions_have_passed_them(
    guarantee: str, empty: int | None
) -> None:
    settings = {**EXACTLY_ONCE, "processing.guarantee": guarantee, "max.poll.records": 50}
    for topology in (hourly("on_window_close"), hourly(suppressed=True)):
        with driver_of(topology, settings) as driver:
            expected = fill(driver, empty=empty)
            driver.commit()
            assert driver.dropped == {}
            last = BEGIN_MS + SPAN_MS - HOUR_MS - GRACE // timedelta(milliseconds=1) - 60_000
            closed = {key: n for key, n in expected.items() if int(key.split("@")[1]) <= last}
            found = driver.output("counts").read_all()
            assert len(found) == len(closed)
            assert {record.key: record.value for record in found} == closed


def test_a_partition_that_is_behind_holds_time_back_and_an_idle_one_does_not() -> None:
    """What was committed of each partition decides, however far the fastest one is."""
    with driver_of(hourly("on_window_close"), {**EXACTLY_ONCE, "max.poll.records": 1}) as driver:
        orders, counts = driver.input("orders"), driver.output("counts")
        for hours in range(4):
            orders.append(b"k", b"a", timestamp=BEGIN_MS + hours * HOUR_MS, partition=0)
        driver.commit()
        assert [r.timestamp - BEGIN_MS for r in counts.read_all()] == [0, HOUR_MS]
        orders.append(b"k", b"a", timestamp=BEGIN_MS + 3 * HOUR_MS + 1, partition=1)
        orders.append(b"k", b"a", timestamp=BEGIN_MS + 5 * HOUR_MS, partition=0)
        driver.commit()
        assert [r.value for r in counts.read_all()] == [1, 2]
        assert driver.dropped == {}


def test_a_record_that_is_late_in_its_own_partition_is_dropped() -> None:
    with driver_of(hourly()) as driver:
        orders = driver.input("orders")
        orders.send("k", "a", timestamp=BEGIN_MS + 3 * HOUR_MS, partition=0)
        driver.commit()
        orders.send("k", "a", timestamp=BEGIN_MS, partition=0)
        driver.commit()
        assert sum(driver.dropped.values()) == 1
        late = next(e for e in driver.events if e["event"] == "records_dropped")
        assert late["stream_time"].startswith("2023-11-15T01:00:00")


def test_a_late_record_is_logged_with_how_far_it_is_behind() -> None:
    with driver_of(hourly(), {**EXACTLY_ONCE, "stream.time": "fastest"}) as driver:
        orders = driver.input("orders")
        orders.send("k", "a", timestamp=BEGIN_MS + 3 * HOUR_MS, partition=0)
        orders.send("k", "a", timestamp=BEGIN_MS, partition=1)
        driver.commit()
        late = next(e for e in driver.events if e["event"] == "records_dropped")
        assert late["behind_by"] == "3:00:00"
        assert "set stream.time=slowest" in late["advice"]


def test_a_late_record_is_logged_with_the_partition_that_was_behind() -> None:
    with driver_of(hourly()) as driver:
        orders = driver.input("orders")
        for partition, hours in enumerate((4, 1)):
            time = BEGIN_MS + hours * HOUR_MS
            orders.send("k", "a", timestamp=time, partition=partition)
        driver.commit()
        # Partition 1 was idle at its end, so stream time was that of partition 0.
        orders.send("k", "a", timestamp=BEGIN_MS + HOUR_MS + 1, partition=1)
        driver.commit()
        (late,) = (e for e in driver.events if e["event"] == "records_dropped")
        assert late["behind_by"] == "2:59:59.999000"
        assert late["skew"] == "orders-1 is 3:00:00 behind orders-0"


@pytest.mark.parametrize("at", ["offsets_sent", "transaction_committed", "state_written"])
@pytest.mark.parametrize("keep", [True, False])
def test_progress_survives_a_crash(at: CrashPoint, *, keep: bool) -> None:
    settings = {**EXACTLY_ONCE, "max.poll.records": 7, "statestore.uncommitted.max.bytes": 1 << 20}
    with driver_of(hourly("on_window_close"), settings) as driver:
        expected = Counter[str]()
        for _ in range(3):
            expected = fill(driver)
            driver.run()
            driver.crash(at=at, keep=keep)
            driver.commit(rounds=1)
            driver.abort()
        driver.commit()
        # The same twelve hours came three times: only what was closed by then is late.
        late = sum(driver.dropped.values())
        counted = sum(r.value or 0 for r in driver.output("counts").read_all())
        assert counted > 0.7 * sum(expected.values())
        assert late == 0 or driver.crashes


def chain() -> Topology:
    """Two repartitions, the second one after windows that are emitted later than they end."""
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serdes.string, value=serdes.string)
    by_city = orders.group_by(lambda _, city: city, key=serdes.string, name="by-city")
    windows = TimeWindows(size=timedelta(minutes=10), grace=GRACE)
    minutely = by_city.windowed_by(windows, emit="on_window_close")
    counts = minutely.count(store="minutely")
    moved = counts.to_stream().map(lambda key, n: (f"all-{n % 2}", n))
    grouped = moved.group_by_key(key=serdes.string, value=serdes.long, name="by-parity")
    sums = grouped.windowed_by(TimeWindows(size=HOUR)).aggregate(
        lambda: 0, lambda _, n, total: total + n, store="hourly", value=serdes.long
    )
    flat = sums.to_stream().map(lambda key, n: (f"{key.key}@{key.window.start_ms}", n))
    flat.to("counts", key=serdes.string, value=serdes.long)
    return builder.build()


@pytest.mark.parametrize("records", [1, 13, 1000])
def test_nothing_is_late_behind_a_chain_of_repartitions(records: int) -> None:
    with driver_of(chain(), {**EXACTLY_ONCE, "max.poll.records": records}) as driver:
        expected = fill(driver)
        driver.commit()
        assert driver.dropped == {}
        counted = sum(driver.output("counts").as_dict().values())
        # The last ten minutes are open.
        assert 0.97 * sum(expected.values()) < counted < sum(expected.values())


def test_results_that_wait_hold_back_the_time_of_those_who_read_them() -> None:
    """Windows of ten minutes are emitted five minutes after they end, into an hour that is over."""
    with driver_of(chain(), {**EXACTLY_ONCE, "max.poll.records": 5}) as driver:
        orders, count = driver.input("orders"), 0
        for minute in range(0, 150, 2):
            for partition in range(PARTITIONS):
                time = BEGIN_MS + minute * 60_000 + partition
                orders.append(b"k", city(count).encode(), timestamp=time, partition=partition)
                count += 1
            driver.commit()
        assert driver.dropped == {}
        found = driver.output("counts").as_dict()
        assert sum(n for key, n in found.items() if key.endswith(str(BEGIN_MS))) == 120


def sessions() -> Topology:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serdes.string, value=serdes.string)
    by_city = orders.group_by(lambda _, city: city, key=serdes.string, name="by-city")
    windows = SessionWindows(inactivity_gap=timedelta(hours=2), grace=GRACE)
    counts = by_city.windowed_by(windows).count(store="sessions")
    flat = counts.to_stream().map(lambda key, n: (f"{key.key}@{key.window.start_ms}", n))
    flat.to("counts", key=serdes.string, value=serdes.long)
    return builder.build()


def sliding() -> Topology:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serdes.string, value=serdes.string)
    by_city = orders.group_by(lambda _, city: city, key=serdes.string, name="by-city")
    windows = SlidingWindows(time_difference=timedelta(seconds=30), grace=GRACE)
    counts = by_city.windowed_by(windows).count(store="sliding")
    flat = counts.to_stream().map(lambda key, n: (f"{key.key}@{key.window.start_ms}", n))
    flat.to("counts", key=serdes.string, value=serdes.long)
    return builder.build()


def deduplicated() -> Topology:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serdes.string, value=serdes.string)
    moved = orders.map(lambda _, city: (city, city)).repartition(key=serdes.string, name="moved")
    once = moved.deduplicate(within=timedelta(minutes=30), grace=GRACE)
    once.to("counts", key=serdes.string, value=serdes.string)
    return builder.build()


@pytest.mark.parametrize("make", [sessions, sliding])
def test_other_windows_lose_nothing_either(make: Any) -> None:
    with driver_of(make(), {**EXACTLY_ONCE, "max.poll.records": 10}) as driver:
        expected = fill(driver, 600)
        driver.commit()
        assert driver.dropped == {}
        total = sum(n or 0 for n in driver.output("counts").as_dict().values())
        assert total >= sum(expected.values()) if make is sessions else total > 0


def joined() -> Topology:
    """A left join of two streams, each behind a repartition topic."""
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serdes.string, value=serdes.string)
    left = orders.map(lambda _, city: (city, city)).repartition(key=serdes.string, name="left")
    other = orders.filter(lambda _, city: city != "city-0")
    right = other.map(lambda _, city: (city, city)).repartition(key=serdes.string, name="right")
    windows = JoinWindows(time_difference=timedelta(seconds=1), grace=GRACE)
    result = left.left_join(right, lambda a, b: f"{a}/{b}", windows)
    result.to("joined", key=serdes.string, value=serdes.string)
    return builder.build()


@pytest.mark.parametrize("records", [3, 100])
def test_a_join_behind_repartition_topics_finds_every_match(records: int) -> None:
    with driver_of(joined(), {**EXACTLY_ONCE, "max.poll.records": records}) as driver:
        fill(driver, 600)
        # Far behind all others, so that the last null results come out.
        for partition in range(PARTITIONS):
            driver.input("orders").append(
                b"k", b"end", timestamp=BEGIN_MS + 2 * SPAN_MS, partition=partition
            )
        driver.commit()
        assert driver.dropped == {}
        found = Counter(r.value for r in driver.output("joined").read_all() if r.key != "end")
        assert found["city-0/None"] == len([n for n in range(600) if city(n) == "city-0"])
        assert not [value for value in found if value.endswith("None") and value[:6] != "city-0"]
        assert sum(found.values()) == 600


class Hours(Processor[str, str, str, str]):
    """Emits how many records came by each full hour of stream time."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        self.context = context
        self.seen: dict[int, int] = {}
        context.schedule(HOUR, self.emit, kind="stream_time")

    def emit(self, now_ms: int) -> None:
        before = [time for time in self.seen if time < now_ms]
        count = sum(self.seen.pop(time) for time in before)
        self.context.forward(Record("count", str(count), now_ms))

    def process(self, record: Record[str, str]) -> None:
        if self.context.current_stream_time - record.timestamp > 60_000:
            raise AssertionError(f"{record.timestamp} is behind stream time")
        self.seen[record.timestamp] = self.seen.get(record.timestamp, 0) + 1


def test_punctuators_by_stream_time_wait_for_the_slowest_partition() -> None:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serdes.string, value=serdes.string)
    moved = orders.map(lambda _, city: (city, city)).repartition(key=serdes.string, name="moved")
    moved.process(Hours).to("counts", key=serdes.string, value=serdes.string)
    with driver_of(builder.build(), {**EXACTLY_ONCE, "max.poll.records": 50}) as driver:
        fill(driver, 1200)
        driver.commit()
        emitted = sum(int(record.value or 0) for record in driver.output("counts").read_all())
        assert emitted >= 1000


class Earlier(Processor[str, str, str, str]):
    """Gives each record the time in its value, three hours before its own."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        self.context = context

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(replace(record, timestamp=record.timestamp - 3 * HOUR_MS))


@pytest.mark.parametrize("records", [1, 10])
def test_time_is_taken_where_a_processor_writes(records: int) -> None:
    """Partitions are an hour apart at each commit; what is written is three hours earlier."""
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serdes.string, value=serdes.string)
    by_city = orders.process(Earlier).group_by(
        lambda _, city: city, key=serdes.string, value=serdes.string, name="by-city"
    )
    counts = by_city.windowed_by(TimeWindows(size=HOUR)).count(store="hourly")
    flat = counts.to_stream(lambda key, _: f"{key.key}@{key.window.start_ms}")
    flat.to("counts", key=serdes.string, value=serdes.long)
    settings = {**EXACTLY_ONCE, "max.poll.records": records}
    with driver_of(builder.build(), settings) as driver:
        orders_in, count = driver.input("orders"), 0
        for minute in range(0, 12 * 60, 20):
            for partition in range(PARTITIONS):
                time = BEGIN_MS + minute * 60_000
                orders_in.append(b"k", city(count).encode(), timestamp=time, partition=partition)
                count += 1
            driver.run()
            if minute % 60 == 40:
                driver.crash()
                driver.commit(rounds=1)
        driver.commit()
        assert driver.dropped == {}
        assert sum(driver.output("counts").as_dict().values()) == count


def test_a_record_of_the_future_makes_no_others_late() -> None:
    with driver_of(hourly(), {**EXACTLY_ONCE, "max.poll.records": 20}) as driver:
        far_ms = BEGIN_MS + 20_000 * HOUR_MS
        driver.input("orders").append(b"k", b"far", timestamp=far_ms, partition=3)
        expected = fill(driver)
        driver.commit()
        found = driver.output("counts").as_dict()
        assert driver.dropped == {}
        assert {k: n for k, n in found.items() if not k.startswith("far")} == expected
