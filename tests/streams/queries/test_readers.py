"""Stores of every kind are read beside the worker, and show what it has committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from headrace import (
    KafkaStreams,
    Materialized,
    SessionWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyTestDriver,
    Window,
    Windowed,
    avro,
    serdes,
)
from headrace.state.rocks import RocksTaskState
from headrace.state.store import NO_COMMIT
from headrace.streams.queries import readers, replicas
from headrace.streams.queries.errors import (
    NoSuchStoreError,
    NotReadableError,
    QueryError,
    TooOldError,
    WrongQueryError,
)
from headrace.streams.queries.queries import Queries

SETTINGS = {"application.id": "asked", "bootstrap.servers": "nowhere:1"}
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def follows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed is read at once, and not some time later."""
    monkeypatch.setattr(replicas, "UPDATE_EVERY_MAX_S", 0.0)


@contextmanager
def asked(topology: Topology, path: Path, **options: Any) -> Iterator[tuple[Any, Queries]]:
    """A topology that runs with its state on disk, and what it is asked with."""
    settings = {**SETTINGS, "state.dir": str(path), "processing.guarantee": "exactly_once_v2"}
    app = KafkaStreams(topology, settings)
    with (
        TopologyTestDriver(
            topology, settings, state_dir=path, commit="manual", **options
        ) as driver,
        app.queries() as queries,
    ):
        yield driver, queries


def counting(**materialized: Any) -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    words.group_by_key().count(store=Materialized("counts", **materialized)).to_stream().to("out")
    return builder.build()


def send(driver: Any, *keys: str, **options: Any) -> None:
    for key in keys:
        driver.input("words").send(key, "", **options)


def test_few_rows_that_are_written_often_are_not_taken_for_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with asked(counting(), tmp_path, partitions=2) as (driver, queries):
        for _ in range(30):
            send(driver, "a", "b", "c", "d")
            driver.commit()
        counts = queries.store("counts")
        assert counts.approximate_num_entries() == counts.count() == 4
        monkeypatch.setattr(readers, "COUNTED_ROWS", 1)
        assert counts.approximate_num_entries() > 4  # RocksDB counts each change


def test_a_table_shows_committed_rows_alone(tmp_path: Path) -> None:
    with asked(counting(), tmp_path, partitions=3) as (driver, queries):
        counts = queries.store("counts")
        send(driver, "a", "b", "a")
        driver.run()
        assert counts.get("a") is None
        driver.commit()
        assert (counts.get("a"), counts["b"], counts.get("c")) == (2, 1, None)
        assert ("a" in counts, "c" in counts) == (True, False)
        with pytest.raises(KeyError, match="c"):
            counts["c"]
        assert counts.get_many(["c", "b", "a"]) == [None, 1, 2]
        send(driver, "a")
        driver.run()
        assert counts.get("a") == 2
        driver.commit()
        wait_for(lambda: counts.get("a") == 3)


def wait_for(is_so: Any) -> None:
    """What is read may be some milliseconds old."""
    waiting = threading.Event()
    for _ in range(500):
        if is_so():
            return
        waiting.wait(0.01)
    raise AssertionError("never")


def test_ranges_go_over_partitions_in_the_order_of_keys(tmp_path: Path) -> None:
    keys = [f"k{n:04d}" for n in range(1_700)]
    with asked(counting(), tmp_path, partitions=3) as (driver, queries):
        send(driver, *keys, "other")
        driver.commit()
        counts = queries.store("counts")
        assert [row.key for row in counts.all()] == [*keys, "other"]
        assert [row.key for row in counts.all(reverse=True)] == ["other", *reversed(keys)]
        assert [row.key for row in counts.range("k0500", "k1400")] == keys[500:1401]
        found = counts.range("k0500", "k1400", reverse=True, limit=700)
        assert [row.key for row in found] == keys[701:1401][::-1]
        assert [row.key for row in counts.range(None, "k0001")] == keys[:2]
        assert [row.key for row in counts.prefix_scan("k003")] == keys[30:40]
        assert [row.key for row in counts.prefix_scan("k", limit=3)] == keys[:3]
        assert {row.partition for row in counts.all()} == {0, 1, 2}
        assert counts.count() == 1_701
        assert 0 < counts.approximate_num_entries() < 10_000


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_pages_give_every_row_once(tmp_path: Path, reverse: bool, limit: int) -> None:
    with asked(counting(), tmp_path, partitions=3) as (driver, queries):
        send(driver, *(f"k{n}" for n in range(40)))
        driver.commit()
        counts = queries.store("counts")
        scan = counts.between("k1", "k38", reverse=reverse)
        whole = [row.key for row in counts.range("k1", "k38", reverse=reverse)]
        found, after = [], None
        while True:
            page = counts.page(scan, limit=limit, after=after)
            assert len(page.rows) <= limit
            found += [row.key for row in page.rows]
            after = page.after
            if after is None:
                break
        assert found == whole
        assert len(found) > 30
        # What another query's page gave does not lead out of the range.
        first = counts.page(counts.between(None, None), limit=1).after
        begun = counts.page(counts.between("k1", "k38"), limit=100, after=first).rows
        assert {row.key for row in begun} <= set(whole)


