"""Workers that are added to an application in its process: begun, removed, and ended together."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from headrace import KafkaStreams, State, StreamsBuilder
from headrace.streams.metrics.snapshots import WorkerView
from headrace.streams.stream_threads import StreamThreads, ThreadHandle
from tests.support.processes import wait_until


@dataclass
class Fake:
    """A worker that works until it is told to stop, or fails when the test says so."""

    state: State = State.RUNNING
    left: list[bool | None] = field(default_factory=list)
    error: BaseException | None = None
    hangs: bool = False
    _end: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        self._end.wait()
        if self.error is not None:
            raise self.error

    def stop(self, leave: bool | None) -> None:
        self.left.append(leave)
        if not self.hangs:
            self._end.set()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._end.set()

    def end(self) -> None:
        self._end.set()

    def hand(self) -> ThreadHandle:
        return ThreadHandle(
            run=self.run,
            stop=self.stop,
            state=lambda: self.state,
            view=lambda: WorkerView(
                index=0, state=self.state.value, pid=7, restarts=0, snapshot=None
            ),
            processed=lambda: 5,
        )


class Scene:
    def __init__(self) -> None:
        self.made: dict[int, Fake] = {}
        self.failed = threading.Event()
        self.changes = 0
        self.crew = StreamThreads(
            "headrace-app",
            self._make,
            changed=self._changed,
            failed=self.failed.set,
            timeout_s=10.0,
        )

    def _make(self, index: int) -> ThreadHandle:
        self.made[index] = Fake()
        return self.made[index].hand()

    def _changed(self) -> None:
        self.changes += 1

    def indices(self) -> list[int]:
        return [view.index for view in self.crew.views()]


def test_the_last_one_leaves_and_its_number_is_free_again() -> None:
    scene = Scene()
    assert [scene.crew.add(), scene.crew.add()] == ["headrace-app-1", "headrace-app-2"]
    assert scene.indices() == [1, 2]
    assert scene.crew.remove() == "headrace-app-2"
    assert scene.made[2].left == [True]
    assert scene.indices() == [1]
    assert scene.crew.processed == 10  # those of the removed one stay
    assert scene.crew.add() == "headrace-app-2"
    scene.crew.run_with(lambda: None)


def test_all_end_with_the_own_worker_and_no_other_one_begins() -> None:
    scene = Scene()
    scene.crew.add()
    scene.crew.add()
    scene.crew.run_with(lambda: None)
    assert [fake.left for fake in scene.made.values()] == [[None], [None]]
    assert scene.crew.add() is None
    assert scene.crew.remove() is None
    assert not scene.failed.is_set()


def test_the_first_error_of_an_added_one_is_that_of_all() -> None:
    scene = Scene()
    scene.crew.add()
    scene.crew.add()
    first = ValueError("first")

    def work() -> None:
        scene.made[1].fail(first)
        assert scene.failed.wait(10)
        scene.made[2].fail(OSError("as it closes"))

    with pytest.raises(ValueError, match="first") as raised:
        scene.crew.run_with(work)
    assert raised.value is scene.crew.failure is first
    assert [view.pid for view in scene.crew.views()] == [None, None]


def test_the_own_error_is_not_hidden_by_one_that_follows() -> None:
    scene = Scene()
    scene.crew.add()

    def work() -> None:
        scene.made[1].error = OSError("as it closes")
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        scene.crew.run_with(work)
    assert scene.crew.failure is None


def test_what_fails_as_it_leaves_stops_nobody() -> None:
    scene = Scene()
    scene.crew.add()
    scene.made[1].error = OSError("as it closes")
    assert scene.crew.remove() == "headrace-app-1"
    assert scene.indices() == []
    assert not scene.failed.is_set()
    scene.crew.run_with(lambda: None)


def test_one_that_does_not_end_in_time_is_said_and_ends_later() -> None:
    scene = Scene()
    scene.crew.add()
    scene.made[1].hangs = True
    with pytest.raises(TimeoutError, match=r"headrace-app-1 did not stop within 0\.01 s"):
        scene.crew.remove(timedelta(milliseconds=10))
    assert scene.crew.remove() is None  # it leaves already
    scene.made[1].end()
    wait_until(lambda: scene.indices() == [], what="gone")


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (State.RUNNING, [State.RUNNING], State.RUNNING),
        (State.RUNNING, [State.REBALANCING, State.RUNNING], State.REBALANCING),
        (State.REBALANCING, [State.CONNECTING], State.CONNECTING),
        (State.CONNECTING, [State.REBALANCING], State.CONNECTING),
        (State.PAUSED, [State.RUNNING], State.PAUSED),
        (State.RUNNING, [State.PENDING_SHUTDOWN], State.RUNNING),
        (State.NOT_RUNNING, [State.CONNECTING], State.NOT_RUNNING),
    ],
)
def test_the_application_is_as_far_as_the_slowest(
    own: State, others: list[State], expected: State
) -> None:
    scene = Scene()
    for index, state in enumerate(others, 1):
        scene.crew.add()
        scene.made[index].state = state
    assert scene.crew.state_with(own) is expected
    scene.crew.run_with(lambda: None)


def test_an_application_that_does_not_run_gets_none() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    app = KafkaStreams(
        builder.build(), {"application.id": "copy", "bootstrap.servers": "localhost:1"}
    )
    assert app.add_worker() is None
    assert app.remove_worker() is None
    assert [view.index for view in app.metrics().workers] == [0]
