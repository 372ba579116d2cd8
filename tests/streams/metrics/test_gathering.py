"""Snapshots of a worker: what they hold, and when they are made."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from headrace.state.counting import count_rows
from headrace.streams import TopologyTestDriver
from headrace.streams.errors import (
    AbortableError,
    OutcomeUnknownError,
    ProducerFencedError,
    TaskCorruptedError,
    TaskMigratedError,
)
from headrace.streams.metrics.counters import NUMBERS_MAX, ProcessorCounters
from headrace.streams.metrics.snapshots import TaskSnapshot, WorkerSnapshot, skew_of
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams.worker import snapshot_collector
from headrace.streams.worker.snapshot_collector import (
    COST_MAX,
    EVERY_MOST_S,
    EVERY_S,
    STORES_EVERY_S,
    STORES_MOST_S,
    backlog_after,
)
from headrace.topology import Materialized, StreamsBuilder, TimeWindows, serdes
from tests.support.snapshots import input_snapshot, node_snapshot, task_snapshot, worker_snapshot
from tests.support.workers import HERE, THERE, RestoringBench, WorkerBench


def facts(bench: WorkerBench) -> WorkerSnapshot:
    bench.clock.pass_ms(1_000)
    bench.worker.turn()
    assert bench.worker.latest_snapshot is not None
    return bench.worker.latest_snapshot


def task(snapshot: WorkerSnapshot, name: str) -> TaskSnapshot:
    (found,) = (one for one in snapshot.tasks if one.id == name)
    return found


def test_records_count_once_as_processed_and_once_as_committed() -> None:
    bench = WorkerBench().start()
    bench.send("a", "b", "c")
    bench.send("d", place=THERE)
    bench.turns()
    before = facts(bench)
    assert (before.processed, before.committed, before.commits) == (4, 0, 0)
    bench.commit()
    after = facts(bench)
    assert (after.processed, after.committed, after.commits) == (4, 4, 1)
    assert (task(after, "0_0").committed, task(after, "0_1").committed) == (3, 1)
    assert after.commit_latency.count == 1
    assert after.is_running


def test_what_an_abort_makes_void_is_processed_twice_and_committed_once() -> None:
    bench = WorkerBench().start()
    bench.send("a", "b")
    bench.turns()
    bench.consumer.fail(AbortableError("told to"))
    bench.turns()
    bench.commit()
    found = facts(bench)
    assert (found.processed, found.committed) == (4, 2)
    assert found.reactions == {"abort": 1}
    assert found.aborted == 1


def test_records_of_a_transaction_that_is_final_are_committed_whatever_happens_next() -> None:
    bench = WorkerBench().start()
    bench.send("a", "b")
    bench.turns()
    bench.failing["transaction_committed"] = TaskCorruptedError(["0_0"], "broken")
    bench.commit()
    found = facts(bench)
    assert bench.out() == [("a", 1), ("b", 1)]
    assert found.committed == 2
    assert found.reactions == {"rebuild_state": 1}


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (TaskMigratedError("moved"), "abort"),
        (ProducerFencedError("fenced"), "replace_producer"),
        (TaskCorruptedError(["0_0"], "broken"), "rebuild_state"),
    ],
)
def test_reactions_are_counted_by_what_was_done(error: Exception, how: str) -> None:
    bench = WorkerBench().start()
    bench.consumer.fail(error)  # type: ignore[arg-type]
    bench.turns()
    found = facts(bench)
    assert found.reactions == {how: 1}
    assert found.producers_replaced == (how == "replace_producer")


def test_latency_is_from_the_timestamp_of_the_oldest_record_to_its_commit() -> None:
    bench = WorkerBench().start()
    bench.send("a")  # of 5 ms
    bench.clock.pass_ms(2_005)
    bench.turns()
    bench.commit()
    (found,) = facts(bench).latencies
    assert (found.sub_topology, found.latency.count, found.latency.sum_s) == (0, 1, 2.0)


def test_an_input_tells_what_is_committed_and_how_much_is_ahead() -> None:
    bench = WorkerBench().start()
    bench.send("a", "b", "c")
    bench.turns()
    before = task(facts(bench), "0_0").inputs[0]
    assert (before.topic, before.partition, before.internal) == ("in", 0, False)
    assert (before.committed, before.processed, before.end, before.lag) == (0, 3, 3, 3)
    bench.commit()
    after = task(facts(bench), "0_0").inputs[0]
    assert (after.committed, after.end, after.lag, after.behind_ms) == (3, 3, 0, 0)


def test_an_input_with_records_ahead_tells_how_old_they_may_be() -> None:
    bench = WorkerBench().start()
    bench.send("a")
    bench.turns()
    bench.commit()
    bench.consumer.pause([HERE])
    bench.send("b")
    bench.clock.pass_ms(7_000)
    found = task(facts(bench), "0_0").inputs[0]
    assert (found.lag, found.behind_ms) == (1, bench.clock.now_ms() - 5)


def test_a_restore_tells_what_remains_and_how_quick_it_is() -> None:
    bench = RestoringBench()
    found = task(facts(bench), "0_1")
    assert (found.state, found.inputs) == ("restoring", ())
    assert found.stores[0].restore_remaining > 0
    assert not facts(bench).is_running
    bench.decide()
    bench.turns()
    done = facts(bench)
    assert task(done, "0_1").state == "running"
    assert task(done, "0_1").stores[0].restore_remaining == 0
    assert done.restored == 4
    assert done.is_running


def test_stores_are_looked_at_seldom() -> None:
    bench = WorkerBench().start()
    assert task(facts(bench), "0_0").stores[0].keys == 0
    bench.send("a", "b")
    bench.turns()
    assert task(facts(bench), "0_0").stores[0].uncommitted_bytes > 0
    bench.commit()
    found = task(facts(bench), "0_0").stores[0]
    assert (found.name, found.keys, found.uncommitted_bytes) == ("counts", 0, 0)
    assert found.cached_bytes > 0
    assert (found.cache_hits, found.cache_misses) == (2, 0)
    bench.clock.pass_ms(int(STORES_EVERY_S * 1000))
    found = task(facts(bench), "0_0").stores[0]
    assert found.keys == 2
    assert found.size_bytes > 0


def test_rows_that_commits_change_and_need_not_read_are_counted() -> None:
    bench = WorkerBench().start()

    def count(*words: str) -> None:
        bench.send(*words)
        bench.turns()
        bench.commit()

    count("a", "b")  # the store is empty, so no row is read
    for running in bench.worker.tasks.running:
        for buffer in running.buffers:
            buffer.shrink_cache(0)
    count("a", "a", "c")  # both rows are read
    count("a", "b", "c")  # only the row of b is read
    found = task(facts(bench), "0_0").stores[0]
    assert (found.cache_hits, found.cache_misses) == (2 + 0 + 2, 0 + 2 + 1)


def test_a_snapshot_is_made_each_half_second_at_most() -> None:
    bench = WorkerBench().start()
    first = facts(bench)
    bench.worker.turn()
    assert bench.worker.latest_snapshot is first
    bench.clock.pass_ms(int(EVERY_S * 1000))
    bench.worker.turn()
    assert bench.worker.latest_snapshot is not first
    assert first.age_s(bench.clock.monotonic_s()) >= EVERY_S


@pytest.mark.parametrize(
    ("took_ms", "every_ms"), [(15, int(15 / COST_MAX)), (100, int(EVERY_MOST_S * 1000))]
)
def test_snapshots_that_take_long_are_made_seldom_but_not_as_if_the_worker_were_silent(
    took_ms: int, every_ms: int
) -> None:
    bench = WorkerBench().start()
    bench.worker._snapshots.measures = _Slow(bench, took_ms)  # type: ignore[assignment]
    first = facts(bench)
    bench.clock.pass_ms(every_ms - 2 * took_ms)
    bench.worker.turn()
    assert bench.worker.latest_snapshot is first
    bench.clock.pass_ms(3 * took_ms)
    bench.worker.turn()
    assert bench.worker.latest_snapshot is not first


class _Slow:
    """Takes some time."""

    def __init__(self, bench: WorkerBench, took_ms: int) -> None:
        self._bench = bench
        self._took_ms = took_ms
        before = bench.worker._snapshots.measures
        self.times, self.sent, self.are_served = before.times, before.sent, before.are_served

    def usage(self) -> tuple[None, None]:
        from headrace.streams.metrics.measures import Usage

        self._bench.clock.pass_ms(self._took_ms)
        return Usage()


def test_a_snapshot_does_not_change() -> None:
    bench = WorkerBench().start()
    bench.send("a")
    bench.turns()
    bench.commit()
    before = facts(bench)
    kept = repr(before)
    bench.send("b")
    bench.consumer.fail(AbortableError("told to"))
    bench.turns()
    bench.commit()
    assert facts(bench) != before
    assert repr(before) == kept


def test_a_task_counts_on_after_it_was_away() -> None:
    bench = WorkerBench().start()
    bench.send("a")
    bench.turns()
    bench.commit()
    bench.worker.on_revoked([HERE])
    assert [one.id for one in facts(bench).tasks] == ["0_1"]
    bench.worker.on_assigned([HERE])
    bench.turns()
    bench.send("b")
    bench.turns()
    bench.commit()
    found = facts(bench)
    assert task(found, "0_0").committed == 2
    assert found.committed == 2


def test_the_last_snapshot_has_what_was_done_last() -> None:
    bench = WorkerBench().start()
    bench.send("a")
    bench.turns()
    bench.worker.finish()
    assert bench.worker.latest_snapshot is not None
    assert bench.worker.latest_snapshot.committed == 1


def test_a_node_tells_what_it_left_out() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string, value=serdes.string).group_by_key().count(name="count")
    with TopologyTestDriver(builder.build(), {"null.key.policy": "drop"}) as driver:
        driver.input("in", key=serdes.string, value=serdes.string).send(None, "x")
        worker = driver._worker.present()
        worker._snapshots.collect()
        assert worker.latest_snapshot is not None
        (found,) = worker.latest_snapshot.nodes
    assert (found.name, found.dropped, found.late) == ("count", {"null key": 1}, 0)


HOUR_MS = 3_600_000


def test_a_task_has_its_stream_time_and_the_skew_of_its_inputs() -> None:
    builder = StreamsBuilder()
    streams = [builder.stream(name, key=serdes.string) for name in ("a", "b")]
    streams[0].merge(streams[1]).group_by_key().count()
    with TopologyTestDriver(builder.build(), commit="manual") as driver:
        driver.input("a").send("k", 1, timestamp=5 * HOUR_MS)
        driver.input("b").append(b"k", b"1", timestamp=HOUR_MS)
        worker = driver._worker.present()
        worker._snapshots.collect()
        assert worker.latest_snapshot is not None
        (found,) = worker.latest_snapshot.tasks
    assert found.stream_time_ms == 5 * HOUR_MS
    assert [one.event_time_ms for one in found.inputs] == [5 * HOUR_MS, -1]
    assert found.skew is not None
    assert found.skew.describe() == "b-0 has not been read yet, a-0 has"


def test_a_partition_is_not_compared_with_itself() -> None:
    same = skew_of({"a-0": 5, "a-1": 5})
    assert same is not None
    assert {same.slowest, same.fastest} == {"a-0", "a-1"}


def test_an_idle_partition_at_time_zero_is_left_out() -> None:
    times = {"accounts-0": 0, "orders-0": 1_700_000_000_000}
    assert skew_of(times, {"accounts-0"}) is None
    assert skew_of(times) is not None


def test_a_partition_that_was_not_read_is_behind_by_the_longest_time() -> None:
    unread, long = skew_of({"a-0": -1, "a-1": 5}), skew_of({"b-0": 0, "b-1": HOUR_MS})
    assert unread is not None
    assert long is not None
    assert unread.span_ms == 0
    assert max(long, unread, key=lambda one: one.extent) is unread


def test_the_skew_behind_a_repartition_topic_is_that_of_the_source_partitions() -> None:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serdes.string, value=serdes.string)
    grouped = orders.group_by(lambda _, city: city, key=serdes.string)
    grouped.windowed_by(TimeWindows(size=timedelta(hours=1))).count()
    settings = {"processing.guarantee": "exactly_once_v2"}
    with TopologyTestDriver(builder.build(), settings, partitions=2, commit="manual") as driver:
        for partition, hours in enumerate((4, 1)):
            driver.input("orders").send("k", "x", timestamp=hours * HOUR_MS, partition=partition)
        driver.commit()
        worker = driver._worker.present()
        worker._snapshots.collect()
        assert worker.latest_snapshot is not None
        skews = {one.id: one.skew for one in worker.latest_snapshot.tasks}
        times = {one.id: one.stream_time_ms for one in worker.latest_snapshot.tasks}
    # Each task of the count has it, and not the time of the records that it has got itself.
    assert times["1_0"] == times["1_1"] == 4 * HOUR_MS
    assert skews["0_0"] is None
    assert skews["1_0"] is not None
    assert skews["1_0"].describe() == "orders-1 (idle) is 3:00:00 behind orders-0"


def backlog(log: EventLog, *snapshots: WorkerSnapshot) -> None:
    found = None
    for snapshot in snapshots:
        found = backlog_after(found, snapshot, log)


def behind(
    lag: int, at_s: float, *, late: int = 0, hours: int = 0, apart: int = 0
) -> WorkerSnapshot:
    """A worker with a lag, at a time; its skew is `apart` hours."""
    inputs = (input_snapshot(committed=0, end=lag, event_time_ms=hours * HOUR_MS),)
    skew = skew_of({"orders-0": 0, "orders-1": apart * HOUR_MS})
    node = node_snapshot(dropped={"late": late, "null key": 9})
    return replace(
        worker_snapshot(at_s=at_s, committed=int(at_s) * 1000),
        tasks=(task_snapshot(inputs=inputs, skew=skew),),
        nodes=(node,),
    )


def test_a_backlog_is_summed_up_when_it_has_been_processed() -> None:
    log = EventLog()
    backlog(
        log,
        behind(50_000, 10.0, late=2),
        behind(20_000, 20.0, late=2, hours=3, apart=7),
        behind(3_000, 30.0, late=2, hours=6, apart=2),
        behind(900, 41.0, late=2, hours=9),
        behind(2_000, 60.0, late=2, hours=9),
    )
    (event,) = log.events
    assert event == {
        "event": "backlog_processed",
        "level": "info",
        "records": 31_000,
        "seconds": 31.0,
        "event_time_from": "1970-01-01T00:00:00.000Z",
        "event_time_to": "1970-01-01T09:00:00.000Z",
        "late": 0,
        "skew": "orders-0 is 7:00:00 behind orders-1",
    }


def test_a_backlog_of_which_a_part_is_unknown_or_elsewhere_has_not_been_processed() -> None:
    log = EventLog()
    done = behind(0, 40.0)
    (task,) = done.tasks
    unknown = replace(done, tasks=(task, replace(task, inputs=(input_snapshot(end=None),))))
    backlog(log, behind(50_000, 10.0), unknown)
    backlog(log, behind(50_000, 10.0), replace(done, tasks=()), behind(0, 90.0))
    assert log.events == []
    backlog(log, behind(50_000, 10.0), unknown, behind(0, 50.0))
    assert len(log.events) == 1


def test_late_records_of_a_backlog_are_a_warning() -> None:
    log = EventLog()
    backlog(log, behind(50_000, 10.0, late=2), behind(0, 30.0, late=5))
    (event,) = log.events
    assert (event["level"], event["late"]) == ("warning", 3)


def test_a_lag_of_a_moment_is_no_backlog() -> None:
    log = EventLog()
    backlog(log, behind(50_000, 10.0), behind(0, 11.0), behind(9_000, 12.0), behind(0, 90.0))
    assert log.events == []


def test_numbers_of_too_many_names_are_left_out_and_said_once() -> None:
    log = EventLog()
    numbers = ProcessorCounters(log)
    for number in range(NUMBERS_MAX + 5):
        numbers.add("node", f"n{number}", 1)
    numbers.add("node", "n0", 2.5)
    assert len(numbers.values) == NUMBERS_MAX
    assert numbers.values["node", "n0"] == 3.5
    assert [event["event"] for event in log.events] == ["counters_omitted"]


def in_doubt(*, made: bool) -> WorkerBench:
    """A bench whose last commit got no answer, and whether it was made."""
    bench = WorkerBench().start()
    bench.send("a", "b")
    bench.turns()
    error = OutcomeUnknownError("no answer")
    commit = bench.worker._transactions.producer.commit

    def without_answer() -> None:
        if made:
            commit()
        raise error

    bench.worker._transactions.producer.commit = without_answer  # type: ignore[method-assign]
    bench.worker.request_commit()
    bench.worker.turn()
    return bench


def test_a_commit_without_an_answer_counts_once_its_task_begins_behind_it() -> None:
    bench = in_doubt(made=True)
    bench.turns()
    found = facts(bench)
    assert bench.out() == [("a", 1), ("b", 1)]
    assert (found.processed, found.committed, found.undecided) == (2, 2, 0)
    assert (found.commits, found.aborted, found.producers_replaced) == (1, 0, 1)


def test_a_commit_without_an_answer_that_was_not_made_counts_as_aborted() -> None:
    bench = in_doubt(made=False)
    bench.turns()
    found = facts(bench)
    assert (found.committed, found.undecided, found.aborted) == (0, 0, 1)
    bench.commit()
    found = facts(bench)
    assert bench.out() == [("a", 1), ("b", 1)]
    assert (found.processed, found.committed, found.commits) == (4, 2, 1)


def test_a_commit_without_an_answer_whose_tasks_went_away_stays_undecided() -> None:
    bench = in_doubt(made=True)
    bench.worker.on_revoked([HERE, THERE])
    found = facts(bench)
    assert (found.committed, found.undecided, found.commits, found.aborted) == (0, 2, 0, 0)


def test_a_transaction_that_is_aborted_at_the_end_counts_as_such() -> None:
    bench = WorkerBench().start()
    bench.send("a")
    bench.turns()
    bench.failing["offsets_sent"] = AbortableError("told to")
    bench.worker.finish()
    assert bench.worker.latest_snapshot is not None
    assert (bench.worker.latest_snapshot.committed, bench.worker.latest_snapshot.aborted) == (0, 1)


def test_the_last_snapshot_of_a_worker_that_fails_has_what_was_done_last() -> None:
    bench = WorkerBench().start()
    bench.send("a")
    bench.turns()
    bench.worker.close_after_error()
    assert bench.worker.latest_snapshot is not None
    assert (bench.worker.latest_snapshot.processed, bench.worker.latest_snapshot.aborted) == (1, 1)


def test_what_a_turn_did_counts_although_the_turn_fails() -> None:
    bench = WorkerBench().start()
    bench.send("a", "b")

    def fails(timeout_s: float) -> None:
        raise AbortableError("told to")

    bench.worker._transactions.producer.apply_backpressure = fails  # type: ignore[method-assign]
    bench.worker.turn()
    assert bench.worker.processed == 2
    assert facts(bench).processed >= 2


def test_what_a_store_leaves_out_is_told_by_its_name() -> None:
    builder = StreamsBuilder()
    rows = Materialized("rows", history=timedelta(seconds=1))
    builder.table("in", key=serdes.string, value=serdes.string, store=rows).to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    driver.input("in").send("a", "new", timestamp=100_000)
    driver.input("in").send("a", "old", timestamp=1_000)
    assert sum(driver.dropped.values()) == 1
    driver.restart()
    assert driver.store("rows")["a"] == "new"


def test_how_long_a_task_has_not_run_goes_on_through_all_that_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = WorkerBench().start()
    bench.turns()
    assert task(facts(bench), "0_0").unready_s == 0
    known = bench.worker.tasks.states()

    def seen(state: str) -> tuple[float, float]:
        of_all = {name: (state, found) for name, (_, found) in known.items()}
        monkeypatch.setattr(type(bench.worker.tasks), "states", lambda _: of_all)
        found = task(facts(bench), "0_0")
        return found.state_s, found.unready_s

    assert [seen("waiting"), seen("restoring"), seen("waiting")] == [(0, 1), (0, 2), (0, 3)]
    assert seen("waiting") == (1, 4)
    assert seen("running") == (0, 0)
    known.clear()
    facts(bench)
    monkeypatch.undo()
    assert task(facts(bench), "0_0").unready_s == 0


def test_a_task_is_stalled_if_it_processes_records_and_never_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = WorkerBench().start()
    facts(bench)
    limit_ms = bench.config.task_timeout_ms + bench.config.commit_interval_ms
    monkeypatch.setattr(type(bench.worker), "_commit_if_due", lambda *_: None)
    bench.send("a")
    for _ in range(3):
        bench.turns()
        assert task(facts(bench), "0_0").stalled_s == 0
        bench.consumer.fail(AbortableError("told to"))
        bench.turns()
        bench.clock.pass_ms(limit_ms // 3)
    found = facts(bench)
    assert (found.processed, found.committed, found.aborted) == (4, 0, 3)
    assert task(found, "0_0").stalled_s > limit_ms / 1000
    assert task(found, "0_1").stalled_s == 0
    monkeypatch.undo()
    bench.commit()
    assert task(facts(bench), "0_0").stalled_s == 0


def test_a_task_without_records_is_not_stalled() -> None:
    bench = WorkerBench().start()
    bench.send("a")
    bench.turns()
    bench.commit()
    facts(bench)
    bench.clock.pass_ms(bench.config.task_timeout_ms * 10)
    assert task(facts(bench), "0_0").stalled_s == 0


def test_stores_are_looked_at_by_turns_as_far_as_the_time_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a snapshot has no time for is told as before, and looked at first for the next one."""
    bench = WorkerBench().start()
    assert [one.stores[0].keys for one in facts(bench).tasks] == [0, 0]
    bench.send("a", "b")
    bench.send("c", place=THERE)
    bench.turns()
    bench.commit()
    looks = []

    def slow(*given: Any) -> tuple[int, bool]:
        looks.append(given)
        bench.clock.pass_ms(int(STORES_MOST_S * 1000) + 1)
        return count_rows(*given)

    monkeypatch.setattr(snapshot_collector, "count_rows", slow)
    bench.clock.pass_ms(int(STORES_EVERY_S * 1000))
    assert [one.stores[0].keys for one in facts(bench).tasks] == [2, 0]
    bench.clock.pass_ms(int(EVERY_MOST_S * 1000))
    assert [one.stores[0].keys for one in facts(bench).tasks] == [2, 1]


