"""How a worker reacts to what goes wrong: the production worker on a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.state.errors import StoreCorruptedError
from headrace.streams.errors import (
    AbortableError,
    MemberFencedError,
    OffsetLostError,
    OutcomeUnknownError,
    ProducerFencedError,
    RecordError,
    RecordRefusedError,
    StopRequestedError,
    StreamsError,
    TaskCorruptedError,
)
from headrace.streams.plan.identity import TopicReplacedError
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.background_request import BackgroundRequest
from headrace.streams.tasks.tasks import ClusterMetadata
from headrace.streams.testing.memory_clients import MemoryConsumer, MemoryTransactionalProducer
from headrace.topology.context.task_context import TaskContext
from tests.support.workers import CHANGELOG, HERE, THERE, RestoringBench, WorkerBench


@pytest.fixture
def bench() -> WorkerBench:
    return WorkerBench().start()


@pytest.fixture
def restoring() -> RestoringBench:
    return RestoringBench()


# -- the producer is replaced --------------------------------------------------------------------

REPLACING = pytest.mark.parametrize(
    "error", [OutcomeUnknownError("timed out"), ProducerFencedError("fenced")], ids=repr
)


@pytest.mark.parametrize(
    "error",
    [AbortableError("odd"), OutcomeUnknownError("timed out"), ProducerFencedError("fenced")],
    ids=repr,
)
def test_nothing_is_lost_or_doubled_when_a_transaction_fails(
    bench: WorkerBench, error: StreamsError
) -> None:
    bench.send("a", "a")
    bench.failing["offsets_sent"] = error
    bench.commit()
    assert not bench.failing
    assert bench.out() == [("a", 1), ("a", 2)]
    assert bench.counts.processed == 2, "what was void does not count"


@REPLACING
def test_a_task_that_was_being_restored_sends_with_the_new_producer(
    restoring: RestoringBench, error: StreamsError
) -> None:
    """The old one is closed."""
    restoring.send("a")
    restoring.failing["offsets_sent"] = error
    restoring.commit()
    restoring.send("old-3", place=THERE)
    restoring.decide()
    restoring.commit()
    assert restoring.out() == [("a", 1), ("old-3", 4)]
    assert len(restoring.events("producer_replaced")) == 1


def test_so_it_does_where_an_abort_has_failed(
    restoring: RestoringBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def abort(self: MemoryTransactionalProducer) -> None:
        monkeypatch.undo()
        raise OutcomeUnknownError("timed out")

    monkeypatch.setattr(MemoryTransactionalProducer, "abort", abort)
    restoring.send("a")
    restoring.failing["offsets_sent"] = AbortableError("odd")
    restoring.commit()
    restoring.send("old-3", place=THERE)
    restoring.decide()
    restoring.commit()
    assert restoring.out() == [("a", 1), ("old-3", 4)]
    assert restoring.counts.processed == 2
    assert len(restoring.events("producer_replaced")) == 1


# -- the group's word ----------------------------------------------------------------------------


def test_a_fenced_member_lets_its_tasks_go_and_joins_anew(bench: WorkerBench) -> None:
    """Somebody else may have them, so nothing that was done may be committed."""
    bench.send("a")
    bench.turns()
    bench.consumer.fail(MemberFencedError("fenced"))
    bench.turns(1)
    assert bench.owned() == []
    assert bench.out() == []
    assert not bench.cluster.open, "the transaction is aborted"
    bench.commit()
    assert bench.running() == ["0_0", "0_1"]
    assert bench.out() == [("a", 1)]


def test_what_is_lost_is_not_committed_with_the_rest(bench: WorkerBench) -> None:
    bench.send("a")
    bench.send("b", place=THERE)
    bench.turns()
    bench.worker.on_lost([HERE])
    assert bench.owned() == ["0_1"]
    bench.commit()
    assert bench.out() == [("b", 1)]
    assert HERE not in bench.offsets()


def test_what_is_revoked_is_committed_before_it_goes(bench: WorkerBench) -> None:
    bench.send("a")
    bench.send("b", place=THERE)
    bench.turns()
    bench.worker.on_revoked([HERE])
    assert bench.offsets() == {HERE: 1, THERE: 1}
    assert bench.running() == ["0_1"]
    bench.send("a")
    bench.send("b", place=THERE)
    bench.commit()
    assert bench.out() == [("a", 1), ("b", 1), ("b", 2)]


def test_a_directory_is_let_go_with_its_task(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process of this host may be its new owner."""
    closed: list[str] = []
    for number in (0, 1):
        home = bench.disk.open(TaskId(0, number), ())
        monkeypatch.setattr(type(home), "close", lambda self: closed.append("closed"))
    bench.worker.on_revoked([HERE])
    assert closed == ["closed"]


