"""One call with all its attempts: what has come of it, and never an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from headrace.topology.context.calls import CallPlan, Job
from headrace.topology.errors import CallCancelledError, CallTimeoutError
from headrace.topology.first_result import refuse_never_run

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
