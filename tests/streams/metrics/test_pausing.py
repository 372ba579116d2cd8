"""A paused worker keeps its tasks, commits what it had, and processes nothing."""

from __future__ import annotations

import threading

from headrace.streams.errors import AbortableError
from tests.support.workers import HERE, WorkerBench


class Paused(WorkerBench):
    def __init__(self) -> None:
        super().__init__()
        self.asked, self.heard = threading.Event(), list[bool]()
        self.start()
        self.worker.pausing.follow(self.asked, self.heard.append)


def test_what_was_processed_is_committed_and_nothing_else_is() -> None:
    bench = Paused()
    bench.send("a", "b")
    bench.worker.turn()
    bench.asked.set()
    bench.turns()
    assert bench.heard == [True]
    assert bench.out() == [("a", 1), ("b", 1)]
    bench.send("c")
    bench.clock.pass_ms(60_000)
    bench.commit()
    assert bench.out(committed=False) == [("a", 1), ("b", 1)]
    assert bench.offsets()[HERE] == 2
    assert bench.owned() == ["0_0", "0_1"]
    assert bench.worker.latest_snapshot is not None
    assert bench.worker.latest_snapshot.is_paused


def test_it_goes_on_where_it_was() -> None:
    bench = Paused()
    bench.asked.set()
    bench.turns()
    bench.send("a", "b")
    bench.turns()
    bench.asked.clear()
    bench.turns()
    bench.commit()
    assert bench.heard == [True, False]
    assert bench.out() == [("a", 1), ("b", 1)]


def test_tasks_that_come_meanwhile_wait_too() -> None:
    bench = Paused()
    bench.worker.on_revoked([HERE])
    bench.asked.set()
    bench.turns()
    bench.send("a")
    bench.worker.on_assigned([HERE])
    bench.turns()
    bench.commit()
    assert bench.running() == ["0_0", "0_1"]
    assert bench.out(committed=False) == []
    bench.asked.clear()
    bench.turns()
    bench.commit()
    assert bench.out() == [("a", 1)]


def test_a_commit_that_fails_is_tried_again_before_it_is_said() -> None:
    bench = Paused()
    bench.send("a")
    bench.worker.turn()
    bench.failing["offsets_sent"] = AbortableError("told to")
    bench.asked.set()
    bench.worker.turn()
    assert bench.heard == []
    bench.turns()
    assert bench.heard == [True]
    assert bench.out() == []
    bench.asked.clear()
    bench.turns()
    bench.commit()
    assert bench.out() == [("a", 1)]


def test_it_polls_without_haste_while_records_wait_in_it() -> None:
    bench = Paused()
    bench.asked.set()
    bench.turns()
    bench.send("a")
    bench.worker.turn()
    assert bench.consumer.waited_s == bench.config.poll_ms / 1000
