"""What the supervisor decides, with processes, a clock and randomness of the test's own."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from headrace.streams.kafka.unreached import Unreached
from headrace.streams.supervisor.channel import Report
from headrace.streams.supervisor.exit_codes import ExitCode
from headrace.streams.supervisor.status_line import WorkerStatus
from headrace.streams.supervisor.supervisor import Supervisor
from headrace.streams.supervisor.worker_reports import Ended, Loaded, Status
from headrace.streams.tasks.failures import FailureReport
from headrace.streams.worker.restarts import RestartLimits
from tests.support.snapshots import worker_snapshot

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL


class Process:
    """A process that does what the test says."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.unread: list[Report] = []
        self.code = None
        self.obeys = True
        self.stops = 0
        self.leaves = 0
        self.levels: list[str] = []
        self.closed = False
        self.words: list[str] = []

    @property
    def code(self) -> int | None:
        return self._code

    @code.setter
    def code(self, code: int | None) -> None:
        """Let it end; unless it is killed, it reports how."""
        self._code = code
        if code is not None and code >= 0:
            self.unread.append(Ended(code))

    def exit_unseen(self, code: int) -> None:
        """Let it end as by `os._exit`."""
        self._code = code

    def last_output(self) -> list[str]:
        return self.words

    def poll(self) -> int | None:
        return self.code

    def reports(self) -> Iterator[Report]:
        while self.unread:
            yield self.unread.pop(0)

    def stop(self) -> None:
        assert not self.closed
        self.stops += 1
        if self.obeys:
            self.code = 0

    def leave(self) -> None:
        assert not self.closed
        self.leaves += 1
        if self.obeys:
            self.code = 0

    def set_log_level(self, level: str) -> None:
        assert not self.closed
        self.levels.append(level)

    def kill(self) -> None:
        assert not self.closed
        self.code = -KILL

    def close(self) -> None:
        assert self.code is not None
        self.closed = True


class Log:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, /, **fields: Any) -> None:
        self.events.append((event, fields))

    warning = error = info

    def named(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == event]


class Scene:
    """A supervisor of processes that do what the test says."""

    def __init__(self, workers: int = 2, **limits: Any) -> None:
        self.now_s = 0.0
        self.no_room = False
        self.started: list[tuple[int, Process]] = []
        self.shown: list[WorkerStatus] = []
        self.log = Log()
        self.supervisor = Supervisor(
            workers=workers,
            start=self._start,
            monotonic=lambda: self.now_s,
            random=Random(1),
            limits=RestartLimits(**limits),
            display=self,
            log=self.log,
        )

    def _start(self, index: int) -> Process:
        if self.no_room:
            raise OSError(errno.EAGAIN, "no room")
        process = Process(1_000 + len(self.started))
        self.started.append((index, process))
        return process

    def show(self, workers: Sequence[WorkerStatus], now_s: float) -> None:
        self.shown = list(workers)

    @property
    def indices(self) -> list[int]:
        return [index for index, _ in self.started]

    def process(self, index: int) -> Process:
        """The last process of a worker."""
        return next(p for i, p in reversed(self.started) if i == index)

    def turn(self, after_s: float = 0.0) -> bool:
        self.now_s += after_s
        return self.supervisor.turn()

    def all_running(self, shutdown_timeout_ms: int = 5_000) -> None:
        """Start the workers."""
        self.turn()
        self.process(0).unread.append(Loaded("app", shutdown_timeout_ms))
        self.turn()
        assert self.indices == list(range(len(self.shown)))

    def outcome(self) -> ExitCode:
        """Go on until everything has ended."""

        def wait() -> None:
            self.now_s += 0.1
            assert self.now_s < 10_000, "it goes on for ever"

        return self.supervisor.run(wait)


