"""A client whose calls end in time, where the library's own calls may not.

librdkafka does not keep the time-out of `send_offsets_to_transaction`: when the group's coordinator
goes away at that moment, the call can wait for ever (its issues 5456 and 5511). The worker would
neither process nor give its tasks to others, since the client's heartbeats go on.

The offsets may also wait behind records, on the connection to a broker that takes them slowly. That
wait is not the call's: its time begins again as long as records are delivered. A broker that is
away delivers none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import confluent_kafka

from headrace.streams.worker_errors import OutcomeUnknownError

_MARGIN_S = 1.0
"""The client's own time-out comes first, where it works."""


class BoundedProducer(confluent_kafka.Producer):
    """A transactional producer that does not wait for ever; see the module."""

    def send_offsets_to_transaction(
        self,
        positions: Sequence[confluent_kafka.TopicPartition],
        group_metadata: Any,
        timeout: float = -1,
    ) -> None:
        """Add offsets to the transaction.

        Args:
            timeout: seconds, from the last delivery of a record.

        Raises:
            KafkaException: what the client says.
            OutcomeUnknownError: it says nothing; it is of no more use then, and must not be closed.
        """
        send = super().send_offsets_to_transaction
        in_flight = self._in_flight()

        def delivers() -> bool:
            nonlocal in_flight
            before, in_flight = in_flight, self._in_flight()
            return in_flight < before

        in_time(
            lambda: send(list(positions), group_metadata, timeout),
            timeout + _MARGIN_S,
            is_blocked=delivers,
        )

    def _in_flight(self) -> int:
        self.poll(0)  # reports that were not served count as records in flight
        return len(self)


def in_time(
    call: Callable[[], None], timeout_s: float, *, is_blocked: Callable[[], bool] = lambda: False
) -> None:
    """Make a call in a thread of its own, and give up waiting for it after `timeout_s` seconds.

    Args:
        is_blocked: whether the call waits behind something else that makes progress; asked each
            time `timeout_s` has passed.

    Raises:
        OutcomeUnknownError: it has not come back. Its thread stays, and ends with the process.

    Example:
        >>> in_time(threading.Event().wait, 0.01)
        Traceback (most recent call last):
            ...
        headrace.streams.worker_errors.OutcomeUnknownError: the client does not come back from a \
call within 0.01 s
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # handed over to whoever waits
            failures.append(error)

    thread = threading.Thread(target=run, name="headrace-producer-call", daemon=True)
    thread.start()
    thread.join(timeout_s)
    while thread.is_alive() and is_blocked():
        thread.join(timeout_s)
    if thread.is_alive():
        raise OutcomeUnknownError(
            f"the client does not come back from a call within {timeout_s:g} s"
        )
    if failures:
        raise failures[0]
