"""What a restore keeps, drops, reads and claims; the consumer and the changelog are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from headrace.state.codec import decode_timestamped, encode_timestamped
from headrace.state.errors import StoreCorruptedError
from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.store import NO_COMMIT, Position, TaskState
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import RestoreLostError, TaskCorruptedError
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition, no_probe
from headrace.streams.plan.identity import ChangelogLostError, commit_header
from headrace.streams.plan.plan import plan_application
from headrace.streams.plan.progress import COMMIT_ID, OffsetMetadata
from headrace.streams.tasks import restore
from headrace.streams.tasks.restore import ChangelogDescription, Restorer
from headrace.streams.tasks.task import Task
from headrace.streams.testing.local_cluster import Transaction
from headrace.streams.testing.memory_clients import MemoryConsumer
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.streams.testing.memory_worker import EventLog, ManualClock
from headrace.topology import StreamsBuilder, serdes
from tests.support.live import RestoreRecorder

DAY_MS = 24 * 60 * 60 * 1000
NOW_MS = 100 * DAY_MS
ROWS, OTHERS = TopicPartition("app-rows-changelog", 0), TopicPartition("app-others-changelog", 0)


@dataclass
class Bench:
    """A task with two stores on disk, and their changelogs."""

    path: Path
    cluster: MemoryCluster = field(default_factory=MemoryCluster)
    log: EventLog = field(default_factory=EventLog)
    recorder: RestoreRecorder = field(default_factory=RestoreRecorder)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    partition: int = 0
    committed: str = ""
    """What stands beside the input's offset."""

    def __post_init__(self) -> None:
        for place in (ROWS, OTHERS):
            self.cluster.create(place.topic, 2)
        self.memory = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
        builder = StreamsBuilder()
        stream = builder.stream("in", key=serdes.string, value=serdes.string)
        stream.to_table(store="rows")
        stream.to_table(store="others")
        config = StreamsConfig.parse({"application.id": "app", "bootstrap.servers": "nowhere:1"})
        (plan,) = plan_application(builder.build(), config)
        self.spec = plan.task(self.partition)
        self.state: TaskState = self.open()

    def open(self) -> TaskState:
        specs = [store.spec for store in self.spec.stores]
        return RocksTaskState(self.path, specs, memory=self.memory)

    def reopen(self) -> None:
        self.state.close()
        self.state = self.open()

    def write(
        self, count: int, place: TopicPartition = ROWS, transaction: Transaction | None = None
    ) -> None:
        """Append rows to a changelog, key and value by their offset."""
        log = self.cluster.log(TopicPartition(place.topic, self.partition))
        for _ in range(count):
            number = b"%d" % log.end
            self.cluster.append(place.topic, number, number, self.partition, 5, None, transaction)

    def hold(self, stores: Mapping[str, list[int]], /, **positions: Position) -> None:
        """Make the local state hold these rows."""
        deltas = {
            store: [(b"%d" % n, encode_timestamped(5, b"%d" % n)) for n in numbers]
            for store, numbers in stores.items()
        }
        self.state.write(deltas, positions)

    def held(self, store: str) -> list[int]:
        found = {key: decode_timestamped(row) for key, row in self.state.store(store).scan()}
        assert all(row == (5, key) for key, row in found.items())
        return sorted(map(int, found))

    def facts(self) -> dict[TopicPartition, ChangelogDescription]:
        places = [TopicPartition(place.topic, self.partition) for place in (ROWS, OTHERS)]
        logs = {place: self.cluster.log(place) for place in places}
        return {
            place: ChangelogDescription(place.topic, log.start, log.end, DAY_MS)
            for place, log in logs.items()
        }

    def begin(self, *, batch: int = 1000) -> tuple[Restorer, Task, bool]:
        restorer = Restorer(
            make_consumer=lambda: MemoryConsumer(self.cluster, group=None, committed=True),
            clock=self.clock,
            listener=self.recorder,
            probe=no_probe,
            batch_records=batch,
            log=self.log,
        )
        task = self.task()
        return restorer, task, restorer.begin(task, self.facts())

    def task(self) -> Task:
        return Task(
            spec=self.spec,
            state=self.state,
            start={TopicPartition("in", self.partition): CommittedOffset(0, self.committed)},
            send=lambda *_: None,
            dropped=lambda *_: None,
        )

    def restore(self, *, batch: int = 1000) -> int:
        """Restore to the end; returns how many records were read."""
        before = len(self.recorder.restored)
        restorer, _, begun = self.begin(batch=batch)
        if begun:
            for _ in range(1000):
                if restorer.advance(1, 0):
                    break
            else:
                raise AssertionError("the restore does not end")
        assert not restorer.is_active
        return sum(r.total or 0 for r in self.recorder.restored[before:])