def silent_scene() -> Scene:
    """Two workers at work, of which the second was heard of last at second 100."""
    scene = Scene()
    scene.all_running()
    scene.now_s = 100.0
    for index in range(2):
        snapshot = worker_snapshot(id=f"w-{index}", at_s=100.0)
        scene.process(index).unread += [snapshot, Status("running", 1, 0, 0, 5, 1, None, 100.0)]
    scene.turn()
    return scene


def go_on(scene: Scene, *heard: int, seconds: int) -> None:
    for _ in range(seconds):
        for index in heard:
            snapshot = worker_snapshot(id=f"w-{index}", at_s=scene.now_s + 1)
            scene.process(index).unread.append(snapshot)
        scene.turn(after_s=1)


def test_a_silent_worker_is_said_once_and_when_it_is_heard_again() -> None:
    scene = silent_scene()
    go_on(scene, 0, seconds=10)
    assert scene.log.named("worker_unresponsive") == []
    go_on(scene, 0, seconds=60)
    (said,) = scene.log.named("worker_unresponsive")
    assert (said["worker_index"], said["worker"], said["unresponsive_s"]) == (1, "w-1", 11.0)
    assert "consumer.session.timeout.ms" in said["advice"]
    assert scene.log.named("worker_recovered") == []
    go_on(scene, 0, 1, seconds=20)
    (heard,) = scene.log.named("worker_recovered")
    assert (heard["worker_index"], heard["unresponsive_s"]) == (1, 71.0)
    assert len(scene.log.named("worker_unresponsive")) == 1


def test_a_silent_worker_that_ends_is_not_heard_of_again() -> None:
    scene = silent_scene()
    go_on(scene, 0, seconds=20)
    scene.process(1).code = -KILL
    go_on(scene, 0, seconds=20)
    assert len(scene.log.named("worker_unresponsive")) == 1
    assert scene.log.named("worker_recovered") == []


def test_a_worker_that_is_silent_when_the_group_has_removed_it_is_killed_and_restarted() -> None:
    scene = silent_scene()
    silent = scene.process(1)
    go_on(scene, 0, seconds=300)
    assert scene.log.named("worker_killed") == []
    go_on(scene, 0, seconds=5)
    (killed,) = scene.log.named("worker_killed")
    assert (killed["worker_index"], killed["pid"]) == (1, silent.pid)
    assert "consumer.max.poll.interval.ms" in killed["reason"]
    assert scene.process(1) is not silent
    (crashed,) = scene.log.named("worker_crashed")
    assert crashed["outcome"] == "killed by SIGKILL"


def test_a_worker_that_was_killed_and_is_silent_again_is_killed_again() -> None:
    scene = silent_scene()
    for times in (1, 2):
        go_on(scene, 0, seconds=310)
        assert len(scene.log.named("worker_killed")) == times
        go_on(scene, 0, 1, seconds=5)
        running = Status("running", 1, 0, 0, 5, 1, None, scene.now_s)
        scene.process(1).unread.append(running)


def test_a_suspended_supervisor_kills_no_worker() -> None:
    """Its own machine may have been asleep, and the workers with it."""
    scene = silent_scene()
    go_on(scene, 0, seconds=20)
    scene.turn(after_s=3_000)
    go_on(scene, 0, 1, seconds=20)
    assert scene.log.named("worker_killed") == []


def test_a_supervisor_that_was_stopped_itself_calls_nobody_silent() -> None:
    scene = silent_scene()
    scene.turn(after_s=300)
    go_on(scene, 0, 1, seconds=20)
    assert scene.log.named("worker_unresponsive") == []


def test_the_others_start_when_the_first_has_loaded_the_application() -> None:
    scene = Scene(workers=3)
    scene.turn()
    scene.turn(after_s=5)
    assert scene.indices == [0]
    scene.process(0).unread.append(Loaded("app", 5_000))
    scene.turn()
    assert scene.indices == [0, 1, 2]


def test_a_crash_before_the_application_is_loaded_starts_no_other() -> None:
    scene = Scene(workers=2)
    scene.turn()
    scene.process(0).code = -signal.SIGSEGV
    scene.turn()
    scene.turn(after_s=1)
    assert scene.indices == [0, 0]