def test_work_of_an_old_membership_is_void_at_a_revocation(bench: WorkerBench) -> None:
    """Others may have had the partitions in between."""
    bench.send("a")
    bench.turns()
    bench.consumer.name = "another"
    bench.worker.on_revoked([HERE])
    assert HERE not in bench.offsets()
    assert bench.out() == []
    assert not bench.cluster.open


def test_work_of_an_old_membership_is_done_again_under_the_new_one(bench: WorkerBench) -> None:
    bench.send("a")
    bench.turns()
    bench.consumer.name = "another"
    bench.worker.on_assigned([])
    assert not bench.cluster.open
    bench.commit()
    assert bench.out() == [("a", 1)]
    assert bench.out(committed=False) == [("a", 1), ("a", 1)]


def test_the_group_is_heard_before_a_commit(bench: WorkerBench) -> None:
    """What it says after the last poll of the turn would refuse the commit."""
    bench.send("a")
    bench.turns()
    polls = 0

    def lose() -> None:
        nonlocal polls
        polls += 1
        if polls == 2:
            bench.worker.on_lost([HERE])

    bench.consumer.before_poll = lose
    bench.worker.request_commit()
    bench.turns(1)
    assert polls == 2
    assert HERE not in bench.offsets()
    assert bench.out() == []


# -- offsets and changelogs that are gone --------------------------------------------------------


def test_a_committed_offset_that_is_lost_twice_stops_the_worker(bench: WorkerBench) -> None:
    """Once it may be another worker's doing, who has the partition by now."""
    bench.send("a")
    bench.turns()
    lost = OffsetLostError(str(HERE), "it is gone")
    bench.consumer.fail(lost)
    bench.turns()
    assert bench.running() == ["0_0", "0_1"]
    bench.consumer.fail(lost)
    with pytest.raises(OffsetLostError):
        bench.turns()


def test_offsets_are_lost_as_often_as_the_committed_one_moves(bench: WorkerBench) -> None:
    for _ in range(3):
        bench.consumer.fail(OffsetLostError(str(HERE), "it is gone"))
        bench.send("a")
        bench.commit()
    assert bench.out() == [("a", 1), ("a", 2), ("a", 3)]


def test_lost_offsets_of_a_partition_that_nobody_reads_here_stop_nobody(bench: WorkerBench) -> None:
    bench.worker.on_lost([HERE])
    for _ in range(3):
        bench.consumer.fail(OffsetLostError(str(HERE), "it is gone"))
        bench.turns()
    assert bench.running() == ["0_1"]


def test_a_changelog_that_is_shortened_under_a_restore_is_read_from_its_new_start(
    restoring: RestoringBench,
) -> None:
    consumer = restoring.worker._restorer._consumer
    assert isinstance(consumer, MemoryConsumer)
    restoring.cluster.delete_before(CHANGELOG, 2)
    consumer._next[CHANGELOG] = 0
    restoring.turns()
    restoring.decide()
    restoring.send("old-3", place=THERE)
    restoring.commit()
    assert restoring.out() == [("old-3", 4)]
    (said,) = restoring.events("restore_lost")
    assert said["advice"].startswith("nothing is lost. ")


# -- local state that is broken ------------------------------------------------------------------