def test_a_store_of_many_rows_is_counted_seldom_and_estimated_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = WorkerBench().start()
    bench.send("a", "b")
    bench.turns()
    bench.commit()
    counted_s: list[float] = []
    begun_s = bench.clock.monotonic_s()

    def too_many(*_: Any) -> tuple[int, bool]:
        counted_s.append(bench.clock.monotonic_s() - begun_s)
        return 5_000, False

    def look() -> tuple[int, bool]:
        store = task(facts(bench), "0_0").stores[0]
        return store.keys, store.is_counted

    monkeypatch.setattr(snapshot_collector, "count_rows", too_many)
    told = [look() for _ in range(400)]
    waits_s = [after - before for before, after in pairwise(counted_s[::2])]  # of one of two stores
    assert len(waits_s) >= 5
    assert all(60 <= wait < 66 for wait in waits_s)
    assert {(2, False), (5_000, False)} <= set(told)
    monkeypatch.undo()
    exact = [look() for _ in range(66)]
    assert exact[-1] == (2, True)
    assert exact.index((2, True)) > 6


def test_a_store_that_others_left_no_time_for_is_counted_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = WorkerBench().start()
    looks = 0

    def late(*given: Any) -> tuple[int, bool]:
        nonlocal looks
        looks += 1
        bench.clock.pass_ms(int(STORES_MOST_S * 1000) + 1)
        return 5_000, False

    monkeypatch.setattr(snapshot_collector, "count_rows", late)
    bench.worker._snapshots._sizes.clear()
    facts(bench)
    assert looks == 2
    monkeypatch.undo()
    for _ in range(6):
        found = [one.stores[0].is_counted for one in facts(bench).tasks]
    assert found == [False, True]
