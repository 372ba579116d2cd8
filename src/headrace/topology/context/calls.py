"""Calls to external services, and the protocol of the object that makes them.

Operators make no calls themselves. They collect the calls for a batch of records and pass them to a
`Caller`, which has the event loop, the threads and the clock. It returns when every call has ended,
so no call is in flight when the next node receives a result, or at a commit.
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
    """Description of an external call, for functions of `KStream.map_async` with a parameter
    ``call``.

    Args:
        application_id: The application's id.
        node: The operator that makes the call.
        topic: Topic of the input record that the call is for; None if unknown, downstream of a
            cached table or a punctuator.
        partition: Partition of that record.
        offset: Offset of that record.
        number: Sequence number of the call among the operator's calls for that record, from 0.
        attempt: Number of the attempt, from 1.

    Examples:
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
        """Idempotency key: equal for each repetition of this call, and unique among all calls.

        Raises:
            LookupError: The input record of the call is unknown.
        """
        if self.topic is None:
            raise LookupError(
                f"{self.node} requires records with an offset, and records from a cache or a "
                "punctuator have none; move it before the table, or disable the cache with "
                "Materialized(..., cached=False)"
            )
        parts = (self.application_id, self.node, self.topic)
        return "/".join((*parts, str(self.partition), str(self.offset), str(self.number)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Retry policy of failed external calls.

    Args:
        attempts: Maximum number of attempts, including the first.
        pause: Pause before the second attempt.
        factor: Factor by which each further pause grows.
        longest: Maximum pause.
        on: Error classes that are retried; other errors fail immediately.

    Raises:
        TopologyError: A number or a duration is too small.

    Examples:
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
        """Return the pause after a failed attempt, in milliseconds; None if it was the last
        attempt.
        """
        if attempt >= self.attempts or not isinstance(error, self.on):
            return None
        first, longest = (d // timedelta(milliseconds=1) for d in (self.pause, self.longest))
        # The exponent is limited because a larger power could overflow a float.
        return int(min(first * self.factor ** min(attempt - 1, 64), longest))


@dataclass(frozen=True, slots=True)
class CallPlan:
    """Concurrency, timeout and retry policy of an operator's external calls.

    Args:
        timeout_ms: Time limit of the calls for a record, including all attempts and pauses.
    """

    is_async: bool
    concurrency: int
    timeout_ms: int
    retry: Retry | None = None

    def pause_ms(self, attempt: int, error: Exception) -> int | None:
        """Return the pause after a failed attempt, or None if it was the last attempt."""
        return None if self.retry is None else self.retry.pause_ms(attempt, error)


@dataclass(slots=True, eq=False)
class ExternalCall:
    """External call to make, and its result.

    Args:
        attempt: Function that makes the call, given the attempt's number from 1; its result must be
            awaited if the plan is asynchronous.
    """

    attempt: Callable[[int], Any]
    value: Any = None
    error: BaseException | None = None
    ended: int = 0
    """Position of this job in the order in which the jobs ended."""
    has_ended: bool = False


class Caller(Protocol):
    """Executor of external calls."""

    @property
    def batches_records(self) -> bool:
        """Whether operators should pass the calls of several records together."""

    def watch(self, check: Callable[[], None], /) -> None:
        """Set a function to call while calls are in flight; an exception cancels them."""

    def run(self, jobs: Sequence[ExternalCall], plan: CallPlan, /) -> None:
        """Make calls and return when all of them have ended; each job then has its result."""

    def close(self) -> None:
        """Cancel the calls in flight and release the resources."""


class NoCaller:
    """Executor of tasks without external calls."""

    batches_records: ClassVar[bool] = False

    def watch(self, check: Callable[[], None], /) -> None: ...

    def run(self, jobs: Sequence[ExternalCall], plan: CallPlan, /) -> None:
        del jobs, plan
        raise LookupError("the operators of this task have no caller")

    def close(self) -> None: ...
