"""One call with all its attempts: what has come of it, and never an error."""

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
from headrace.topology.context.calls import CallPlan, Job
from headrace.topology.errors import CallCancelledError, CallsStuckError, CallTimeoutError
from headrace.topology.functions import refuse_never_run

# Whether anybody is to have what comes of the calls under way.


LOOK_S = 0.1
"""How often it is asked while calls are waited for."""
STOP_GRACE_S = 1.0
"""How long calls may go on behind the wish to stop: most of them end in that time."""

Look = Callable[[], None]
"""Raises where nobody is; called now and then by who waits."""


class CallWatch:
    """Watches over the calls of one worker.

    Args:
        is_stopping: whether the worker is to stop.
        is_given_up: whether its group has given it up, so that its partitions are others'.
    """

    def __init__(
        self,
        is_stopping: Callable[[], bool],
        is_given_up: Callable[[], bool],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_stopping = is_stopping
        self._is_given_up = is_given_up
        self._monotonic_s = monotonic_s
        self._stopping_s: float | None = None

    def look(self) -> None:
        """Look once.

        Raises:
            TaskMigratedError: the partitions are somebody else's.
            AbortableError: the worker is to stop, and has waited for as long as it may.
        """
        if self._is_given_up():
            raise TaskMigratedError(
                "the group has given this worker up; calls under way were cancelled, and who has "
                "the partitions makes them again"
            )
        if not self._is_stopping():
            return
        now_s = self._monotonic_s()
        if self._stopping_s is None:
            self._stopping_s = now_s
        if now_s - self._stopping_s >= STOP_GRACE_S:
            raise AbortableError(
                f"the worker stops; calls that took longer than {STOP_GRACE_S:g} s were cancelled, "
                "and who has the partitions next makes them again"
            )


def unwatched() -> None:
    """Nobody watches."""


Pause = Callable[[float], object]


class Attempts:
    """The attempts of one job.

    Args:
        job: takes what has come of it.
        plan: how often it is tried, and for how long.
    """

    __slots__ = ("_job", "_plan", "made")

    def __init__(self, job: Job, plan: CallPlan) -> None:
        self._job = job
        self._plan = plan
        self.made = 0
        """How many were begun."""

    async def run_async(self) -> None:
        """Await the attempts on the present event loop.

        Raises:
            asyncio.CancelledError: whoever awaits this was cancelled.
        """
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
        except BaseException as error:  # also what would end the loop: the task stops by it
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
        """Make the attempts in this thread.

        Args:
            pause: waits for so many seconds.
        """
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
            except BaseException as error:  # the task stops by it, and not this thread
                job.error = error
                return
            pause(pause_ms / 1000)


# Calls one after the other, in order: for tests and simulations, where each run is the same.
#
# Coroutines run on an event loop of its own whose clock jumps to where something happens next, so
# `asyncio.sleep`, pauses and time-outs take no time. What waits for the world outside, such as for
# a
# server, is waited for.


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class OneByOne:
    """Sequential caller of user functions, deterministic for tests and simulations.

    Args:
        gathers: whether steps hand over many calls together, as they do live.
    """

    def __init__(self, *, gathers: bool = True) -> None:
        self.gathers = gathers
        self._loop: JumpingLoop | None = None

    def watch(self, look: Callable[[], None], /) -> None:
        """Nobody is asked: no time goes by."""

    def run(self, jobs: Sequence[Job], plan: CallPlan, /) -> None:
        """Make the calls."""
        for number, job in enumerate(jobs):
            job.ended = number
        if not plan.is_async:
            for job in jobs:
                Attempts(job, plan).run(lambda _: None)
        elif asyncio._get_running_loop() is None:
            self._run_async(jobs, plan)
        else:  # a test that is a coroutine itself
            beside = threading.Thread(target=self._run_async, args=(jobs, plan))
            beside.start()
            beside.join()

    def _run_async(self, jobs: Sequence[Job], plan: CallPlan) -> None:
        if self._loop is None:
            self._loop = JumpingLoop()
        for job in jobs:
            self._loop.run_until_complete(Attempts(job, plan).run_async())

    def close(self) -> None:
        """End the loop."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer where there is nothing else to wait for."""

    _OWN: ClassVar[int] = 1
    """The sockets that the loop itself listens to."""

    def __init__(self) -> None:
        self._jumped_s = 0.0
        super().__init__(_Jumping(self._jump))

    def time(self) -> float:
        """Seconds, with those that were jumped over."""
        return super().time() + self._jumped_s

    def __del__(self) -> None:
        """Close it: a test driver may be left as it is."""
        if not self.is_closed():
            self.close()

    def _jump(self, seconds: float) -> None:
        self._jumped_s += seconds

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run it now: a thread would take time that the clock knows nothing of."""
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
        found = super().select(0)
        if not found:
            self._jump(timeout)
        return found


# Calls of plain functions, each in a thread of a pool.
#
# A thread cannot be interrupted. What takes too long goes on in its thread and is not heard any
# more;
# another thread takes that one's place, and the first one ends when its call does. They are
# daemons,
# so that none keeps the process alive.


STUCK_FACTOR = 10
"""How many times as many calls as may be under way may be stuck."""

Work = Callable[[], bool]
"""Returns whether the thread may be used again."""


class Threads:
    """The pool of one worker."""

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Work | None]] = []
        self._stuck = 0
        self._is_closed = False

    def run(self, jobs: Sequence[Job], plan: CallPlan, look: Look = unwatched) -> None:
        """Make the calls, and return when all of them have ended or taken too long."""
        if self._stuck > STUCK_FACTOR * plan.concurrency:
            for job in jobs:
                job.error = CallsStuckError(self._stuck)
            return
        wave = _Wave(jobs, plan, self._monotonic_s)
        for _ in range(min(plan.concurrency, len(jobs))):
            self._start(partial(self._lane, wave))
        try:
            while late := wave.wait(look):
                self._leave(late)
                for _ in range(late):
                    self._start(partial(self._lane, wave))
        except BaseException:  # such as Ctrl-C: nobody hears of those under way
            self._leave(wave.give_up())
            raise

    def _leave(self, calls: int) -> None:
        with self._lock:
            self._stuck += calls

    def _lane(self, wave: _Wave) -> bool:
        kept = wave.take_turns()
        if not kept:
            with self._lock:
                self._stuck -= 1
        return kept

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
        """Let idle threads end, and others as soon as they are idle."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)


class _Wave:
    """Jobs that are waited for together.

    Who owns what: a job is a lane's from when it is begun until it ends or is late, whichever comes
    first under the lock.
    """

    def __init__(
        self, jobs: Sequence[Job], plan: CallPlan, monotonic_s: Callable[[], float]
    ) -> None:
        self._plan = plan
        self._monotonic_s = monotonic_s
        self._changed = threading.Condition()
        self._waiting = deque(jobs)
        self._running: dict[Job, tuple[float, Attempts]] = {}
        self._left = len(jobs)
        self._ended = 0

    def take_turns(self) -> bool:
        """Run jobs until none waits; returns False where one of them was late."""
        while True:
            with self._changed:
                if not self._waiting:
                    return True
                job = self._waiting.popleft()
                # What is late is told by another thread: this one must not change it then.
                own = Job(job.attempt)
                attempts = Attempts(own, self._plan)
                due_s = self._monotonic_s() + self._plan.timeout_ms / 1000
                self._running[job] = (due_s, attempts)
                self._changed.notify_all()  # who waits must know until when
            try:
                attempts.run(partial(self._pause, job))
            except _LateError:
                return False
            with self._changed:
                if self._running.pop(job, None) is None:
                    return False
                job.value, job.error = own.value, own.error
                self._end(job)

    def _pause(self, job: Job, pause_s: float) -> None:
        """Wait before the next attempt; one that is late makes no further one."""
        with self._changed:
            ends_s = self._monotonic_s() + pause_s
            while (rest_s := ends_s - self._monotonic_s()) > 0 and job in self._running:
                self._changed.wait(rest_s)
            if job not in self._running:
                raise _LateError

    def _end(self, job: Job) -> None:
        job.ended = self._ended
        self._ended += 1
        self._left -= 1
        self._changed.notify_all()

    def give_up(self) -> int:
        """Begin no more, and hear nothing of those under way; returns how many these are."""
        with self._changed:
            under_way = len(self._running)
            self._waiting.clear()
            self._running.clear()
            self._changed.notify_all()
            return under_way

    def wait(self, look: Look) -> int:
        """Wait until all is done, or some are late; returns how many, and 0 in the end."""
        look_s = self._monotonic_s() + LOOK_S
        with self._changed:
            while self._left:
                now_s = self._monotonic_s()
                late = [job for job, (due_s, _) in self._running.items() if due_s <= now_s]
                for job in late:
                    _, attempts = self._running.pop(job)
                    job.error = CallTimeoutError(self._plan.timeout_ms, attempts.made)
                    self._end(job)
                if late:
                    return len(late)
                due_s = min((due_s for due_s, _ in self._running.values()), default=None)
                if now_s >= look_s:
                    look()
                    look_s = now_s + LOOK_S
                ends_s = look_s if due_s is None else min(due_s, look_s)
                self._changed.wait(ends_s - now_s)
            return 0


class _LateError(BaseException):
    """Ends the thread of a call that nobody waits for any more."""


# Calls as they are made live: coroutines on one event loop, plain functions in threads.
#
# All workers of a process share the loop, so what a function keeps for its calls, such as a session
# of a client, serves them all. It begins with the first call, and ends with the last worker.


CLOSE_S = 5.0
"""How long the loop is given to end what is still under way."""


class LiveCalls:
    """The calls of one worker.

    Args:
        gathers: whether steps hand over many calls together.
    """

    def __init__(self, *, gathers: bool = True) -> None:
        self.gathers = gathers
        self._threads = Threads()
        self._loop: SharedLoop | None = None

        self._look: Look = unwatched

    def watch(self, look: Look, /) -> None:
        """Be told whom to ask now and then whether calls are still wanted."""
        self._look = look

    def run(self, jobs: Sequence[Job], plan: CallPlan, /) -> None:
        """Make the calls, and return when all of them have ended."""
        if plan.is_async:
            if self._loop is None:
                self._loop = SharedLoop.taken()
            self._loop.run(jobs, plan, self._look)
        else:
            self._threads.run(jobs, plan, self._look)

    def close(self) -> None:
        """Let go of the loop and of idle threads."""
        self._threads.close()
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.let_go()


class SharedLoop:
    """An event loop in a thread; ends when everybody has let go of it who took it."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _present: ClassVar[SharedLoop | None] = None

    def __init__(self) -> None:
        self._users = 0
        self._ends = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="headrace-calls", daemon=True)
        self._thread.start()

    @classmethod
    def taken(cls) -> SharedLoop:
        """That of the process; made where there is none."""
        with cls._lock:
            if cls._present is None:
                cls._present = cls()
            cls._present._users += 1
            return cls._present

    def let_go(self) -> None:
        """Need it no more."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            SharedLoop._present = None
        self._ends = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)

    def run(self, jobs: Sequence[Job], plan: CallPlan, look: Look = unwatched) -> None:
        """Await jobs; whatever ends the waiting, such as Ctrl-C, ends those under way too."""
        future = asyncio.run_coroutine_threadsafe(_run_all(jobs, plan), self._loop)
        try:
            while not wait([future], LOOK_S).done:
                look()
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
                continue  # of a task that a call has begun by itself: nobody waits for it
        if self._loop.run_until_complete(_settled()):
            self._loop.close()


async def _settled() -> bool:
    """Cancel all that is under way; returns whether it has ended in time."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    late: set[asyncio.Task[object]] = set()
    if others:
        _, late = await asyncio.wait(others, timeout=CLOSE_S)
    await asyncio.get_running_loop().shutdown_asyncgens()
    return not late


async def _run_all(jobs: Sequence[Job], plan: CallPlan) -> None:
    """As many lanes as there may be calls under way; each takes the job that is next."""
    waiting, ended = iter(jobs), iter(range(len(jobs)))

    async def lane(waiting: Iterator[Job]) -> None:
        for job in waiting:
            await Attempts(job, plan).run_async()
            job.ended, job.has_ended = next(ended), True

    lanes = min(plan.concurrency, len(jobs))
    await asyncio.gather(*(lane(waiting) for _ in range(lanes)))