@pytest.mark.parametrize("code", [-KILL, -TERM, -signal.SIGSEGV, 1, ExitCode.CLIENT, 42, 255])
def test_a_crash_is_restarted_after_a_pause_and_the_others_go_on(code: int) -> None:
    scene = Scene()
    scene.all_running()
    scene.process(1).code = code
    assert not scene.turn()
    (crashed,) = scene.log.named("worker_crashed")
    assert crashed["worker_index"] == 1
    assert crashed["exit_code"] == code
    assert 0.5 <= crashed["restart_in_s"] <= 1
    scene.turn(after_s=0.49)
    assert scene.indices == [0, 1]
    scene.turn(after_s=0.52)
    assert scene.indices == [0, 1, 1]
    assert scene.process(0).stops == 0
    assert scene.shown[1].restarts == 1


def test_what_a_worker_wrote_before_it_could_log_stands_with_its_end() -> None:
    scene = Scene()
    scene.turn()
    scene.process(0).code, scene.process(0).words = 1, ["Traceback ...", "ImportError: no x"]
    scene.turn()
    (crashed,) = scene.log.named("worker_crashed")
    assert crashed["last_output"] == ["Traceback ...", "ImportError: no x"]
    assert crashed["exit_code"] == 1


def test_what_stops_several_workers_is_said_once() -> None:
    scene = Scene(workers=3)
    scene.all_running()
    for index in range(3):
        told = FailureReport(
            "RecordError", f"offset {index}", "KeyError", ["my_app.py:7 price"], []
        )
        scene.process(index).unread.append(told)
        scene.process(index).code = ExitCode.RECORD
    assert scene.outcome() is ExitCode.RECORD
    (said,) = scene.log.named("application_failed")
    assert (said["worker_index"], said["reason"]) == (0, "offset 0")
    (located,) = scene.log.named("failure_located")
    assert located["places"] == ["my_app.py:7 price"]
    assert len(scene.log.named("worker_failed")) == 1


def test_a_process_that_cannot_be_started_is_tried_again_after_a_pause() -> None:
    scene = Scene(most=1)
    scene.no_room = True
    assert not scene.turn()
    assert "no room" in scene.log.named("worker_crashed")[0]["outcome"]
    scene.no_room = False
    scene.turn(after_s=1.1)
    assert scene.indices == [0]
    scene.process(0).code = 1
    assert scene.outcome() is ExitCode.RESTARTS


NOT_AGAIN = [
    ExitCode.CONFIGURATION,
    ExitCode.TOPICS,
    ExitCode.RECORD,
    ExitCode.IDENTITY,
    ExitCode.OFFSETS,
    ExitCode.LOCAL_STATE,
]


@pytest.mark.parametrize("code", NOT_AGAIN)
def test_after_any_other_error_all_stop_with_its_code(code: ExitCode) -> None:
    scene = Scene(workers=3)
    scene.all_running()
    scene.process(1).code = code
    assert scene.outcome() is code
    assert scene.indices == [0, 1, 2]
    assert [scene.process(i).stops for i in range(3)] == [1, 0, 1]
    (failed,) = scene.log.named("worker_failed")
    assert failed["worker_index"] == 1
    assert failed["start_again"].startswith("after ")


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("MisconfiguredTopicError", "after following the message"),
        ("MissingTopicError", "after creating the topic"),
        ("", "after creating the topic"),
    ],
)
def test_the_fix_is_that_of_the_error_among_those_of_its_code(error: str, fix: str) -> None:
    scene = Scene()
    scene.all_running()
    if error:
        scene.process(0).unread.append(FailureReport(error, "a reason", error))
        scene.turn()
    scene.process(0).code = ExitCode.TOPICS
    assert scene.outcome() is ExitCode.TOPICS
    (failed,) = scene.log.named("worker_failed")
    assert failed["start_again"] == fix


