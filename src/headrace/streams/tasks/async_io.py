"""Async I/O: calls of user functions with retries and timeouts, on an event loop or in threads."""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, wait
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import ClassVar

from typing_extensions import TypeVar, TypeVarTuple, Unpack

from headrace.streams.errors import AbortableError, TaskMigratedError
from headrace.topology.context.calls import CallPlan, ExternalCall
from headrace.topology.errors import CallCancelledError, CallsStuckError, CallTimeoutError
from headrace.topology.functions import refuse_never_run

# Check whether the results of calls in flight are still needed.


CHECK_S = 0.1
"""Seconds between two checks whether calls in flight are still needed."""
STOP_GRACE_S = 1.0
"""Seconds that calls in flight may take after a stop request; most of them end in that time."""

Check = Callable[[], None]
"""Check during a wait for calls; raises if the calls are no longer needed."""


class CallWatch:
    """Cancellation check for the calls of a worker that stops or was removed from its group."""

    def __init__(
        self,
        is_stopping: Callable[[], bool],
        was_removed: Callable[[], bool],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_stopping = is_stopping
        self._was_removed = was_removed
        self._monotonic_s = monotonic_s
        self._stopping_s: float | None = None

    def check(self) -> None:
        """Raise if calls in flight must be cancelled; a stop leaves them a grace period."""
        if self._was_removed():
            raise TaskMigratedError(
                "the group has removed this worker; calls in progress were cancelled, and the new "
                "owner of the partitions repeats them"
            )
        if not self._is_stopping():
            return
        now_s = self._monotonic_s()
        if self._stopping_s is None:
            self._stopping_s = now_s
        if now_s - self._stopping_s >= STOP_GRACE_S:
            raise AbortableError(
                f"the worker stops; calls that took longer than {STOP_GRACE_S:g} s were cancelled, "
                "and the next owner of the partitions repeats them"
            )


def no_check() -> None: ...


Pause = Callable[[float], object]


class Attempts:
    """The attempts of a job, which receives the result or the error."""

    __slots__ = ("_job", "_plan", "made")

    def __init__(self, job: ExternalCall, plan: CallPlan) -> None:
        self._job = job
        self._plan = plan
        self.made = 0
        """Number of attempts that were started."""

    async def run_async(self) -> None:
        job, plan = self._job, self._plan
        try:
            async with asyncio.timeout(plan.timeout_ms / 1000) as limit:
                await self._succeed()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            job.error = CallCancelledError()
            job.error.__cause__ = error
        except BaseException as error:  # also errors that would end the loop: they stop the task
            job.error = error
            if isinstance(error, TimeoutError) and limit.expired():
                job.error = CallTimeoutError(plan.timeout_ms, self.made)

    async def _succeed(self) -> None:
        job, plan = self._job, self._plan
        for self.made in count(1):
            try:
                job.value = await job.attempt(self.made)
                return
            except Exception as error:
                pause_ms = plan.pause_ms(self.made, error)
                if pause_ms is None:
                    raise
            await asyncio.sleep(pause_ms / 1000)

    def run(self, pause: Pause) -> None:
        job, plan = self._job, self._plan
        for self.made in count(1):
            try:
                job.value = job.attempt(self.made)
                refuse_never_run(job.value)
                return
            except Exception as error:
                pause_ms = plan.pause_ms(self.made, error)
                if pause_ms is None:
                    job.error = error
                    return
            except BaseException as error:  # it stops the task, not this thread
                job.error = error
                return
            pause(pause_ms / 1000)


# Sequential calls, in order: for tests and simulations, where each run must be the same.
#
# Coroutines run on a separate event loop whose clock jumps to the next event, so `asyncio.sleep`,
# pauses and timeouts take no time. Real I/O, such as a request to a server, takes real time.


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class OneByOne:
    """Sequential caller of user functions, deterministic for tests and simulations."""

    batches_records: ClassVar[bool] = True

    def __init__(self) -> None:
        self._loop: JumpingLoop | None = None

    def watch(self, check: Callable[[], None], /) -> None:
        """Ignore the check, because calls take no time."""

    def run(self, jobs: Sequence[ExternalCall], plan: CallPlan, /) -> None:
        for number, job in enumerate(jobs):
            job.ended = number
        if not plan.is_async:
            for job in jobs:
                Attempts(job, plan).run(lambda _: None)
        elif asyncio._get_running_loop() is None:
            self._run_async(jobs, plan)
        else:  # a test that is a coroutine itself
            thread = threading.Thread(target=self._run_async, args=(jobs, plan))
            thread.start()
            thread.join()

    def _run_async(self, jobs: Sequence[ExternalCall], plan: CallPlan) -> None:
        if self._loop is None:
            self._loop = JumpingLoop()
        for job in jobs:
            self._loop.run_until_complete(Attempts(job, plan).run_async())

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()


class JumpingLoop(asyncio.SelectorEventLoop):
    """Event loop whose clock jumps to the next timer if no I/O is pending."""

    _OWN: ClassVar[int] = 1
    """Number of sockets that the loop itself listens to."""

    def __init__(self) -> None:
        self._jumped_s = 0.0
        super().__init__(_Jumping(self._jump))

    def time(self) -> float:
        return super().time() + self._jumped_s

    def __del__(self) -> None:
        """Close the loop, because test drivers need not be closed."""
        if not self.is_closed():
            self.close()

    def _jump(self, seconds: float) -> None:
        self._jumped_s += seconds

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run the function now: a thread would take time that this clock does not measure."""
        del executor
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class _Jumping(selectors.DefaultSelector):
    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not timeout or len(self.get_map()) > JumpingLoop._OWN:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self._jump(timeout)
        return ready


# Calls of plain functions, each in a thread of a pool.
#
# A thread cannot be interrupted. A call that has timed out continues in its thread, and its result
# is ignored. Another thread replaces this thread, which ends when its call returns. The threads are
# daemons, so that they do not keep the process alive.


STUCK_FACTOR = 10
"""Multiple of the concurrency limit that the number of stuck calls may reach."""

Work = Callable[[], bool]
"""Returns whether the thread can be reused."""


class Threads:
    """Thread pool of a worker for calls of plain functions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Work | None]] = []
        self._stuck = 0
        self._is_closed = False

    def run(self, jobs: Sequence[ExternalCall], plan: CallPlan, check: Check = no_check) -> None:
        """Make the calls until all of them have ended or timed out."""
        if self._stuck > STUCK_FACTOR * plan.concurrency:
            for job in jobs:
                job.error = CallsStuckError(self._stuck)
            return
        wave = _Wave(jobs, plan)
        for _ in range(min(plan.concurrency, len(jobs))):
            self._start(partial(self._lane, wave))
        try:
            while late := wave.wait(check):
                self._leave(late)
                for _ in range(late):
                    self._start(partial(self._lane, wave))
        except BaseException:  # such as Ctrl-C: the results of running calls are discarded
            self._leave(wave.abandon())
            raise

    def _leave(self, calls: int) -> None:
        with self._lock:
            self._stuck += calls

    def _lane(self, wave: _Wave) -> bool:
        is_reusable = wave.run_jobs()
        if not is_reusable:
            with self._lock:
                self._stuck -= 1
        return is_reusable

    def _start(self, work: Work) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = SimpleQueue()
            threading.Thread(
                target=self._serve, args=(inbox,), name="headrace-call", daemon=True
            ).start()
        inbox.put(work)

    def _serve(self, inbox: SimpleQueue[Work | None]) -> None:
        while (work := inbox.get()) is not None:
            if not work():
                return
            with self._lock:
                if self._is_closed:
                    return
                self._idle.append(inbox)

    def close(self) -> None:
        """Stop idle threads now, and busy threads when they become idle."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)


class _Wave:
    """Jobs that are awaited together.

    Ownership: a job belongs to a lane from its start until it ends or times out, whichever comes
    first under the lock.
    """

    def __init__(self, jobs: Sequence[ExternalCall], plan: CallPlan) -> None:
        self._plan = plan
        self._changed = threading.Condition()
        self._waiting = deque(jobs)
        self._running: dict[ExternalCall, tuple[float, Attempts]] = {}
        self._left = len(jobs)
        self._ended = 0

    def run_jobs(self) -> bool:
        """Run jobs until none is queued; return False if a job timed out."""
        while True:
            with self._changed:
                if not self._waiting:
                    return True
                job = self._waiting.popleft()
                # The waiting thread sets the error of a late job, so use a private job here.
                call = ExternalCall(job.attempt)
                attempts = Attempts(call, self._plan)
                due_s = time.monotonic() + self._plan.timeout_ms / 1000
                self._running[job] = (due_s, attempts)
                self._changed.notify_all()  # the waiting thread must consider this timeout
            try:
                attempts.run(partial(self._pause, job))
            except _LateError:
                return False
            with self._changed:
                if self._running.pop(job, None) is None:
                    return False
                job.value, job.error = call.value, call.error
                self._end(job)

    def _pause(self, job: ExternalCall, pause_s: float) -> None:
        with self._changed:
            ends_s = time.monotonic() + pause_s
            while (rest_s := ends_s - time.monotonic()) > 0 and job in self._running:
                self._changed.wait(rest_s)
            if job not in self._running:
                raise _LateError

    def _end(self, job: ExternalCall) -> None:
        job.ended = self._ended
        self._ended += 1
        self._left -= 1
        self._changed.notify_all()

    def abandon(self) -> int:
        """Start no more jobs and discard the results of running jobs; return their number."""
        with self._changed:
            running = len(self._running)
            self._waiting.clear()
            self._running.clear()
            self._changed.notify_all()
            return running

    def wait(self, check: Check) -> int:
        """Wait until jobs time out or all are done; return the number of timeouts, 0 if done."""
        check_s = time.monotonic() + CHECK_S
        with self._changed:
            while self._left:
                now_s = time.monotonic()
                late = [job for job, (due_s, _) in self._running.items() if due_s <= now_s]
                for job in late:
                    _, attempts = self._running.pop(job)
                    job.error = CallTimeoutError(self._plan.timeout_ms, attempts.made)
                    self._end(job)
                if late:
                    return len(late)
                due_s = min((due_s for due_s, _ in self._running.values()), default=None)
                if now_s >= check_s:
                    check()
                    check_s = now_s + CHECK_S
                ends_s = check_s if due_s is None else min(due_s, check_s)
                self._changed.wait(ends_s - now_s)
            return 0


class _LateError(BaseException):
    """Internal error that ends the thread of a call that has timed out."""


# Calls of live workers: coroutines on one event loop, plain functions in threads.
#
# All workers of a process share the loop, so that an object which a function keeps between calls,
# such as a client session, serves them all. The loop is created with the first call and ends with
# the last worker.


CLOSE_S = 5.0
"""Seconds until the loop is closed although tasks are still running."""


class LiveCalls:
    """Caller of user functions for a live worker."""

    def __init__(self, *, batches_records: bool = True) -> None:
        self.batches_records = batches_records
        self._threads = Threads()
        self._loop: SharedLoop | None = None

        self._check: Check = no_check

    def watch(self, check: Check, /) -> None:
        self._check = check

    def run(self, jobs: Sequence[ExternalCall], plan: CallPlan, /) -> None:
        if plan.is_async:
            if self._loop is None:
                self._loop = SharedLoop.acquire()
            self._loop.run(jobs, plan, self._check)
        else:
            self._threads.run(jobs, plan, self._check)

    def close(self) -> None:
        self._threads.close()
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.release()


class SharedLoop:
    """Event loop in a thread, shared by the workers of a process; ends after the last release."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _present: ClassVar[SharedLoop | None] = None

    def __init__(self) -> None:
        self._users = 0
        self._ends = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="headrace-calls", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> SharedLoop:
        with cls._lock:
            if cls._present is None:
                cls._present = cls()
            cls._present._users += 1
            return cls._present

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            SharedLoop._present = None
        self._ends = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)

    def run(self, jobs: Sequence[ExternalCall], plan: CallPlan, check: Check = no_check) -> None:
        future = asyncio.run_coroutine_threadsafe(_run_all(jobs, plan), self._loop)
        try:
            while not wait([future], CHECK_S).done:
                check()
            future.result()
        except CancelledError:
            for job in jobs:
                if not job.has_ended:
                    job.error = CallCancelledError()
        except BaseException:
            future.cancel()
            raise

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._ends:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # raised by a task that a call has created and does not await
        if self._loop.run_until_complete(_cancel_tasks()):
            self._loop.close()


async def _cancel_tasks() -> bool:
    """Cancel all tasks; return whether they have ended in time."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    late: set[asyncio.Task[object]] = set()
    if others:
        _, late = await asyncio.wait(others, timeout=CLOSE_S)
    await asyncio.get_running_loop().shutdown_asyncgens()
    return not late


async def _run_all(jobs: Sequence[ExternalCall], plan: CallPlan) -> None:
    waiting, ended = iter(jobs), iter(range(len(jobs)))

    async def lane(waiting: Iterator[ExternalCall]) -> None:
        for job in waiting:
            await Attempts(job, plan).run_async()
            job.ended, job.has_ended = next(ended), True

    lanes = min(plan.concurrency, len(jobs))
    await asyncio.gather(*(lane(waiting) for _ in range(lanes)))
