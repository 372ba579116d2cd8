"""Calls as they are made live: together, within their time, and never beyond the wait for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.errors import AbortableError, TaskMigratedError
from headrace.streams.tasks.async_io import STOP_GRACE_S, CallWatch, LiveCalls, SharedLoop
from headrace.topology.context.calls import CallPlan, ExternalCall, Retry
from headrace.topology.errors import CallCancelledError, CallsStuckError, CallTimeoutError
from tests.support.patience import PATIENCE_S

CALL_S = 0.02


def plan(
    *, is_async: bool, concurrency: int = 100, timeout_ms: int = 60_000, **more: Any
) -> CallPlan:
    return CallPlan(is_async=is_async, concurrency=concurrency, timeout_ms=timeout_ms, **more)


@pytest.fixture
def calls() -> Iterator[LiveCalls]:
    made = LiveCalls()
    yield made
    made.close()


def job(value: int, seconds: float, *, is_async: bool) -> ExternalCall:
    async def awaited(_: int) -> int:
        await asyncio.sleep(seconds)
        return value

    def plainly(_: int) -> int:
        time.sleep(seconds)
        return value

    return ExternalCall(awaited if is_async else plainly)


BOTH = pytest.mark.parametrize("is_async", [True, False])


@BOTH
def test_a_thousand_calls_are_thirty_times_as_fast_as_one_after_the_other(
    calls: LiveCalls, is_async: bool
) -> None:
    """At 20 ms each and a hundred under way; one after the other takes 20 s at least."""
    seconds = []
    for _ in range(3):  # another process may have the cores for a while
        jobs = [job(n, CALL_S, is_async=is_async) for n in range(1000)]
        started = time.monotonic()
        for begin in range(0, 1000, 100):  # as a step hands them over
            calls.run(jobs[begin : begin + 100], plan(is_async=is_async))
        seconds.append(time.monotonic() - started)
        assert [one.value for one in jobs] == list(range(1000))
        if seconds[-1] < 1000 * CALL_S / 30:
            return
    raise AssertionError(f"took {min(seconds):.2f} s")


@BOTH
def test_no_more_are_under_way_than_allowed(calls: LiveCalls, is_async: bool) -> None:
    under_way = most = 0
    lock = threading.Lock()

    def count(change: int) -> None:
        nonlocal under_way, most
        with lock:
            under_way += change
            most = max(most, under_way)

    async def awaited(_: int) -> None:
        count(1)
        await asyncio.sleep(0.005)
        count(-1)

    def plainly(_: int) -> None:
        count(1)
        time.sleep(0.005)
        count(-1)

    jobs = [ExternalCall(awaited if is_async else plainly) for _ in range(30)]
    calls.run(jobs, plan(is_async=is_async, concurrency=7))
    assert most == 7
    assert all(one.error is None for one in jobs)


@BOTH
def test_they_say_in_which_order_they_have_ended(calls: LiveCalls, is_async: bool) -> None:
    jobs = [job(n, seconds, is_async=is_async) for n, seconds in enumerate((0.2, 0.1, 0.0))]
    calls.run(jobs, plan(is_async=is_async))
    assert [one.ended for one in jobs] == [2, 1, 0]


@BOTH
def test_what_takes_too_long_is_not_waited_for(calls: LiveCalls, is_async: bool) -> None:
    jobs = [job(0, 1.0, is_async=is_async), job(1, 0.0, is_async=is_async)]
    started = time.monotonic()
    calls.run(jobs, plan(is_async=is_async, concurrency=1, timeout_ms=50))
    assert time.monotonic() - started < 0.9
    assert isinstance(jobs[0].error, CallTimeoutError)
    assert (jobs[1].error, jobs[1].value) == (None, 1)
    time.sleep(1.1)  # what was late must change nothing afterwards
    assert isinstance(jobs[0].error, CallTimeoutError)
    assert jobs[0].value is None


@BOTH
def test_what_fails_is_tried_again_within_its_time(calls: LiveCalls, is_async: bool) -> None:
    tried: list[float] = []

    def fail(attempt: int) -> None:
        tried.append(time.monotonic())
        raise OSError(str(attempt))

    async def awaited(attempt: int) -> None:
        fail(attempt)

    one = ExternalCall(awaited if is_async else fail)
    retry = Retry(attempts=100, pause=timedelta(milliseconds=40), factor=1)
    calls.run([one], plan(is_async=is_async, timeout_ms=100, retry=retry))
    assert isinstance(one.error, CallTimeoutError)
    assert 2 <= one.error.attempts <= 3
    time.sleep(0.1)
    assert len(tried) == one.error.attempts
    assert tried[1] - tried[0] >= 0.035


def test_threads_that_never_come_back_are_not_filled_up_for_ever() -> None:
    calls = LiveCalls()
    ends = threading.Event()
    stuck = plan(is_async=False, concurrency=1, timeout_ms=1)
    try:
        jobs = [ExternalCall(lambda _: ends.wait(PATIENCE_S)) for _ in range(11)]
        calls.run(jobs, stuck)
        more = ExternalCall(lambda _: 1)
        calls.run([more], stuck)
        assert isinstance(more.error, CallsStuckError)
        assert "11 calls that took longer than their timeout=" in str(more.error)
    finally:
        ends.set()
    _await(lambda: calls._threads._stuck == 0)
    more = ExternalCall(lambda _: 1)
    calls.run([more], plan(is_async=False, concurrency=1))
    assert more.value == 1
    calls.close()


def _await(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.005)


def test_closing_ends_what_is_under_way() -> None:
    calls = LiveCalls()
    cancelled = threading.Event()

    async def long(_: int) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    one = ExternalCall(long)
    running = threading.Thread(target=calls.run, args=([one], plan(is_async=True)))
    running.start()
    _await(lambda: SharedLoop._present is not None)
    time.sleep(0.05)
    calls.close()
    running.join(PATIENCE_S)
    assert cancelled.is_set()
    assert isinstance(one.error, CallCancelledError)


def test_workers_of_one_process_share_the_loop_and_the_last_one_ends_it() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def look(_: int) -> None:
        loops.append(asyncio.get_running_loop())

    workers = [LiveCalls(), LiveCalls()]
    for worker in workers:
        worker.run([ExternalCall(look)], plan(is_async=True))
    workers[0].close()
    workers[1].run([ExternalCall(look)], plan(is_async=True))
    assert len(set(map(id, loops))) == 1
    workers[1].close()
    assert loops[0].is_closed()
    again = LiveCalls()
    again.run([ExternalCall(look)], plan(is_async=True))
    assert loops[-1] is not loops[0]
    again.close()


def test_a_task_of_a_call_that_exits_does_not_end_the_loop(calls: LiveCalls) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    kept = []

    async def begin(_: int) -> int:
        kept.append(asyncio.create_task(leave()))
        await asyncio.sleep(0.01)
        return 1

    one = ExternalCall(begin)
    calls.run([one], plan(is_async=True))
    assert (one.value, one.error) == (1, None)
    assert isinstance(kept[0].exception(), SystemExit)


@BOTH
def test_sys_exit_is_handed_on_and_ends_no_thread(calls: LiveCalls, is_async: bool) -> None:
    async def awaited(_: int) -> None:
        raise SystemExit(3)

    def plainly(_: int) -> None:
        raise SystemExit(3)

    one = ExternalCall(awaited if is_async else plainly)
    calls.run([one], plan(is_async=is_async))
    assert isinstance(one.error, SystemExit)
    more = job(1, 0.0, is_async=is_async)
    calls.run([more], plan(is_async=is_async))
    assert more.value == 1


class UnwantedError(Exception):
    pass


@BOTH
def test_calls_that_nobody_wants_any_more_are_given_up(calls: LiveCalls, is_async: bool) -> None:
    """A coroutine is cancelled, a thread is not heard; what waits is not begun."""
    begun: list[int] = []
    ended: list[str] = []
    goes_on = threading.Event()
    is_wanted = True

    def look() -> None:
        if not is_wanted:
            raise UnwantedError

    async def awaited(_: int) -> str:
        begun.append(1)
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "late"

    def plainly(_: int) -> str:
        begun.append(1)
        goes_on.wait(PATIENCE_S)
        ended.append("late")
        return "late"

    def end_it() -> None:
        nonlocal is_wanted
        while len(begun) < 2:
            time.sleep(0.01)
        is_wanted = False

    calls.watch(look)
    jobs = [ExternalCall(awaited if is_async else plainly) for _ in range(5)]
    ending = threading.Thread(target=end_it)
    ending.start()
    with pytest.raises(UnwantedError):
        calls.run(jobs, plan(is_async=is_async, concurrency=2))
    ending.join()
    goes_on.set()
    deadline = time.monotonic() + PATIENCE_S
    while len(ended) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == ["cancelled" if is_async else "late"] * 2
    is_wanted = True
    again = [job(n, 0.0, is_async=is_async) for n in range(5)]
    calls.run(again, plan(is_async=is_async, concurrency=2))
    assert [one.value for one in again] == list(range(5))
    assert len(begun) == 2
    assert [one.value for one in jobs] == [None] * 5


def test_who_stops_lets_calls_go_on_for_a_moment_and_who_is_given_up_does_not() -> None:
    now_s, stopping, given_up = 0.0, False, False
    watch = CallWatch(lambda: stopping, lambda: given_up, monotonic_s=lambda: now_s)
    now_s = 100.0
    watch.check()
    stopping = True
    watch.check()
    now_s += STOP_GRACE_S - 0.1
    watch.check()
    now_s += 0.1
    with pytest.raises(AbortableError, match="the worker stops"):
        watch.check()
    given_up = True
    with pytest.raises(TaskMigratedError, match="removed this worker"):
        watch.check()