def at(place: TopicPartition, offset: int, wall_ms: int = NOW_MS) -> Position:
    return Position(place.topic, offset, 7, wall_ms)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "state")
    yield made
    made.state.close()


def test_a_first_restore_reads_everything_and_a_second_one_nothing(bench: Bench) -> None:
    bench.write(10)
    assert bench.restore(batch=4) == 10
    bench.reopen()
    assert bench.held("rows") == list(range(10))
    assert bench.restore() == 0


def test_the_listener_hears_begin_batches_and_end_of_each_store(bench: Bench) -> None:
    bench.write(10)
    bench.write(3, OTHERS)
    bench.restore(batch=4)
    by_store = {r.store: r for r in bench.recorder.restored}
    rows, others = by_store["rows"], by_store["others"]
    assert (rows.place, rows.begin, rows.end, rows.total) == (ROWS, 0, 10, 10)
    assert (others.place, others.begin, others.end, others.total) == (OTHERS, 0, 3, 3)
    offsets = [offset for offset, _ in rows.batches]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == 10
    assert sum(count for _, count in rows.batches) == 10


def test_a_changelog_that_ends_in_aborted_records_and_markers_ends_the_restore(
    bench: Bench,
) -> None:
    """The high watermark lies behind them, and no record will ever come from there."""
    bench.write(3)
    for committed in (False, True, False):
        transaction = Transaction()
        bench.write(2, transaction=transaction)
        bench.cluster.end(transaction, committed=committed)
    assert bench.cluster.log(ROWS).end == 12
    assert bench.restore() == 5
    assert bench.held("rows") == [0, 1, 2, 6, 7]
    position = bench.state.position("rows")
    assert position is not None
    assert position.offset == 12


def test_a_transaction_that_is_undecided_is_waited_for(bench: Bench) -> None:
    """The offsets may be new while the changelog's markers are still on their way."""
    transaction = Transaction()
    bench.write(2)
    bench.write(3, transaction=transaction)
    restorer, task, _ = bench.begin()
    for _ in range(5):
        assert restorer.advance(1, 0) == []
    bench.cluster.end(transaction, committed=True)
    assert restorer.advance(1, 0) == [task]
    assert bench.held("rows") == [0, 1, 2, 3, 4]


def test_local_rows_are_kept_and_only_what_came_after_them_is_read(bench: Bench) -> None:
    bench.write(10)
    bench.hold({"rows": list(range(8))}, rows=at(ROWS, 8))
    assert bench.restore() == 2
    assert bench.held("rows") == list(range(10))


@pytest.mark.parametrize(
    "position",
    [
        Position("another topic", 8, 7, NOW_MS),
        at(ROWS, 11),
        at(ROWS, 8, wall_ms=NOW_MS - DAY_MS - 1),
    ],
    ids=["another topic", "beyond the end", "deletions missed"],
)
def test_local_rows_that_are_proved_wrong_are_replaced_and_the_log_says_so(
    position: Position, bench: Bench
) -> None:
    bench.write(10)
    bench.hold({"rows": [*range(8), 99], "others": [5]}, rows=position, others=at(OTHERS, 0))
    assert bench.restore() == 10
    assert bench.held("rows") == list(range(10))
    assert bench.held("others") == [5], "another store of the task is left alone"
    (event,) = [e for e in bench.log.events if e["event"] == "store_dropped"]
    assert (event["store"], event["level"]) == ("rows", "warning")


@pytest.mark.parametrize("count", [0, 3])
def test_rows_without_a_position_are_not_built_upon(count: int, bench: Bench) -> None:
    """A restore that never ended leaves such rows, and the changelog may be another by now."""
    bench.write(count)
    bench.hold({"rows": [99]})
    bench.restore()
    assert bench.held("rows") == list(range(count))