def test_the_first_of_several_errors_decides_the_code() -> None:
    scene = Scene()
    scene.all_running()
    scene.process(1).code = ExitCode.RECORD
    scene.process(0).obeys = False
    scene.turn()
    scene.process(0).code = ExitCode.IDENTITY
    assert scene.outcome() is ExitCode.RECORD


def test_a_worker_in_its_pause_is_not_started_any_more_when_all_stop() -> None:
    scene = Scene()
    scene.all_running()
    scene.process(1).code = -KILL
    scene.turn()
    scene.supervisor.signalled(TERM)
    assert scene.outcome() is ExitCode.STOPPED
    assert scene.indices == [0, 1]


def test_a_worker_that_crashes_too_often_ends_everything_with_a_code_of_its_own() -> None:
    scene = Scene(most=3)
    scene.all_running()
    while scene.process(0).stops == 0:
        scene.process(1).code = 1
        scene.turn(after_s=0.5)
    assert scene.outcome() is ExitCode.RESTARTS
    assert scene.indices == [0, 1, 1, 1, 1]
    (given_up,) = scene.log.named("worker_abandoned")
    assert (given_up["worker_index"], given_up["restarts_max"]) == (1, 3)


def test_the_crashes_of_one_worker_do_not_count_for_another() -> None:
    scene = Scene(most=2)
    scene.all_running()
    for index in (0, 1, 0, 1):
        scene.process(index).code = 1
        scene.turn()
        scene.turn(after_s=3)
    assert scene.indices == [0, 1, 0, 1, 0, 1]


def test_a_worker_that_was_stopped_by_itself_stays_down() -> None:
    """Someone asked it to, with SIGTERM or from its own code."""
    scene = Scene()
    scene.all_running()
    scene.process(1).code = 0
    assert not scene.turn()
    assert not scene.turn(after_s=100)
    assert scene.indices == [0, 1]
    scene.process(0).code = 0
    assert scene.outcome() is ExitCode.STOPPED


def test_when_the_first_worker_ends_before_it_has_loaded_the_next_one_tries() -> None:
    scene = Scene(workers=2)
    scene.turn()
    scene.process(0).code = 0
    scene.turn()
    assert scene.indices == [0, 1]


@pytest.mark.parametrize("number", [TERM, INT, signal.SIGHUP])
def test_a_signal_closes_all_workers_once_and_ends_with_zero(number: int) -> None:
    scene = Scene()
    scene.all_running()
    scene.supervisor.signalled(number)
    assert scene.outcome() is ExitCode.STOPPED
    assert [scene.process(i).stops for i in range(2)] == [1, 1]


def test_a_signal_before_anything_runs_starts_nothing() -> None:
    scene = Scene()
    scene.supervisor.signalled(TERM)
    assert scene.outcome() is ExitCode.STOPPED
    assert scene.indices == []


def test_workers_that_do_not_close_in_time_are_killed() -> None:
    scene = Scene()
    scene.all_running(shutdown_timeout_ms=5_000)
    scene.process(1).obeys = False
    scene.supervisor.signalled(TERM)
    scene.turn()
    scene.turn(after_s=4.9)
    assert scene.process(1).code is None
    assert scene.outcome() is ExitCode.STOP_TIMEOUT
    (killed,) = scene.log.named("worker_killed")
    assert killed["worker_index"] == 1
    assert "shutdown.timeout.ms" in killed["reason"]


def test_a_second_ctrl_c_kills_at_once() -> None:
    scene = Scene()
    scene.all_running()
    for index in range(2):
        scene.process(index).obeys = False
    scene.supervisor.signalled(INT)
    scene.turn()
    scene.turn(after_s=1)
    scene.supervisor.signalled(INT)
    assert scene.outcome() is ExitCode.INTERRUPTED
    assert scene.now_s == 1
    assert [scene.process(i).code for i in range(2)] == [-KILL, -KILL]