def test_a_corrupted_task_is_rebuilt_and_the_others_keep_their_rows(bench: WorkerBench) -> None:
    for place in (HERE, THERE):
        bench.send("a", place=place)
    bench.commit()
    for place in (HERE, THERE):
        bench.send("a", place=place)
    bench.failing["offsets_sent"] = TaskCorruptedError(["0_1"], "a file is broken")
    bench.commit()
    assert sorted(bench.out()) == [("a", 1), ("a", 1), ("a", 2), ("a", 2)]
    assert bench.counts.restored == 1, "one row, of one task"
    assert [event["tasks"] for event in bench.events("state_rebuilt")] == [["0_1"]]


def test_rows_of_a_corrupted_task_that_its_changelog_does_not_have_are_gone(
    bench: WorkerBench,
) -> None:
    bench.send("a", place=THERE)
    bench.commit()
    home = bench.disk.open(TaskId(0, 1), ())
    row = next(iter(home.state.store("counts").scan()))[1]
    home.state.write({"counts": [(b"nonsense", row)]}, {})
    bench.send("b", place=THERE)
    bench.failing["offsets_sent"] = TaskCorruptedError(["0_1"], "a file is broken")
    bench.commit()
    assert sorted(key for key, _ in home.state.store("counts").scan()) == [b"a", b"b"]


