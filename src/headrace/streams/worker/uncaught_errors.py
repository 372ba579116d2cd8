"""Handling of uncaught errors: calls the user's handler, and replaces workers.

As in Kafka Streams, the handler is called for errors that stop a worker, including errors at its
start, but not for errors from which a worker recovers. Without a handler the client shuts down,
which is appropriate for most errors: the next worker would meet the same record or setting.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from random import Random

from headrace.streams.errors import ConfigError, ShutDownError, StopRequestedError
from headrace.streams.kafka.protocols import Clock, Log
from headrace.streams.tasks.failures import describe_failure, log_failure
from headrace.streams.worker.restarts import RestartLimits, Restarts
from headrace.topology.functions import location_of

NAME = "uncaught_error_handler"


class UncaughtErrorResponse(Enum):
    """Response to an error that has stopped a worker.

    Examples:
        >>> from headrace import KafkaStreams, StreamsBuilder
        >>> def restart_if_unreachable(error: Exception) -> UncaughtErrorResponse:
        ...     if isinstance(error.__cause__, ConnectionError):
        ...         return UncaughtErrorResponse.REPLACE_WORKER
        ...     return UncaughtErrorResponse.SHUTDOWN_APPLICATION
        >>> builder = StreamsBuilder()
        >>> builder.stream("in").to("out")
        >>> app = KafkaStreams(builder.build(), {
        ...     "application.id": "copy", "bootstrap.servers": "localhost:9092"},
        ...     uncaught_error_handler=restart_if_unreachable)
    """

    REPLACE_WORKER = "replace worker"
    """Start another worker in its place, from the last commit; after a pause that grows."""
    SHUTDOWN_CLIENT = "shut down client"
    """Stop this application in this process, and all workers of its `headrace run`."""
    SHUTDOWN_APPLICATION = "shut down application"
    """Stop the application in all processes and on all hosts."""


UncaughtErrorHandler = Callable[[Exception], UncaughtErrorResponse]
"""Called with the error, in the worker's thread; returns the response."""


class UncaughtErrors:
    """Calls of the uncaught-error handler, and the pauses before a worker is replaced.

    Args:
        handler: the user's handler; None to shut down the client.
        request_shutdown: sends a shutdown request for an error; returns whether it was written.
        quotes_records: whether to log texts that may quote a record.
        limits: limits for the number of replacements, and for their pauses.
    """

    def __init__(
        self,
        handler: UncaughtErrorHandler | None,
        request_shutdown: Callable[[Exception], bool],
        *,
        quotes_records: bool,
        clock: Clock,
        log: Log,
        limits: RestartLimits | None = None,
    ) -> None:
        self._handler = handler
        self._request_shutdown = request_shutdown
        self._quotes_records = quotes_records
        self._clock = clock
        self._log = log
        self._restarts = Restarts(limits or RestartLimits(), Random())  # noqa: S311 - jitter
        self.answer: UncaughtErrorResponse | None = None
        """The last response of the handler."""
        self._handled_error: Exception | None = None
        """The error for which the handler was called last."""
        self._invalid_response: ConfigError | None = None
        """Error about an invalid response."""
        self._has_requested_shutdown = False

    def keeps_partitions(self, error: BaseException | None) -> bool:
        """Call the handler; return whether a worker that ends must keep its partitions.

        It must after a shutdown request to all workers: a worker that gets a partition before the
        request would process the same record.
        """
        if isinstance(error, StopRequestedError) or not isinstance(error, Exception):
            return False
        try:
            self._handle(error)
        except Exception as failure:  # the worker must close regardless
            self._log.error("shutdown_request_failed", reason=type(failure).__name__)
            return False
        return self._has_requested_shutdown and error is self._handled_error

    def pause_s(self, error: Exception, *, started_s: float) -> float:
        """Call the handler; return the pause before a replacement, or raise the error."""
        if self._handler is None or isinstance(error, ShutDownError):
            raise error
        self._handle(error)
        self._handled_error = None
        if self._invalid_response is not None:
            raise self._invalid_response
        if self.answer is not UncaughtErrorResponse.REPLACE_WORKER:
            raise error
        now_s = self._clock.monotonic_s()
        pause_s = self._restarts.pause_s(started_s=started_s, ended_s=now_s)
        if pause_s is None:
            self._log.error("worker_abandoned", reason="it was replaced too often")
            raise error
        self._log_failure(error)
        self._log.warning("worker_replaced", after=type(error).__name__, in_s=round(pause_s, 3))
        return pause_s

    def _handle(self, error: Exception) -> None:
        """Call the handler for an error, at most once per error."""
        if (
            self._handler is None
            or isinstance(error, ShutDownError)
            or error is self._handled_error
        ):
            return
        self._handled_error, self._invalid_response, self._has_requested_shutdown = (
            error,
            None,
            False,
        )
        try:
            self.answer = self._call_handler(self._handler, error)
        except ConfigError as mistake:
            self._invalid_response = mistake
        else:
            is_for_all = self.answer is UncaughtErrorResponse.SHUTDOWN_APPLICATION
            self._has_requested_shutdown = is_for_all and self._request_shutdown(error)

    def _call_handler(
        self, handler: UncaughtErrorHandler, error: Exception
    ) -> UncaughtErrorResponse:
        try:
            answer: object = handler(error)
        except Exception as raised:
            self._log_failure(error)
            what = f"raised {type(raised).__name__}"
            raise ConfigError(f"{_handler_name(handler)} {what}; {_VALID_RESPONSES}") from raised
        if isinstance(answer, UncaughtErrorResponse):
            return answer
        self._log_failure(error)
        is_short = isinstance(answer, str | int | bool | None)
        what = repr(answer)[:80] if is_short else f"a {type(answer).__name__}"
        raise ConfigError(f"{_handler_name(handler)} returned {what}; {_VALID_RESPONSES}")

    def _log_failure(self, error: Exception) -> None:
        log_failure(self._log, describe_failure(error, full=self._quotes_records))


_VALID_RESPONSES = (
    "it must return UncaughtErrorResponse.REPLACE_WORKER, SHUTDOWN_CLIENT or "
    "SHUTDOWN_APPLICATION; the log has the error that it was called with"
)


def _handler_name(handler: UncaughtErrorHandler) -> str:
    location = location_of(handler)
    known = None if location is None else location.absolute or location.name
    return NAME if known is None else f"{NAME} at {known}"