def test_one_ctrl_c_that_comes_twice_is_one() -> None:
    """From the terminal, and passed on by the program that started this one."""
    scene = Scene()
    scene.all_running()
    scene.process(0).obeys = False
    for _ in range(3):
        scene.supervisor.signalled(INT)
        scene.now_s += 0.1
    scene.turn()
    assert scene.process(0).code is None
    assert scene.process(0).stops == 1


def test_a_second_sigterm_does_not_kill() -> None:
    scene = Scene()
    scene.all_running()
    scene.process(0).obeys = False
    for _ in range(2):
        scene.supervisor.signalled(TERM)
        scene.turn(after_s=1)
    assert scene.process(0).code is None


def test_an_error_while_closing_is_not_hidden_by_the_signal() -> None:
    scene = Scene()
    scene.all_running()
    scene.process(1).obeys = False
    scene.supervisor.signalled(TERM)
    scene.turn()
    scene.process(1).code = ExitCode.RECORD
    assert scene.outcome() is ExitCode.RECORD


def test_workers_that_the_same_sigterm_reached_directly_have_stopped() -> None:
    """A service manager may send it to every process; one that still imports dies of it."""
    scene = Scene()
    scene.all_running()
    scene.process(1).obeys = False
    scene.supervisor.signalled(TERM)
    scene.turn()
    scene.process(1).code = -TERM
    assert scene.outcome() is ExitCode.STOPPED


def test_the_last_reports_of_a_process_are_read_before_its_end_counts() -> None:
    scene = Scene()
    scene.turn()
    scene.process(0).unread.append(Loaded("app", 7_000))
    scene.process(0).code = -KILL
    scene.turn()
    scene.turn()
    assert scene.indices == [0, 1]


def test_the_display_has_the_last_status_of_each_worker() -> None:
    scene = Scene()
    scene.all_running()
    status = Status("running", 2, 0, 0, 100, 5, 0.5, 1.0)
    scene.process(1).unread.append(status)
    scene.turn()
    first, second = scene.shown
    assert (first.state, first.pid, first.last) == ("starting", 1_000, None)
    assert (second.state, second.pid, second.last) == ("running", 1_001, status)
    scene.process(1).code = -KILL
    scene.turn()
    assert (second.state, second.pid, second.last) == ("killed by SIGKILL", None, None)


def unreached(waited_s: float, again_in_s: float) -> Unreached:
    return Unreached("kafka:9092", "refused", waited_s, again_in_s, "start them")


def status(state: str) -> Status:
    return Status(state, 0, 0, 0, 0, 0, None, 0.0)


def test_that_no_broker_is_reached_is_said_once_for_all_workers() -> None:
    scene = Scene(workers=3)
    scene.all_running()

    def all_say(waited_s: float, again_in_s: float) -> None:
        for index in range(3):
            scene.process(index).unread.append(unreached(waited_s, again_in_s))
            scene.turn(0.1)

    all_say(2.0, 4.0)
    assert [e["waited_s"] for e in scene.log.named("brokers_not_reached")] == [2.0]
    scene.turn(3.6)
    all_say(6.0, 8.0)
    said = scene.log.named("brokers_not_reached")
    assert [e["waited_s"] for e in said] == [2.0, 6.0]
    assert said[1]["next"] == "retries until a broker answers; logged again in 8 s"


def test_a_worker_that_has_not_noticed_yet_does_not_make_it_another_time() -> None:
    scene = Scene(workers=2)
    scene.all_running()
    scene.process(0).unread += [status("connecting"), unreached(6.0, 8.0)]
    scene.process(1).unread.append(status("running"))
    scene.turn(0.1)
    scene.process(1).unread += [status("connecting"), unreached(2.0, 4.0)]
    scene.turn(0.1)
    assert [e["waited_s"] for e in scene.log.named("brokers_not_reached")] == [6.0]


