"""Health over minutes of a supervisor's clock: nothing that only takes long has anybody killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.streams.supervisor.supervisor import Supervisor
from headrace.streams.supervisor.worker_reports import Loaded, Status
from headrace.streams_web.pages import live, ready, startup
from tests.streams.supervisor.test_supervisor import Process, Scene
from tests.support.snapshots import task_snapshot, worker_snapshot

TURN_S, TELL_S = 0.5, 4.0
"""A worker that restores tells something between two batches, at most each four seconds."""
TEN_MINUTES_S = 600.0


class Watched(Scene):
    """A supervisor whose loop turns each half second."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.supervisor.turn()
        self.started[0][1].unread.append(Loaded("shop", 30_000))
        self.supervisor.turn()

    def over(self, seconds: float) -> Iterator[float]:
        """Let time pass, turn by turn; whatever happens, it lives."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            yield end_s - self.now_s
            self.now_s += TURN_S
            self.supervisor.turn()
            assert live(self.supervisor.health, self.now_s).is_well
            assert startup(self.supervisor.health).is_well

    def tell(self, process: Process, state: str, *tasks: Any) -> None:
        snapshot = replace(worker_snapshot(), at_s=self.now_s, tasks=tasks)
        status = Status(state, len(tasks), 0, 0, 0, 0, None, self.now_s)
        process.unread += [snapshot, status]

    @property
    def reasons(self) -> tuple[str, ...]:
        return ready(self.supervisor.health, self.now_s).reasons

    def left(self) -> int:
        found = ready(self.supervisor.health, self.now_s)
        return sum(worker["restore_remaining"] for worker in found.progress)


def test_it_lives_over_a_restore_of_ten_minutes_and_says_how_far_it_is() -> None:
    scene = Watched(1)
    ((_, process),) = scene.started
    (store,) = task_snapshot().stores
    left = []
    for remaining_s in scene.over(TEN_MINUTES_S):
        if scene.now_s % TELL_S == 0:
            part = replace(store, restore_remaining=int(1_000 * remaining_s))
            restoring = task_snapshot(0, state="restoring", inputs=(), stores=(part,))
            scene.tell(process, "rebalancing", restoring)
        elif scene.now_s > TELL_S:
            assert scene.reasons == ("worker 0 is rebalancing; not running: 0_0",)
            left.append(scene.left())
    assert left == sorted(left, reverse=True)
    assert (left[0], left[-1]) == (596_000, 4_000)
    scene.tell(process, "running", task_snapshot(0))
    scene.supervisor.turn()
    assert scene.reasons == ()


def test_it_lives_over_ten_minutes_of_a_storm_of_workers() -> None:
    scene = Watched(1)
    sizes = (3, 1, 5, 2, 1, 4)
    for turn, _ in enumerate(scene.over(TEN_MINUTES_S)):
        size = sizes[turn // 2 % len(sizes)]
        scene.supervisor.submit(partial(Supervisor.scale, workers=size))
        for _, process in scene.started:
            if process.code is None:
                scene.tell(process, "rebalancing", task_snapshot(0, state="waiting", inputs=()))
        if turn > 2:
            assert scene.reasons
    assert len(scene.started) > 100
    scene.supervisor.submit(partial(Supervisor.scale, workers=1))
    scene.supervisor.turn()
    for _, process in scene.started:
        if process.code is None:
            scene.tell(process, "running", task_snapshot(0))
    scene.supervisor.turn()
    assert scene.reasons == ()


def test_it_lives_over_ten_minutes_without_brokers() -> None:
    scene = Watched(2)
    for _ in scene.over(TEN_MINUTES_S):
        for _, process in scene.started:
            scene.tell(process, "connecting", task_snapshot(0))
        if len(scene.started) == 2 and scene.now_s > 2:
            assert scene.reasons == tuple(
                f"worker {n} is connecting: brokers are not reached" for n in (0, 1)
            )
    for number, (_, process) in enumerate(scene.started):
        scene.tell(process, "running", task_snapshot(number))
    scene.supervisor.turn()
    assert scene.reasons == ()