def test_a_cursor_of_ones_own_is_refused(tmp_path: Path) -> None:
    with asked(counting(), tmp_path) as (driver, queries):
        send(driver, "a")
        driver.commit()
        counts = queries.store("counts")
        for wrong in ("", "x", "a.b", "é.1", "YQ==.", "YQ==.1.2"):
            with pytest.raises(WrongQueryError, match="after is not the value of a previous page"):
                counts.page(counts.between(None, None), limit=1, after=wrong)


def test_windows_are_found_by_key_and_by_time(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    windows = words.group_by_key().windowed_by(TimeWindows(size=MINUTE, grace=timedelta(days=1)))
    windows.count(store="counts").to_stream().to("out")
    with asked(builder.build(), tmp_path, partitions=2) as (driver, queries):
        for key, minute in (("a", 0), ("a", 1), ("a", 1), ("ab", 1), ("b", 2), ("a", 5)):
            send(driver, key, timestamp=60_000 * minute + 7)
        driver.commit()
        counts = queries.store("counts")
        assert (counts.get("a", 60_000), counts.get("a", 120_000)) == (2, None)
        found = list(counts.fetch("a", 0, 299_999))
        assert [(row.key, row.value) for row in found] == [
            (Windowed("a", Window(0, 60_000)), 1),
            (Windowed("a", Window(60_000, 120_000)), 2),
        ]
        one = datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
        assert counts.get("a", one) == counts.get("a", one.replace(tzinfo=None)) == 2
        assert [row.value for row in counts.fetch("a", one, one + MINUTE)] == [2]
        assert [row.value for row in counts.fetch("a", end=one)] == [1, 2]
        assert [row.value for row in counts.fetch("a")] == [1, 2, 1]
        assert len(list(counts.fetch_all(one))) == 4
        assert len(list(counts.fetch_all(one, limit=3))) == 3
        with pytest.raises(
            WrongQueryError, match=r"limit must be a maximum number of rows.*not -1"
        ):
            counts.fetch_all(limit=-1)
        with pytest.raises(WrongQueryError, match=r"a time must be a datetime or milli.*, not str"):
            counts.fetch("a", "1970-01-01")
        found = [(r.key.key, r.key.window.start_ms) for r in counts.fetch_all(60_000, 120_000)]
        assert found == [("a", 60_000), ("ab", 60_000), ("b", 120_000)]
        assert (counts.count(), len(list(counts.all()))) == (5, 5)
        pages, after = [], None
        while True:
            page = counts.page(counts.of_times(0, 2**63), limit=2, after=after)
            pages.append([(row.key.key, row.key.window.start_ms) for row in page.rows])
            after = page.after
            if after is None:
                break
        assert pages == [
            [("a", 0), ("a", 60_000)], [("ab", 60_000), ("b", 120_000)], [("a", 300_000)]
        ]  # fmt: skip
        with pytest.raises(WrongQueryError, match="after belongs to another query"):
            counts.page(counts.of_times(0, 5), limit=1, after="YQ==.0")
        with pytest.raises(WrongQueryError, match="serde string"):
            counts.get(5, 60_000)


def test_many_windows_of_one_start_are_gone_through_piece_by_piece(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    windows = words.group_by_key().windowed_by(TimeWindows(size=MINUTE))
    windows.count(store="counts").to_stream().to("out")
    with asked(builder.build(), tmp_path, partitions=2) as (driver, queries):
        send(driver, *(f"k{n:04d}" for n in range(1_300)), timestamp=5)
        driver.commit()
        found = [row.key.key for row in queries.store("counts").fetch_all(0, 0)]
        assert found == [f"k{n:04d}" for n in range(1_300)]


def test_sessions_are_found_by_key_and_by_time(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    gap = SessionWindows(inactivity_gap=MINUTE, grace=timedelta(days=1))
    words.group_by_key().windowed_by(gap).count(store="visits").to_stream().to("out")
    with asked(builder.build(), tmp_path, partitions=2) as (driver, queries):
        for key, time in (("a", 0), ("a", 50_000), ("a", 200_000), ("b", 210_000), ("aa", 5)):
            send(driver, key, timestamp=time)
        driver.commit()
        visits = queries.store("visits")
        assert [(row.key.window, row.value) for row in visits.fetch("a")] == [
            (Window(0, 50_000), 2), (Window(200_000, 200_000), 1)
        ]  # fmt: skip
        found = visits.find_sessions("a", 50_001, 250_000)
        assert [row.key.window.start_ms for row in found] == [200_000]
        assert [row.key.window.start_ms for row in visits.find_sessions("a", 0, 10)] == [0]
        begin = datetime(1970, 1, 1, tzinfo=UTC)
        assert [row.key.window.start_ms for row in visits.find_sessions("a", begin, begin)] == [0]
        found = visits.find_sessions_by_end(50_000, 205_000)
        assert [row.key.key for row in found] == ["a", "a"]
        assert len([*visits.find_sessions_by_end(None, None, limit=1)]) == 1


def test_versions_are_found_as_of_a_time(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    store = Materialized("prices", history=timedelta(days=1))
    builder.table("words", key=serdes.string, value=serdes.string, store=store)
    with asked(builder.build(), tmp_path) as (driver, queries):
        for time, value in ((10, "x"), (20, "y"), (30, None), (40, "z")):
            driver.input("words").send("a", value, timestamp=time)
        driver.commit()
        prices = queries.store("prices")
        found = [prices.get("a", as_of=time) for time in (9, 10, 19, 20, 30, 39, 40, 99)]
        assert found == [None, "x", "x", "y", None, None, "z", "z"]
        assert (prices.get("a"), prices.get("b"), prices.get("b", as_of=5)) == ("z", None, None)
        assert prices.get("a", as_of=datetime(1970, 1, 1, 0, 0, 0, 20_000, tzinfo=UTC)) == "y"
        assert [(row.key, row.value, row.timestamp) for row in prices.all()] == [("a", "z", 40)]


@dataclass(frozen=True)
class Order:
    id: int
    shop: str


def test_typed_classes_are_read_as_what_they_are(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    orders = serdes.json_of(Order)
    builder.table("words", key=orders, value=orders, store="orders")
    with asked(builder.build(), tmp_path, partitions=2) as (driver, queries):
        order = Order(1, "a")
        driver.input("words").send(order, order)
        driver.commit()
        assert queries.store("orders").get(order) == order
        with pytest.raises(WrongQueryError, match=r"use serde json_of\(Order\)"):
            queries.store("orders").get("a")


def test_avro_is_read_as_what_it_is(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    builder = StreamsBuilder()
    builder.table("words", key=serdes.string, value=avro.serde(schema), store="orders")
    with asked(builder.build(), tmp_path) as (driver, queries):
        driver.input("words").send("a", {"id": 7})
        driver.commit()
        assert queries.store("orders").get("a") == {"id": 7}


def test_a_global_table_is_read_too(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.global_table("rates", key=serdes.string, value=serdes.double, store="rates")
    builder.stream("words", value=serdes.string).to("out")
    with asked(builder.build(), tmp_path) as (driver, queries):
        rates = queries.store("rates")
        driver.input("rates").send("EUR", 1.5, timestamp=5)
        driver.run()
        wait_for(lambda: rates.get("EUR") == 1.5)
        (row,) = rates.all()
        assert (row.key, row.timestamp, row.partition) == ("EUR", 5, None)


def test_a_global_table_grows_old_only_where_no_worker_holds_it(tmp_path: Path) -> None:
    """Most are not changed for hours."""
    builder = StreamsBuilder()
    builder.global_table("rates", key=serdes.string, value=serdes.double, store="rates")
    builder.stream("words", value=serdes.string).to("out")
    topology = builder.build()
    hour_ms = 3_600_000
    app = KafkaStreams(topology, {**SETTINGS, "state.dir": str(tmp_path)})
    late = Queries(
        app.config, app.plans, app.global_plans, now_ms=lambda: time.time_ns() // 10**6 + hour_ms
    )
    try:
        with asked(topology, tmp_path) as (driver, queries):
            driver.input("rates").send("EUR", 1.5)
            driver.run()
            wait_for(lambda: queries.store("rates").get("EUR") == 1.5)
            rates = late.store("rates")
            assert rates.get("EUR") == 1.5
            (position,) = rates.positions()
            assert position.age_ms < hour_ms
        time.sleep(replicas.LIST_EVERY_S)
        (position,) = rates.positions()
        assert position.age_ms >= hour_ms
    finally:
        late.close()


def test_files_of_another_kind_of_store_are_not_taken_for_empty_ones(tmp_path: Path) -> None:
    """Its rows would not be found where the other kind looks for them."""
    builder = StreamsBuilder()
    history = Materialized("counts", history=timedelta(days=1))
    builder.table("words", key=serdes.string, value=serdes.string, store=history)
    other = builder.build()
    with asked(counting(), tmp_path) as (driver, queries):
        send(driver, "a")
        driver.commit()
        assert queries.store("counts").get("a") == 1
    app = KafkaStreams(other, {**SETTINGS, "state.dir": str(tmp_path)})
    with app.queries() as queries:
        for ask in (lambda s: s.get("a"), lambda s: s.count(), lambda s: list(s.all())):
            with pytest.raises(
                NotReadableError, match=r"contain a key-value store, and .* has it as a versioned"
            ):
                ask(queries.store("counts"))


def test_a_key_is_found_wherever_a_processor_keeps_it(tmp_path: Path) -> None:
    """No partitioner has put it there."""
    builder = StreamsBuilder()
    totals = Stores.key_value("totals", key=serdes.string, value=serdes.long)

    def add(record: Any, context: Any) -> None:
        store = context.store("totals")
        store.put("of " + record.key, (store.get("of " + record.key) or 0) + 1)

    words = builder.stream("words", key=serdes.string, value=serdes.string)
    words.process(add, stores=[totals])
    keys = [f"k{n}" for n in range(20)]
    with asked(builder.build(), tmp_path, partitions=4) as (driver, queries):
        send(driver, *keys)
        driver.commit()
        reader = queries.store("totals")
        assert [reader.get(f"of {key}") for key in keys] == [1] * 20
        assert reader.get_many([f"of {key}" for key in keys] + ["none"]) == [1] * 20 + [None]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with asked(counting(), tmp_path) as (driver, queries):
        with pytest.raises(
            NoSuchStoreError, match=r"asked has no store 'count'. Use a store that it has: counts"
        ):
            queries.store("count")
        send(driver, "a")
        driver.commit()
        counts = queries.store("counts")
        for wrong in (5, None, b"a"):
            with pytest.raises(WrongQueryError, match="'counts'"):
                counts.get(wrong)


def test_a_store_in_memory_is_refused(tmp_path: Path) -> None:
    with asked(counting(kind="memory"), tmp_path) as (driver, queries):
        send(driver, "a")
        driver.commit()
        with pytest.raises(QueryError, match="is in the memory of the workers"):
            queries.store("counts").get("a")


def test_a_host_without_rows_says_so_and_makes_nothing(tmp_path: Path) -> None:
    app = KafkaStreams(counting(), {**SETTINGS, "state.dir": str(tmp_path / "none")})
    with pytest.raises(NotReadableError, match="this host has no rows of store 'counts'"):
        app.store("counts").get("a")
    assert not (tmp_path / "none").exists()


def test_rows_of_another_version_are_told_from_those_of_this_one(tmp_path: Path) -> None:
    with asked(counting(), tmp_path) as (driver, _):
        send(driver, "a")
        driver.commit()
    builder = StreamsBuilder()
    builder.table("words", key=serdes.string, value=serdes.integer, store="counts")
    app = KafkaStreams(builder.build(), {**SETTINGS, "state.dir": str(tmp_path)})
    with pytest.raises(QueryError, match="the application's serdes cannot decode"):
        app.store("counts").get("a")
    app.queries().close()


def test_a_stopped_application_is_read_and_one_that_begins_again(tmp_path: Path) -> None:
    topology = counting()
    settings = {**SETTINGS, "state.dir": str(tmp_path), "processing.guarantee": "exactly_once_v2"}
    with asked(topology, tmp_path) as (driver, _):
        send(driver, "a", "a")
        driver.commit()
    app = KafkaStreams(topology, settings)
    counts = app.store("counts")
    assert counts.get("a") == 2
    (position,) = counts.positions()
    assert (position.partition, position.state) == (0, None)
    assert position.offset > 0
    with TopologyTestDriver(topology, settings, state_dir=tmp_path, commit="manual") as driver:
        # Another cluster: what was there is not that of its changelog, and is given up.
        send(driver, "b")
        driver.commit()
        wait_for(lambda: reads(counts, "b") == 1)
        assert counts.get("a") is None
    app.queries().close()


def reads(counts: Any, key: str) -> Any:
    try:
        return counts.get(key)
    except NotReadableError:
        return None


def test_rows_that_are_restored_are_not_read(tmp_path: Path) -> None:
    with asked(counting(), tmp_path) as (driver, queries):
        send(driver, "a")
        driver.commit()
        counts = queries.store("counts")
        assert counts.get("a") == 1
        (home,) = driver._worker.disk._homes.values()
        state: RocksTaskState = home.state
        position = state.position("counts")
        assert position is not None
        state.begin_restore()
        state.restore({"counts": []})
        wait_for(lambda: is_refused(counts))
        state.end_restore({"counts": position})
        wait_for(lambda: reads(counts, "a") == 1)
        # As a first restore leaves it that was broken off by a stop.
        state.write({}, {"counts": replace(position, commit_id=NO_COMMIT)})
        wait_for(lambda: is_refused(counts))
        for ask in (lambda: counts.get("a"), counts.count, lambda: list(counts.all())):
            with pytest.raises(NotReadableError, match=r"was interrupted, .*Retry later"):
                ask()


def is_refused(counts: Any) -> bool:
    try:
        counts.get("a")
    except NotReadableError as error:
        assert "task 0_0 of store 'counts' cannot be read now" in str(error)  # noqa: PT017
        return True
    return False


def test_ones_own_writes_are_waited_for(tmp_path: Path) -> None:
    with asked(counting(), tmp_path) as (driver, queries):
        send(driver, "a")
        driver.commit()
        (position,) = queries.store("counts").positions()
        queries.wait("counts", lambda p: p.offset >= position.offset, partition=0, timeout_s=0)
        with pytest.raises(TooOldError, match="has not reached the requested position after 0"):
            queries.wait(
                "counts", lambda p: p.offset > position.offset, partition=0, timeout_s=0.05
            )
        with pytest.raises(TooOldError, match="partition 7 of store 'counts' is not on this host"):
            queries.wait("counts", lambda _: True, partition=7, timeout_s=0)
        send(driver, "a")
        driver.commit()
        queries.wait("counts", lambda p: p.offset > position.offset, partition=0, timeout_s=5)
        assert queries.store("counts").get("a") == 2


def test_many_threads_ask_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sees values that were committed, and none that is older than one that it has seen."""
    monkeypatch.setattr(replicas, "UPDATE_EVERY_MAX_S", 0.02)
    with asked(counting(), tmp_path, partitions=2) as (driver, queries):
        send(driver, "a", "b")
        driver.commit()
        counts = queries.store("counts")
        wrong: list[Any] = []
        over = threading.Event()

        def ask() -> None:
            last = 0
            while not over.is_set():
                try:
                    found = counts.get("a")
                    rows = {row.key: row.value for row in islice(counts.all(), 10)}
                except Exception as error:  # whatever it is, it is wrong
                    wrong.append(error)
                    return
                if found < last or rows["a"] < found:
                    wrong.append((last, found, rows))
                last = found

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(60):
            send(driver, "a", "b")
            driver.commit()
        over.set()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_rows_that_are_not_as_far_as_they_were_are_not_read(tmp_path: Path) -> None:
    with asked(counting(), tmp_path) as (driver, queries):
        send(driver, "a", "b")
        driver.commit()
        counts = queries.store("counts")
        assert counts.get("a") == 1
        (home,) = driver._worker.disk._homes.values()
        state: RocksTaskState = home.state
        position = state.position("counts")
        assert position is not None
        state.write({}, {"counts": replace(position, offset=position.offset - 1)})
        with pytest.raises(NotReadableError, match="it has not caught up with an earlier answer"):
            counts.get("a")
        state.write({}, {"counts": position})
        assert counts.get("a") == 1
