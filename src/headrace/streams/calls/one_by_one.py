"""Calls one after the other, in order: for tests and simulations, where each run is the same.

Coroutines run on an event loop of its own whose clock jumps to where something happens next, so
`asyncio.sleep`, pauses and time-outs take no time. What waits for the world outside, such as for a
server, is waited for.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import ClassVar, TypeVar

from typing_extensions import TypeVarTuple, Unpack

from headrace.streams.calls.attempts import Attempts
from headrace.topology.context.calls import CallPlan, Job

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class OneByOne:
    """See the module.

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