def test_a_restore_that_is_given_up_claims_no_more_than_it_has_applied(bench: Bench) -> None:
    """Records behind the end that was asked for are not applied, so they must come again."""
    bench.write(6)
    bench.write(2, OTHERS, transaction := Transaction())
    bench.hold({"rows": [0, 1]}, rows=at(ROWS, 2), others=at(OTHERS, 0))
    restorer, task, _ = bench.begin()
    # Another worker has the task by now, and this one has not heard of it.
    bench.write(4)
    assert restorer.advance(1, 0) == [], "the other store waits for a transaction"
    restorer.cancel(task)
    bench.cluster.end(transaction, committed=False)
    bench.reopen()
    bench.restore()
    assert bench.held("rows") == list(range(10))


def test_a_restore_that_is_given_up_has_seen_no_newer_deletions(bench: Bench) -> None:
    """The position's time says since when deletions may be missing: that of before."""
    bench.write(6)
    bench.write(1, OTHERS, Transaction())
    before_ms = NOW_MS - DAY_MS + 1
    bench.hold({"rows": [0, 1]}, rows=at(ROWS, 2, before_ms), others=at(OTHERS, 0))
    restorer, task, _ = bench.begin(batch=2)
    restorer.advance(0, 0)
    restorer.cancel(task)
    position = bench.state.position("rows")
    assert position is not None
    assert position.offset > 2
    assert position.wall_ms == before_ms


def test_a_bulk_restore_that_dies_begins_again(bench: Bench, tmp_path: Path) -> None:
    """Nothing is claimed before its end."""
    bench.write(10)
    restorer, _, _ = bench.begin(batch=4)
    restorer.advance(0, 0)
    assert bench.state.position("rows") is None
    bench.reopen()
    assert bench.restore() == 10
    assert bench.held("rows") == list(range(10))


def test_a_long_tail_is_restored_in_bulk_over_the_rows_that_are_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "BULK_RECORDS", 5)
    bench.write(10)
    bench.hold({"rows": [0, 1]}, rows=at(ROWS, 2))
    calls: list[Any] = []
    begin = bench.state.begin_restore
    monkeypatch.setattr(bench.state, "begin_restore", lambda: (calls.append(1), begin()))
    assert bench.restore() == 8
    assert calls
    bench.reopen()
    assert bench.held("rows") == list(range(10))


def test_what_comes_after_the_plan_is_not_in_the_rows(bench: Bench) -> None:
    """Of an input it would be processed a second time."""
    bench.write(5)
    restorer, task, _ = bench.begin()
    bench.write(2)
    assert restorer.advance(1, 0) == [task]
    assert bench.held("rows") == list(range(5))
    position = bench.state.position("rows")
    assert position is not None
    assert position.offset == 5


def test_rows_are_of_the_commit_of_the_offsets_once_they_are_complete(bench: Bench) -> None:
    """Not before, though the other store is empty: half of them would be taken for all."""
    bench.committed = OffsetMetadata(1, {COMMIT_ID: 9}).encode()
    bench.write(10)
    bench.hold({"rows": [0, 1]}, rows=at(ROWS, 2))
    restorer, _, _ = bench.begin(batch=4)
    for number in (7, 9):
        restorer.advance(0, 0)
        position = bench.state.position("rows")
        assert position is not None
        assert position.commit_id == number


def test_rows_that_lack_nothing_are_of_the_commit_of_the_offsets(bench: Bench) -> None:
    bench.committed = OffsetMetadata(1, {COMMIT_ID: 9}).encode()
    bench.write(2)
    bench.hold({"rows": [0, 1]}, rows=at(ROWS, 2))
    assert bench.restore() == 0
    positions = [bench.state.position(store) for store in ("rows", "others")]
    assert [position and position.commit_id for position in positions] == [9, 9]


def test_a_store_that_is_complete_is_read_no_more_while_others_are(bench: Bench) -> None:
    """A client refuses to begin at a partition again that it reads."""
    bench.write(200)
    bench.write(2, OTHERS)
    restorer, task, _ = bench.begin(batch=12)
    for _ in range(8):
        assert restorer.advance(0, 0) == []
    consumer = restorer._consumer
    assert isinstance(consumer, MemoryConsumer)
    assert list(consumer._next) == [ROWS]
    assert restorer.advance(1, 0) == [task]


