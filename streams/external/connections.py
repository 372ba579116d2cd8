"""The sinks of one worker: connected when they are needed, and left alone while they do not answer.

Positions are asked for beside the worker, on connections of their own; rows are written by the
worker, on one connection for each sink. So each connection is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from headrace.streams.errors import FatalClientError
from headrace.streams.seams.clients import Clock, Log
from headrace.topology.external_sink import (
    ExternalSink,
    SinkBatch,
    SinkConnection,
    SinkFencedError,
    SinkRefusedError,
    SinkUnavailableError,
    SinkUnusableError,
)

RETRY_MIN_S = 0.1
RETRY_MAX_S = 5.0
_TOLD = (SinkUnavailableError, SinkUnusableError, SinkFencedError, SinkRefusedError)

OpenSink = Callable[[ExternalSink, str], SinkConnection]


def open_sink(sink: ExternalSink, name: str) -> SinkConnection:
    """Connect with the sink itself."""
    return sink.open(name)


class SinkFailedError(FatalClientError):
    """A sink failed in a way that it does not say anything of, or cannot be used as it is.

    The worker does not catch it: it stops, and the supervisor may start it again with back-off.
    """

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(node, reason)
        self.node = node
        self.reason = reason

    def __str__(self) -> str:
        return f"the sink of step {self.node} {self.reason}; nothing past its last commit is lost"


@dataclass(slots=True)
class _Trouble:
    """How often a sink has not answered in a row, and when it is asked again."""

    times: int = 0
    next_s: float = 0.0


class SinkConnections:
    """See the module.

    Args:
        open_sink: connects with a sink.
        application_id: positions are kept under it.
    """

    def __init__(self, open_sink: OpenSink, application_id: str, *, clock: Clock, log: Log) -> None:
        self._open_sink = open_sink
        self._application_id = application_id
        self._clock = clock
        self._log = log
        self._writers: dict[str, SinkConnection] = {}
        self._trouble: dict[str, _Trouble] = {}

    def positions(
        self, node: str, sink: ExternalSink, source: str, partitions: Sequence[int]
    ) -> Mapping[int, int] | SinkUnavailableError:
        """Where a sink is; runs beside the worker.

        Returns:
            The positions that there are, or why nobody knows.

        Raises:
            SinkFailedError: the sink cannot be used.
        """
        try:
            with self._told(node):
                connection = self._open(node, sink)
                try:
                    return connection.positions(source, partitions)
                finally:
                    _close(connection)
        except SinkUnavailableError as error:
            return error

    def write(self, node: str, sink: ExternalSink, batch: SinkBatch) -> None:
        """Write a batch.

        Raises:
            SinkFencedError, SinkRefusedError, SinkUnavailableError: as the sink says.
            SinkFailedError: it says something else.
        """
        try:
            with self._told(node):
                connection = self._writers.get(node)
                if connection is None:
                    connection = self._writers[node] = self._open(node, sink)
                connection.write(batch)
        except (SinkFencedError, SinkRefusedError):
            raise
        except BaseException:
            # What it was doing may go on without us: the next connection asks how it ended.
            self._drop(node)
            raise
        trouble = self._trouble.pop(node, None)
        if trouble is not None:
            self._log.info("sink_answers_again", sink=node, attempts=trouble.times)

    # -- sinks that do not answer --------------------------------------------------------------

    def is_asked_now(self, node: str) -> bool:
        """Whether it is not too early to ask a sink that has not answered."""
        trouble = self._trouble.get(node)
        return trouble is None or self._clock.monotonic_s() >= trouble.next_s

    def unavailable(self, node: str, error: SinkUnavailableError) -> None:
        """A sink has not answered: leave it alone for a while."""
        trouble = self._trouble.setdefault(node, _Trouble())
        if not self.is_asked_now(node):
            return  # another task of it was told so in the same turn
        wait_s = min(RETRY_MAX_S, RETRY_MIN_S * 2**trouble.times)
        trouble.times += 1
        trouble.next_s = self._clock.monotonic_s() + wait_s
        # Powers of two: seen at once, and never a flood.
        if trouble.times & (trouble.times - 1) == 0:
            self._log.warning(
                "sink_unavailable",
                sink=node,
                reason=str(error),
                attempts=trouble.times,
                again_in_s=round(wait_s, 1),
                next="nothing is lost: rows are written from the sink's own position when it "
                "answers",
            )

    # -- the connections -----------------------------------------------------------------------

    def _open(self, node: str, sink: ExternalSink) -> SinkConnection:
        return self._open_sink(sink, f"{self._application_id}/{node}")

    def _drop(self, node: str) -> None:
        connection = self._writers.pop(node, None)
        if connection is not None:
            _close(connection)

    def close(self) -> None:
        """Let go of all."""
        for node in list(self._writers):
            self._drop(node)

    @contextmanager
    def _told(self, node: str) -> Iterator[None]:
        """Name the sink in what it raises and nobody reacts to.

        An error's own text may quote a row, and is shown for those alone that say they do not.
        """
        try:
            yield
        except SinkUnusableError as error:
            raise SinkFailedError(node, f"cannot be used: {error}") from error
        except _TOLD:
            raise
        except Exception as error:
            raise SinkFailedError(node, f"raised {type(error).__name__}") from error


def _close(connection: SinkConnection) -> None:
    with suppress(Exception):  # it may be broken, and nothing depends on it
        connection.close()