def test_files_that_are_found_broken_as_expired_rows_are_looked_for_are_rebuilt(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is final by then: a worker that died of it would do so again after each start."""
    bench.send("a", place=THERE)
    bench.commit()
    bench.send("a", place=THERE)

    def local_rows(self: Any, changes: Any) -> Any:
        raise StoreCorruptedError("a file is broken")

    with monkeypatch.context() as patch:
        patch.setattr("headrace.state.buffer.Buffer.local_rows", local_rows)
        bench.commit()
    assert [event["tasks"] for event in bench.events("state_rebuilt")] == [["0_1"]]
    bench.send("a", place=THERE)
    bench.commit()
    assert bench.out() == [("a", 1), ("a", 2), ("a", 3)]


def test_nothing_is_kept_of_what_was_restored_of_a_corrupted_task(
    restoring: RestoringBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make it durable fails as well, and the task would be emptied a second time."""
    state = restoring.disk.open(TaskId(0, 1), ()).state

    def end_restore(self: Any, positions: Any) -> None:
        raise StoreCorruptedError("a file is broken")

    with monkeypatch.context() as patch:
        patch.setattr(type(state), "end_restore", end_restore)
        restoring.consumer.fail(TaskCorruptedError(["0_1"], "a file is broken"))
        restoring.turns()
    restoring.decide()
    restoring.send("old-3", place=THERE)
    restoring.commit()
    assert restoring.out() == [("old-3", 4)]
    assert len(restoring.events("state_rebuilt")) == 1


def test_files_that_break_while_their_task_goes_are_not_taken_for_sound_when_it_comes_back(
    restoring: RestoringBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = restoring.disk.open(TaskId(0, 1), ()).state

    def end_restore(self: Any, positions: Any) -> None:
        raise StoreCorruptedError("a file is broken")

    with monkeypatch.context() as patch:
        patch.setattr(type(state), "end_restore", end_restore)
        restoring.worker.on_lost([THERE])
    restoring.worker.on_assigned([THERE])
    restoring.turns()
    assert [event["tasks"] for event in restoring.events("state_rebuilt")] == [["0_1"]]
    restoring.decide()
    restoring.send("old-3", place=THERE)
    restoring.commit()
    assert restoring.out() == [("old-3", 4)]


# -- the end -------------------------------------------------------------------------------------


def test_a_last_commit_that_fails_is_aborted_before_the_consumer_closes(bench: WorkerBench) -> None:
    """Its last callback commits what is running, and nothing may be of what has failed."""
    bench.send("a")
    bench.turns()
    before = bench.offsets()
    bench.failing["changelogs_written"] = AbortableError("odd")
    bench.worker.finish()
    (event,) = bench.events("last_commit_failed")
    assert (event["tasks"], event["records"]) == (["0_0", "0_1"], 1)
    assert str(HERE) in event["partitions"]
    assert bench.events("worker_stopped")[0]["last_commit"] == "failed"
    assert bench.offsets() == before
    assert bench.out() == []
    assert not bench.cluster.open


def test_a_worker_that_has_stopped_says_that_all_is_committed(bench: WorkerBench) -> None:
    bench.send("a")
    bench.turns()
    bench.worker.finish()
    assert bench.events("worker_stopped")[0]["last_commit"] == "done"
    assert bench.out() == [("a", 1)]


def test_a_stop_that_gives_its_commit_up_says_what_is_not_committed(bench: WorkerBench) -> None:
    bench.send("a")
    bench.turns()
    before = bench.offsets()
    bench.failing["changelogs_written"] = StopRequestedError("stopped while waiting for: offsets")
    bench.worker.stop()
    bench.worker.begin = lambda: None  # type: ignore[method-assign]
    with pytest.raises(StopRequestedError):
        bench.worker.run()
    (event,) = bench.events("last_commit_failed")
    assert event["reason"] == "stopped while waiting for: offsets"
    assert (event["tasks"], event["records"]) == (["0_0", "0_1"], 1)
    assert "processes these records again" in event["next"]
    assert bench.offsets() == before
    assert bench.out() == []


def test_a_worker_that_ends_lets_go_of_its_producer_and_its_tasks(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    monkeypatch.setattr(MemoryTransactionalProducer, "close", lambda _: closed.append("producer"))
    bench.send("a")
    bench.turns()
    bench.worker.finish()
    assert closed == ["producer"]
    assert bench.owned() == []
    assert bench.out() == [("a", 1)]


def test_it_is_said_when_all_tasks_run(
    restoring: RestoringBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(type(restoring.counts), "on_running", lambda _: said.append("running"))
    restoring.turns()
    assert said == []
    restoring.decide()
    restoring.turns()
    assert said == ["running"]


def test_after_an_error_nothing_is_committed_at_the_close(bench: WorkerBench) -> None:
    bench.send("a")
    bench.turns()
    before = bench.offsets()
    bench.worker.close_after_error()
    assert bench.offsets() == before
    assert bench.out() == []
    assert not bench.cluster.open


@pytest.mark.parametrize("holds", [False, True])
def test_after_an_error_the_group_is_left_unless_the_partitions_are_held_back(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch, holds: bool
) -> None:
    left: list[bool] = []
    asked: list[BaseException | None] = []
    error = ZeroDivisionError()

    def holding(about: BaseException | None) -> bool:
        assert not bench.cluster.open, "what is not committed is aborted before"
        asked.append(about)
        return holds

    close = bench.worker._consumer.close

    def closing(*, leave: bool) -> None:
        left.append(leave)
        close(leave=leave)

    monkeypatch.setattr(bench.worker._consumer, "close", closing)
    bench.worker._dependencies = replace(bench.worker._dependencies, keeps_partitions=holding)
    bench.send("a")
    bench.turns()
    bench.worker.close_after_error(error)
    assert (left, asked) == ([not holds], [error])


def test_the_consumer_is_closed_where_the_abort_fails(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []

    def fail() -> None:
        raise OutcomeUnknownError("timed out")

    monkeypatch.setattr(bench.worker._transactions, "abort_finally", fail)
    monkeypatch.setattr(bench.worker._consumer, "close", lambda *, leave: closed.append(leave))
    bench.worker.close_after_error(ZeroDivisionError())
    assert closed == [True]
    assert [e["event"] for e in bench.log.events].count("close_failed") == 1


def test_a_close_that_fails_after_an_error_is_logged_without_a_text_that_may_quote_a_record(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("c4n4ry")

    monkeypatch.setattr(bench.worker.global_tables, "close", fail)
    bench.worker.close_after_error()
    (fields,) = [e for e in bench.log.events if e["event"] == "close_failed"]
    assert fields["reason"].startswith("ValueError; ")
    assert "c4n4ry" not in repr(fields)


# -- commits -------------------------------------------------------------------------------------


def test_a_request_is_for_one_commit(bench: WorkerBench) -> None:
    bench.send("a")
    bench.worker.request_commit()
    bench.turns()
    commits = bench.counts.commits
    bench.send("a")
    bench.turns()
    assert bench.counts.commits == commits
    assert bench.out() == [("a", 1)]


def test_each_commit_has_a_larger_number(bench: WorkerBench) -> None:
    numbers = [bench.worker._committer._last_id]
    for _ in range(3):
        bench.send("a")
        bench.commit()
        numbers.append(bench.worker._committer._last_id)
    assert numbers == list(range(numbers[0], numbers[0] + 4))


def test_a_turn_that_has_sent_something_waits_while_too_much_is_under_way(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def apply_backpressure(self: MemoryTransactionalProducer, timeout_s: float) -> None:
        waits.append(timeout_s)

    monkeypatch.setattr(MemoryTransactionalProducer, "apply_backpressure", apply_backpressure)
    bench.turns()
    assert waits == []
    bench.send("a")
    bench.turns()
    assert waits == [bench.config.task_timeout_ms / 1000]


def test_a_record_that_is_refused_is_one_of_those_that_were_tried(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch has failed, and nobody knows at which of its records."""

    def refuse(self: MemoryTransactionalProducer) -> None:
        raise RecordRefusedError("out refuses a record", topic="out", partition=None)

    bench.turns()
    monkeypatch.setattr(MemoryTransactionalProducer, "_check", refuse)
    bench.send("a", "b")
    with pytest.raises(RecordError, match="between offsets 0 and 1 of in-0") as raised:
        bench.turns()
    assert (raised.value.topic, raised.value.partition) == ("in", 0)


def test_a_poll_does_not_outlast_what_a_punctuator_may_wait(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.consumer.waited_s == pytest.approx(0.1)
    due = property(lambda _: bench.clock.now_ms() + 30)
    monkeypatch.setattr(TaskContext, "wall_due_ms", due)
    bench.turns(1)
    assert bench.consumer.waited_s == pytest.approx(0.03)


# -- tasks on their way --------------------------------------------------------------------------


def test_a_task_that_went_while_its_facts_were_asked_for_does_not_begin() -> None:
    bench = WorkerBench()
    questions: list[Callable[[], None]] = []

    def later(job: Callable[[], None]) -> bool:
        questions.append(job)
        return True

    bench.start()
    bench.consumer.fail(AbortableError("odd"))
    bench.worker.tasks._request = BackgroundRequest(later)
    bench.turns(2)
    assert bench.running() == []
    bench.worker.on_lost([HERE])
    for question in questions:
        question()
    bench.turns(1)
    assert bench.running() == ["0_1"]


def test_the_ids_of_topics_are_older_than_their_first_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a topic that is made anew in between would be taken for the old one's."""
    asked: list[str] = []
    for name in ("topic_ids", "first_offsets"):
        right = getattr(ClusterMetadata, name)

        def ask(self: Any, names: Any, name: str = name, right: Any = right) -> Any:
            asked.append(name)
            return right(self, names)

        monkeypatch.setattr(ClusterMetadata, name, ask)
    WorkerBench().start()
    assert asked == ["topic_ids", "first_offsets"]


def test_a_topic_is_compared_with_what_was_read_though_nothing_is_committed(
    bench: WorkerBench,
) -> None:
    bench.cluster.offsets.clear()
    bench.send("a")
    bench.turns()
    bench.cluster.delete("in")
    bench.cluster.create("in")
    bench.consumer.fail(AbortableError("odd"))
    with pytest.raises(TopicReplacedError):
        bench.turns()


def test_an_abort_leaves_every_restore_where_it_is(restoring: RestoringBench) -> None:
    restored = restoring.counts.restored
    restoring.consumer.fail(AbortableError("odd"))
    restoring.turns()
    assert restoring.counts.restored == restored
    assert restoring.running() == ["0_0"]