def test_a_record_without_a_key_is_refused_as_no_row(bench: Bench) -> None:
    bench.cluster.append(ROWS.topic, b"v", None, 0, 5, None)
    with pytest.raises(ValueError, match="has a record without a key at offset 0"):
        bench.restore()


def test_a_deletion_in_the_tail_deletes(bench: Bench) -> None:
    bench.write(3)
    bench.cluster.append(ROWS.topic, None, b"1", 0, 6, None)
    bench.hold({"rows": [0, 1, 2]}, rows=at(ROWS, 3))
    bench.restore()
    assert bench.held("rows") == [0, 2]


class TestOtherHistory:
    """A changelog of the same topic id whose records at the old offsets are others."""

    def go_back(self, bench: Bench, offset: int) -> None:
        """Restore the changelog from a snapshot, as a cluster does."""
        log = bench.cluster.log(ROWS)
        del log.entries[offset:]
        del log._writers[offset:]

    def grow(self, bench: Bench, *keys: int, last_headers: bool = False) -> None:
        for key in keys:
            row = b"%d" % key
            headers = commit_header(9) if last_headers else None
            bench.cluster.append(ROWS.topic, row, row, 0, 5, headers, None)

    @pytest.mark.parametrize("more", [0, 1, 30])
    def test_rows_are_dropped_where_others_were_written_in_their_place(
        self, more: int, bench: Bench
    ) -> None:
        bench.write(20)
        bench.restore()
        self.go_back(bench, 10)
        self.grow(bench, *range(100, 110 + more))
        bench.reopen()
        bench.restore()
        assert bench.held("rows") == [*range(10), *range(100, 110 + more)]
        (event,) = [event for event in bench.log.events if event["event"] == "store_dropped"]
        assert "offset 19 of app-rows-changelog-0" in event["reason"]

    def test_rows_are_dropped_where_their_last_record_is_not_there(self, bench: Bench) -> None:
        """A control record of the other history may be in its place; so may nothing, compacted."""
        bench.write(20)
        bench.restore()
        bench.cluster.log(ROWS).entries[19] = None
        self.grow(bench, 3)
        bench.restore()
        assert bench.held("rows") == list(range(19))

    def test_rows_are_dropped_where_only_control_records_follow(self, bench: Bench) -> None:
        bench.write(20)
        bench.restore()
        bench.cluster.log(ROWS).entries[19] = None
        bench.restore()
        assert bench.held("rows") == list(range(19))

    def test_the_same_row_of_another_commit_is_another_record(self, bench: Bench) -> None:
        bench.write(20)
        bench.restore()
        self.go_back(bench, 10)
        self.grow(bench, *range(100, 109))
        self.grow(bench, 19, last_headers=True)
        bench.restore()
        assert bench.held("rows") == [*range(10), 19, *range(100, 109)]

    def test_rows_of_older_files_are_kept_and_have_a_last_record_from_then_on(
        self, bench: Bench
    ) -> None:
        bench.write(20)
        bench.hold({"rows": list(range(15))}, rows=at(ROWS, 15), others=at(OTHERS, 0))
        assert bench.restore() == 5
        position = bench.state.position("rows")
        assert position is not None
        assert position.last is not None
        assert position.last.offset == 19

    def test_rows_are_kept_whose_last_record_was_deleted_by_retention(self, bench: Bench) -> None:
        bench.write(20)
        bench.restore()
        bench.cluster.delete_before(ROWS, 20)
        assert bench.restore() == 0
        assert bench.held("rows") == list(range(20))

    @pytest.mark.parametrize("grown", [0, 20])
    def test_rows_that_are_committed_and_not_in_the_changelog_are_not_dropped(
        self, grown: int, bench: Bench
    ) -> None:
        """Only the changelog went back: the group has offsets of the commit of these rows."""
        worker = 5 << 32
        bench.write(20)
        bench.restore()
        found = bench.state.position("rows")
        assert found is not None
        bench.state.write({}, {"rows": replace(found, commit_id=worker + 3)})
        bench.committed = OffsetMetadata(1, {COMMIT_ID: worker + 3}).encode()
        self.go_back(bench, 10)
        self.grow(bench, *range(100, 100 + grown))
        with pytest.raises(ChangelogLostError, match="delete these topics, and run headrace"):
            bench.restore()
        assert bench.held("rows") == list(range(20))

    def test_rows_are_dropped_of_a_commit_that_the_cluster_does_not_know(
        self, bench: Bench
    ) -> None:
        """The offsets went back with the changelog."""
        worker = 5 << 32
        bench.write(20)
        bench.restore()
        found = bench.state.position("rows")
        assert found is not None
        bench.state.write({}, {"rows": replace(found, commit_id=worker + 3)})
        bench.committed = OffsetMetadata(1, {COMMIT_ID: worker + 2}).encode()
        self.go_back(bench, 10)
        bench.restore()
        assert bench.held("rows") == list(range(10))


