"""Calls to the outside: what is to be called, and who sees to it.

Steps call nobody themselves: they gather what is to be called for the records of a run and hand
all of it to a `Caller`, which has the event loop, the threads and the clock. It returns when every
call has ended, so nothing is under way when the next node sees a result, or at a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Protocol

from headrace.topology.errors import TopologyError
from headrace.topology.windows import duration_ms


@dataclass(frozen=True, slots=True)
class Call:
    """Which call it is; for functions of `KStream.map_async` that have a parameter ``call``.

    Args:
        application_id: the application's.
        node: the step that makes the call.
        topic: where the record was read that it is for; None where that is not known, behind a
            table whose cache is flushed or a punctuator.
        partition: likewise.
        offset: likewise.
        number: which of the step's calls for that record it is, from 0.
        attempt: from 1.

    >>> Call("shop", "enrich", "orders", 3, 17).key
    'shop/enrich/orders/3/17/0'
    """

    application_id: str
    node: str
    topic: str | None
    partition: int | None
    offset: int | None
    number: int = 0
    attempt: int = 1

    @property
    def key(self) -> str:
        """The same whenever this call is made again, and no other one's: an idempotency key.

        Raises:
            LookupError: nobody knows which record the call is for.
        """
        if self.topic is None:
            raise LookupError(
                f"{self.node} does not know which record it calls for: what comes of a cache or a "
                "punctuator has no offset; call before the table, or turn its cache off with "
                "Materialized(..., cached=False)"
            )
        parts = (self.application_id, self.node, self.topic)
        return "/".join((*parts, str(self.partition), str(self.offset), str(self.number)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a call is made again that has failed, and when.

    Args:
        attempts: how many there are at most, the first one included.
        pause: before the second attempt.
        factor: by how much each further pause is longer.
        longest: no pause is longer.
        on: the errors that another attempt may put right; others fail at once.

    Raises:
        TopologyError: a number or a duration is too small.

    >>> retry = Retry(attempts=4, pause=timedelta(milliseconds=100), factor=3)
    >>> [retry.pause_ms(attempt, OSError()) for attempt in (1, 2, 3, 4)]
    [100, 300, 900, None]
    """

    attempts: int = 3
    pause: timedelta = timedelta(milliseconds=100)
    factor: float = 2
    longest: timedelta = timedelta(seconds=10)
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise TopologyError(f"attempts must be an int of at least 1, not {self.attempts!r}")
        if not self.factor >= 1:
            raise TopologyError(f"factor must be at least 1, not {self.factor!r}")
        duration_ms("pause", self.pause, at_least=0)
        duration_ms("longest", self.longest, at_least=0)

    def pause_ms(self, attempt: int, error: Exception) -> int | None:
        """How long to wait after an attempt has failed; None if it was the last one."""
        if attempt >= self.attempts or not isinstance(error, self.on):
            return None
        first, longest = (d // timedelta(milliseconds=1) for d in (self.pause, self.longest))
        # A power that is too large for a float would be longer than the longest in any case.
        return int(min(first * self.factor ** min(attempt - 1, 64), longest))


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How the calls of a step are made.

    Args:
        is_async: whether the function is a coroutine function.
        concurrency: how many calls are under way at most.
        timeout_ms: how long the calls for one record may take, with all attempts and pauses.
        retry: what is done where one fails.
    """

    is_async: bool
    concurrency: int
    timeout_ms: int
    retry: Retry | None = None

    def pause_ms(self, attempt: int, error: Exception) -> int | None:
        """How long to wait after an attempt has failed; None if it was the last one."""
        return None if self.retry is None else self.retry.pause_ms(attempt, error)


@dataclass(slots=True, eq=False)
class Job:
    """A call to make, and what has come of it.

    Args:
        attempt: makes the call, given the number of the attempt from 1; what it returns is to be
            awaited where the plan is asynchronous.
    """

    attempt: Callable[[int], Any]
    value: Any = None
    error: BaseException | None = None
    ended: int = 0
    """Which of the jobs it was that ended, where several were under way."""
    has_ended: bool = False


class Caller(Protocol):
    """Makes calls."""

    @property
    def gathers(self) -> bool:
        """Whether calls of several records are to be handed over together."""

    def watch(self, look: Callable[[], None], /) -> None:
        """Be told whom to ask while calls are waited for: what it raises ends them."""

    def run(self, jobs: Sequence[Job], plan: CallPlan, /) -> None:
        """Make calls, and return when all of them have ended; says of each what came of it."""

    def close(self) -> None:
        """End what is still under way."""


class NoCaller:
    """Where nobody makes calls."""

    gathers: ClassVar[bool] = False

    def watch(self, look: Callable[[], None], /) -> None:
        """There is nothing to wait for."""

    def run(self, jobs: Sequence[Job], plan: CallPlan, /) -> None:
        """Refuse.

        Raises:
            LookupError: in any case.
        """
        del jobs, plan
        raise LookupError("nobody makes calls for the steps of this task")

    def close(self) -> None:
        """There is nothing to end."""
