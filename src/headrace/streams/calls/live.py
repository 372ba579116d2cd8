"""Calls as they are made live: coroutines on one event loop, plain functions in threads.

All workers of a process share the loop, so what a function keeps for its calls, such as a session
of a client, serves them all. It begins with the first call, and ends with the last worker.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, wait
from typing import ClassVar

from headrace.streams.calls.attempts import Attempts
from headrace.streams.calls.threads import Threads
from headrace.streams.calls.watch import LOOK_S, Look, unwatched
from headrace.topology.context.calls import CallPlan, Job
from headrace.topology.errors import CallCancelledError

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
