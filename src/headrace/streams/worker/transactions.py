"""The producer of a worker: its open transaction, and its replacement.

A producer that the broker has fenced, or whose commit has an unknown outcome, cannot be used again.
A new producer with the same identity ends the old producer's transaction before anything is read
again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from headrace.streams.errors import (
    FatalClientError,
    IdentityError,
    OutcomeUnknownError,
    ProducerFencedError,
    StreamsError,
)
from headrace.streams.kafka.protocols import Clock, Log, Probe, Producer
from headrace.streams.worker.restarts import RateWindow
from headrace.topology.context.task_context import EmissionBudget

FENCED_AGAIN_S = 60.0
_REPLACED = (
    "nothing is lost. All tasks restart from the last commit, as is usual after a pause of the "
    "process or of the brokers. Act only if it continues"
)


class Transactions:
    """Open transaction and producer of a worker, and the producer's replacement.

    Args:
        timeout_s: transaction.timeout.ms in seconds: how long the broker keeps a transaction open.
        emission: limits the results of closed windows in one transaction.
    """

    def __init__(
        self,
        make_producer: Callable[[], Producer],
        *,
        timeout_s: float,
        clock: Clock,
        probe: Probe,
        log: Log,
        emission: EmissionBudget | None = None,
    ) -> None:
        self._make_producer = make_producer
        self._timeout_s = timeout_s
        self._clock = clock
        self._probe = probe
        self._log = log
        self._begun_s: float | None = None
        self._fenced = RateWindow(2, within_s=FENCED_AGAIN_S, clock=clock)
        self.producer = make_producer()
        """The current producer."""
        self.emission = emission or EmissionBudget()
        self.aborted = 0
        """Number of transactions that were open and rolled back."""
        self._replaced = 0

    @property
    def replaced(self) -> int:
        return self._replaced + self.producer.abandoned_clients

    def init(self) -> None:
        """Initialize transactions, which ends a transaction of a predecessor."""
        try:
            self.producer.init()
        except OutcomeUnknownError as error:
            raise FatalClientError(
                f"the brokers do not decide the last transaction: {error}. Check the brokers"
            ) from error

    def begin(self) -> None:
        if self._begun_s is None:
            self.producer.begin()
            self.emission.renew()
            self._begun_s = self._clock.monotonic_s()
            self._probe("transaction_begun")

    def ended(self) -> None:
        self._begun_s = None

    def abort(self) -> bool:
        """Abort the open transaction, if any; return False if the producer was replaced."""
        if self._begun_s is None:
            return True
        try:
            self.producer.abort()
        except StreamsError as error:
            self.replace(error)
            return False
        self.aborted += 1
        self._begun_s = None
        return True

    def abort_finally(self) -> bool:
        """Abort for the last time; return False if a successor must end the transaction."""
        if self._begun_s is None:
            return True
        self._begun_s = None
        with suppress(StreamsError):
            self.producer.abort()
            self.aborted += 1
            return True
        return False

    def replace(self, reason: StreamsError, *, in_doubt: bool = False) -> None:
        """Replace the producer, which ends its transaction; `in_doubt` if that may be committed."""
        fenced = isinstance(reason, ProducerFencedError)
        if fenced and (age_s := self._age_s()) >= self._timeout_s:
            # The client cannot distinguish this from another producer with its identity.
            fenced = False
            self._log.warning(
                "producer_replaced",
                reason=f"the broker ended the transaction: it was open for {age_s:.1f} s, longer "
                f"than producer.transaction.timeout.ms of {self._timeout_s * 1000:.0f}",
                advice=_REPLACED,
            )
        else:
            self._log.warning("producer_replaced", reason=str(reason), advice=_REPLACED)
        if fenced and self._fenced.is_too_much():
            raise IdentityError(
                f"another live worker has the same identity (application.id and worker.id): "
                f"this worker's producer was fenced twice within a minute ({reason}). Give each "
                "worker a unique worker.id"
            ) from reason
        self.aborted += self._begun_s is not None and not in_doubt
        self._begun_s = None
        abandoned = self.producer.abandoned_clients
        self.producer.close()
        self.producer = self._make_producer()
        self._replaced += 1 + abandoned
        self.init()

    def _age_s(self) -> float:
        return 0.0 if self._begun_s is None else self._clock.monotonic_s() - self._begun_s

    def close(self) -> None:
        """Close the producer; a successor ends an open transaction."""
        self.producer.close()