class TestInterruptions:
    """A restore may be given up, or lose its changelog, at any moment."""

    def test_a_long_restore_keeps_what_it_has_now_and_then(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A kill must not send a restore of hours back to its beginning."""
        monkeypatch.setattr(restore, "FLUSH_RECORDS", 8)
        bench.write(20)
        restorer, _, _ = bench.begin(batch=4)
        for _ in range(3):
            assert restorer.advance(0, 0) == []
        bench.reopen()
        position = bench.state.position("rows")
        assert position is not None
        assert position.offset == 8
        assert bench.restore() == 12
        assert bench.held("rows") == list(range(20))

    def test_a_bulk_restore_that_is_given_up_leaves_its_rows_to_the_next(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What follows may be no bulk restore: then writes must be allowed, and rows durable."""
        bench.write(10)
        restorer, task, _ = bench.begin(batch=4)
        restorer.advance(0, 0)
        restorer.cancel(task)
        bench.reopen()
        assert bench.restore() == 6
        bench.hold({"rows": [10]}, rows=at(ROWS, 11))
        assert bench.held("rows") == list(range(11))

    @pytest.mark.parametrize("bulk", [False, True])
    def test_rows_of_a_restore_that_is_given_up_are_as_old_as_they_were(
        self, bulk: bool, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Deletions that they have not seen may be in the part that was not read."""
        monkeypatch.setattr(restore, "BULK_RECORDS", 5 if bulk else 100)
        bench.write(10)
        bench.hold({"rows": [0, 1]}, rows=at(ROWS, 2, NOW_MS - 1000))
        restorer, task, _ = bench.begin(batch=4)
        restorer.advance(0, 0)
        bench.clock.pass_ms(50)
        restorer.cancel(task)
        position = bench.state.position("rows")
        assert position is not None
        assert (position.offset, position.wall_ms) == (6, NOW_MS - 1000)

    def test_rows_of_a_first_restore_that_is_given_up_are_as_old_as_its_begin(
        self, bench: Bench
    ) -> None:
        bench.write(10)
        restorer, task, _ = bench.begin(batch=4)
        bench.clock.pass_ms(50)
        restorer.advance(0, 0)
        restorer.cancel(task)
        position = bench.state.position("rows")
        assert position is not None
        assert (position.offset, position.wall_ms) == (4, NOW_MS)

    @pytest.mark.parametrize("committed", [0, 7])
    def test_rows_are_of_no_commit_until_a_first_restore_has_come_to_its_end(
        self, committed: int, bench: Bench
    ) -> None:
        """Whoever reads them beside the worker would take old rows for those of now."""
        if committed:
            bench.committed = OffsetMetadata(1, {COMMIT_ID: committed}).encode()
        bench.write(10)
        restorer, task, _ = bench.begin(batch=4)
        restorer.advance(0, 0)
        restorer.cancel(task)
        for _ in range(2):
            position = bench.state.position("rows")
            assert position is not None
            assert position.commit_id == NO_COMMIT
            restorer, task, _ = bench.begin(batch=3)
            restorer.advance(0, 0)
            restorer.cancel(task)
        assert bench.restore() == 2
        position = bench.state.position("rows")
        assert position is not None
        assert position.commit_id == committed

    def test_a_task_that_moves_away_after_its_restore_is_not_handed_out(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its restore ended in the slice in which another one failed."""
        bench.write(10)
        other = Bench(tmp_path / "other", cluster=bench.cluster, partition=1)
        other.write(10)
        restorer, broken_task, _ = bench.begin()
        moving = other.task()
        restorer.begin(moving, other.facts())

        def fail(*_: object) -> None:
            raise StoreCorruptedError("block checksum mismatch")

        monkeypatch.setattr(bench.state, "restore", fail)
        with pytest.raises(TaskCorruptedError, match="0_0"):
            restorer.advance(1, 0)
        assert restorer.is_active
        restorer.cancel(moving)
        restorer.cancel(broken_task, keep=False)
        assert restorer.advance(1, 0) == []
        other.state.close()

    def test_a_consumer_lives_as_long_as_something_is_restored(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed: list[MemoryConsumer] = []
        monkeypatch.setattr(MemoryConsumer, "close", lambda self, *, leave: closed.append(self))
        bench.write(10)
        restorer, task, _ = bench.begin(batch=4)
        restorer.advance(0, 0)
        restorer.cancel(task)
        assert len(closed) == 1
        task = bench.task()
        restorer.begin(task, bench.facts())
        assert restorer._consumer not in closed
        assert restorer.advance(1, 0) == [task]
        assert len(closed) == 2

    def test_a_restore_that_is_given_up_for_wrong_rows_keeps_nothing(self, bench: Bench) -> None:
        bench.write(10)
        restorer, task, _ = bench.begin(batch=4)
        restorer.advance(0, 0)
        restorer.cancel(task, keep=False)
        assert bench.state.position("rows") is None

    def test_the_position_is_of_the_time_when_the_end_was_asked_for(self, bench: Bench) -> None:
        """Deletions since then are not in the rows, however long the restore took."""
        bench.write(10)
        restorer, _, _ = bench.begin(batch=4)
        for _ in range(10):
            bench.clock.pass_ms(DAY_MS)
            restorer.advance(0, 0)
        position = bench.state.position("rows")
        assert position is not None
        assert (position.offset, position.wall_ms) == (10, NOW_MS)

    def test_a_changelog_that_is_shortened_meanwhile_is_read_on_from_its_new_start(
        self, bench: Bench
    ) -> None:
        """The offsets of the group have nothing to do with it, so no one is told to reset them."""
        bench.write(10)
        restorer, task, _ = bench.begin(batch=2)
        restorer.advance(0, 0)
        bench.cluster.delete_before(ROWS, 6)
        with pytest.raises(RestoreLostError, match=r"0_0.*offsets 6 to 10"):
            restorer.advance(0, 0)
        restorer.cancel(task)
        assert bench.restore() == 4
        assert bench.held("rows") == [0, 1, *range(6, 10)]

    @pytest.mark.parametrize("at_call", ["begin", "apply", "end"])
    def test_broken_files_are_told_as_the_tasks(
        self, at_call: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that the worker rebuilds this task, and does not die of it at every start."""
        bench.write(10)
        broken = {"begin": "drop_store", "apply": "restore", "end": "end_restore"}[at_call]

        def fail(*_: object) -> None:
            raise StoreCorruptedError("block checksum mismatch")

        monkeypatch.setattr(bench.state, broken, fail)
        with pytest.raises(TaskCorruptedError, match=r"0_0.*checksum"):
            bench.restore()

    def test_what_one_task_fails_with_costs_no_other_its_records(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both changelogs come with one poll, and come once."""
        bench.write(10)
        other = Bench(tmp_path / "other", cluster=bench.cluster, partition=1)
        other.write(10)
        restorer, broken_task, _ = bench.begin()
        sound_task = other.task()
        restorer.begin(sound_task, other.facts())

        def fail(*_: object) -> None:
            raise StoreCorruptedError("block checksum mismatch")

        for call in ("restore", "end_restore"):
            with monkeypatch.context() as patch:
                patch.setattr(bench.state, call, fail)
                with pytest.raises(TaskCorruptedError, match="0_0"):
                    restorer.advance(1, 0)
            restorer.cancel(broken_task, keep=False)
            assert restorer.advance(1, 0) == ([sound_task] if call == "restore" else [])
            assert other.held("rows") == list(range(10))
            bench.reopen()
            broken_task = bench.task()
            restorer.begin(broken_task, bench.facts())
        other.state.close()