def test_brokers_that_go_away_again_are_said_at_once() -> None:
    scene = Scene(workers=1)
    scene.all_running()
    for before, times in (("connecting", 1), ("connecting", 1), ("running", 2), ("connecting", 2)):
        scene.process(0).unread += [status(before), unreached(2.0, 60.0)]
        scene.turn(0.1)
        assert len(scene.log.named("brokers_not_reached")) == times


def test_the_board_has_the_last_that_each_worker_told() -> None:
    scene = Scene(workers=2)
    scene.turn()
    assert not scene.supervisor.health.is_loaded
    first = scene.started[0][1]
    snapshot = worker_snapshot(tasks=3)
    first.unread = [
        Loaded("shop", 1_000, topology="abc"),
        snapshot,
        Status("running", 3, 0, 0, 0, 0, None, 1),
    ]
    scene.turn()
    health = scene.supervisor.health
    assert health.is_loaded
    assert (health.snapshot.application, health.snapshot.topology) == ("shop", "abc")
    assert [view.snapshot for view in health.snapshot.workers] == [snapshot, None]
    assert [task.id for task in health.snapshot.tasks] == ["0_0", "0_1", "0_2"]
    assert health.turned_s == scene.now_s


def test_the_numbers_of_a_worker_that_crashed_stay_until_the_next_tells_its_own() -> None:
    scene = Scene(workers=1)
    scene.turn()
    process = scene.started[0][1]
    snapshot = worker_snapshot(tasks=3)
    process.unread = [snapshot]
    process.code = -KILL
    scene.turn()
    (view,) = scene.supervisor.health.snapshot.workers
    assert (view.snapshot, view.pid, view.restarts) == (snapshot, None, 1)
    assert scene.supervisor.health.snapshot.tasks == ()
    scene.now_s += 100
    scene.turn()
    (view,) = scene.supervisor.health.snapshot.workers
    assert view.snapshot is None
    assert not scene.supervisor.health.has_failed


def test_the_health_has_failed_when_a_worker_is_not_restarted() -> None:
    scene = Scene(workers=1, most=0)
    scene.turn()
    scene.started[0][1].code = 1
    scene.turn()
    assert scene.supervisor.health.has_failed
    assert scene.supervisor.health.why == "worker 0 crashed too often and is not restarted"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (ExitCode.RECORD, "worker 0 failed (record), and all are stopped"),
        (ExitCode.SHUT_DOWN, "the application was shut down after an error"),
    ],
)
def test_the_health_names_what_has_stopped_all_workers(code: ExitCode, why: str) -> None:
    scene = Scene(workers=2)
    scene.turn()
    scene.started[0][1].code = code
    scene.turn()
    assert scene.supervisor.health.has_failed
    assert scene.supervisor.health.why == why


@pytest.mark.parametrize("code", [0, 3, 5, 14])
def test_a_process_that_ends_without_closing_has_crashed(code: int) -> None:
    """User code may end the process with any exit code, also with one of the table."""
    scene = Scene(workers=2)
    scene.all_running()
    scene.process(1).exit_unseen(code)
    scene.turn()
    (crash,) = scene.log.named("worker_crashed")
    assert (crash["exit_code"], crash["outcome"]) == (code, "ended without closing")
    assert "os._exit" in crash["advice"]
    scene.turn(60)
    assert scene.indices == [0, 1, 1]


def test_a_stop_in_which_a_process_ends_without_closing_is_not_clean() -> None:
    scene = Scene(workers=2)
    scene.all_running()
    scene.process(1).obeys = False
    scene.supervisor.signalled(TERM)
    scene.turn()
    scene.process(1).exit_unseen(0)
    assert scene.outcome() is ExitCode.CRASHED


def test_a_process_that_has_closed_and_reported_it_is_not_started_again() -> None:
    scene = Scene(workers=2)
    scene.all_running()
    scene.process(1).code = 0
    scene.turn(60)
    assert scene.indices == [0, 1]
    assert not scene.log.named("worker_crashed")
