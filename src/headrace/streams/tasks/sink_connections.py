"""Connections of a worker to external sinks, and the positions at which their tasks start.

Positions are read in the background, on separate connections. The worker itself writes rows, on one
connection per sink. So each connection is used by one thread at a time. A sink that does not answer
is asked again with a backoff.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from headrace.streams.errors import FatalClientError, StreamsError
from headrace.streams.kafka.protocols import Clock, CommittedOffset, Log, Offsets, TopicPartition
from headrace.streams.plan.progress import OffsetMetadata
from headrace.streams.tasks.failures import is_log_worthy, is_user_code
from headrace.topology.external_sink import (
    ExternalSink,
    SinkBatch,
    SinkBatching,
    SinkConnection,
    SinkFencedError,
    SinkRefusedError,
    SinkUnavailableError,
    SinkUnusableError,
)
from headrace.topology.graph.graph import Node

RETRY_MIN_S = 0.1
RETRY_MAX_S = 5.0
FAILED_ROWS_MAX = 10
"""Number of failed rows without a successful write after which the sink itself is at fault."""
_VALUE_ERRORS = (TypeError, ValueError, ArithmeticError)
"""Errors that a value which cannot be written raises; errors of lost connections differ."""
_PASSWORD = re.compile(r"(?<=://)[^@/\s]+(?=@)")
_SINK_ERRORS = (SinkUnavailableError, SinkUnusableError, SinkFencedError, SinkRefusedError)

OpenSink = Callable[[ExternalSink, str], SinkConnection]


def open_sink(sink: ExternalSink, name: str) -> SinkConnection:
    return sink.open(name)


class SinkFailedError(FatalClientError):
    """Unexpected error of an external sink.

    The worker does not catch it: it stops, and the supervisor may restart it with backoff.
    """

    def __init__(self, node: str, reason: str, more: str = "") -> None:
        super().__init__(node, reason, more)
        self.node = node
        self.reason = reason
        self.more = more

    def __str__(self) -> str:
        text = f"the sink of step {self.node} {self.reason}; nothing past its last commit is lost"
        return f"{text}; {self.more}" if self.more else text


class UnusableSinkError(StreamsError):
    """An external sink reports that it needs intervention by an operator.

    It is not handled, because the next start would fail in the same way.
    """

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(node, reason)
        self.node = node
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"the sink of step {self.node} cannot be used: {self.reason}; nothing past its last "
            "commit is lost"
        )


class SinkBugError(SinkRefusedError):
    """The code of an external sink raised an error about a batch; handled like a refused row.

    If it was raised after the sink's commit, the next write of the position is fenced.
    """


@dataclass(slots=True)
class _Outage:
    """Failed attempts of an external sink in a row, and the time of the next attempt."""

    times: int = 0
    next_s: float = 0.0
    reason: str = ""
    answers: bool = False
    """Whether the sink has returned its positions since the last failure."""


class SinkConnections:
    """External sinks of a worker: connected on demand, retried later if they do not answer."""

    def __init__(self, open_sink: OpenSink, application_id: str, *, clock: Clock, log: Log) -> None:
        self._open_sink = open_sink
        self._application_id = application_id
        self._clock = clock
        self._log = log
        self._writers: dict[str, SinkConnection] = {}
        self._batching: dict[str, SinkBatching | None] = {}
        self._outages: dict[str, _Outage] = {}
        self._failed_rows: dict[str, int] = {}
        """By sink that has never written a row: the number of rows that its code failed on."""
        self._has_written: set[str] = set()
        self._known: set[str] = set()
        """Sinks that were checked for positions of other applications."""

    def positions(
        self, node: str, sink: ExternalSink, source: str, partitions: Sequence[int]
    ) -> Mapping[int, int] | SinkUnavailableError:
        """Return positions, in the background, or the error if the sink does not answer."""
        try:
            with self._named(node):
                connection = self._open(node, sink)
                try:
                    self._batching[node] = getattr(connection, "batching", None)
                    positions = connection.positions(source, partitions)
                    if not positions and node not in self._known:
                        self._warn_of_others(node, connection)
                    self._known.add(node)
                finally:
                    _close(connection)
        except SinkUnavailableError as error:
            return error
        outage = self._outages.get(node)
        if outage is not None:
            outage.answers = True
        return positions

    def _warn_of_others(self, node: str, connection: SinkConnection) -> None:
        """Warn of positions under other application IDs: a renamed application repeats its rows."""
        keepers = getattr(connection, "keepers", None)
        names = [] if keepers is None else keepers()
        if self.name_of(node) in names:
            return
        split_names = (name.rpartition("/") for name in names)
        others = sorted(application for application, _, step in split_names if step == node)
        if others:
            self._log.warning(
                "sink_positions_conflict",
                sink=node,
                application=self._application_id,
                others=others,
                next="positions are stored under application.id and operator: if this application "
                "was renamed, it writes existing rows again; stop it, and start it under its old "
                "application.id, or empty the table. If the other applications write to other "
                "tables, no action is needed",
            )

    def batching(self, node: str) -> SinkBatching | None:
        """Return the batching that a sink requested when its positions were read."""
        return self._batching.get(node)

    def write(self, node: str, sink: ExternalSink, batch: SinkBatch) -> None:
        """Write a batch; unexpected errors become a `SinkBugError` or a `SinkFailedError`."""
        try:
            with self._named(node):
                connection = self._writers.get(node)
                if connection is None:
                    connection = self._writers[node] = self._open(node, sink)
            with self._named(node, has_rows=bool(batch.rows)):
                connection.write(batch)
        except SinkBugError:
            self._drop(node)
            raise
        except (SinkFencedError, SinkRefusedError):
            raise
        except BaseException:
            # The write may still complete; the next connection checks how it ended.
            self._drop(node)
            raise
        if batch.rows:
            self._has_written.add(node)
        outage = self._outages.pop(node, None)
        if outage is not None:
            self._log.info("sink_recovered", sink=node, attempts=outage.times)

    def row_refused(self, node: str, error: SinkRefusedError) -> None:
        """Count a row refused by the sink's code; raise at `FAILED_ROWS_MAX` if none is written."""
        if not isinstance(error, SinkBugError) or node in self._has_written:
            return
        times = self._failed_rows[node] = self._failed_rows.get(node, 0) + 1
        if times >= FAILED_ROWS_MAX:
            raise UnusableSinkError(node, f"none of {times} rows was written: {error}") from error

    # -- sinks that do not answer --------------------------------------------------------------

    def is_due(self, node: str) -> bool:
        outage = self._outages.get(node)
        return outage is None or self._clock.monotonic_s() >= outage.next_s

    def unavailable(self, node: str, error: SinkUnavailableError) -> None:
        outage = self._outages.setdefault(node, _Outage())
        if not self.is_due(node):
            return  # another task of this sink has failed in the same turn
        wait_s = min(RETRY_MAX_S, RETRY_MIN_S * 2**outage.times)
        outage.times += 1
        outage.reason, outage.answers = str(error), False
        outage.next_s = self._clock.monotonic_s() + wait_s
        if is_log_worthy(outage.times):
            self._log.warning(
                "sink_unavailable",
                sink=node,
                reason=str(error),
                attempts=outage.times,
                again_in_s=round(wait_s, 1),
                next="nothing is lost: rows are written from the sink's own position when it "
                "answers",
            )

    def unanswered(self) -> Mapping[str, str]:
        return {node: t.reason for node, t in self._outages.items() if not t.answers}

    # -- the connections -----------------------------------------------------------------------

    def name_of(self, node: str) -> str:
        """Return the name under which a sink stores the positions of an operator."""
        return f"{self._application_id}/{node}"

    def _open(self, node: str, sink: ExternalSink) -> SinkConnection:
        return self._open_sink(sink, self.name_of(node))

    def _drop(self, node: str) -> None:
        connection = self._writers.pop(node, None)
        if connection is not None:
            _close(connection)

    def close(self) -> None:
        for node in list(self._writers):
            self._drop(node)

    @contextmanager
    def _named(self, node: str, *, has_rows: bool = False) -> Iterator[None]:
        """Name the sink in unexpected errors, and omit their text if it may quote a row."""
        try:
            yield
        except SinkUnusableError as error:
            raise UnusableSinkError(node, str(error)) from error
        except _SINK_ERRORS:
            raise
        except Exception as error:
            name, location = type(error).__name__, _user_location(error)
            raised_at = f"raised at {location}" if location else ""
            if not has_rows:
                text = _PASSWORD.sub("***", str(error)).strip()
                raise SinkFailedError(node, f"raised {name}: {text}", raised_at) from error
            if isinstance(error, _VALUE_ERRORS):
                where = f" at {location}" if location else ""
                raise SinkBugError(f"the sink raised {name}{where}") from error
            more = "log.errors=full has its text in the log"
            raise SinkFailedError(
                node, f"raised {name}", "; ".join(filter(None, (raised_at, more)))
            ) from error


def _user_location(error: BaseException) -> str | None:
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if is_user_code(frame.filename)]
    return f"{user_frames[-1].filename}:{user_frames[-1].lineno}" if user_frames else None


def _close(connection: SinkConnection) -> None:
    with suppress(Exception):  # it may be broken, and nothing depends on it
        connection.close()


# Start positions of tasks with external sinks: the position of the sink, not of the group.


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Position of an external sink in a partition.

    Args:
        source: the name and the ID of the topic that positions refer to.
        position: None if the sink has no position.
        error: the error if the sink does not answer.
        batching: the batching that the sink requests.
        name: the name under which the sink stores its positions.
    """

    source: str
    position: int | None = None
    error: SinkUnavailableError | None = None
    batching: SinkBatching | None = None
    name: str = ""


def sink_offsets(
    start: Offsets, sink_position: StartPosition, node: Node, log: Log, *, is_committed: bool
) -> Offsets:
    """Return the offset at which a task with an external sink starts.

    The group's offset is committed after the sink's position, and may also be past control records.
    A sink whose position is before an offset that was committed earlier was reset, for example
    restored from a backup: its rows are written again from its position. `is_committed` is whether
    `start` is a committed offset, not the beginning or the end of the topic.
    """
    ((tp, committed),) = start.items()
    written = OffsetMetadata.decode(committed.metadata).values.get(f"written.{node.name}", -1)
    position = sink_position.position
    if position is None and written >= 0:
        raise UnusableSinkError(node.name, _lost_position_message(sink_position, tp, written))
    if position is None:
        return start
    if position >= written:
        # Do not silently skip records of a source that were deleted.
        if is_committed or not node.reads_directly:
            position = max(position, committed.offset)
    else:
        log.warning(
            "sink_position_rewound",
            sink=node.name,
            partition=str(tp),
            position=position,
            committed=written,
            next="rows are written again from its position, if the topic still has their records",
        )
    return {tp: CommittedOffset(position, committed.metadata)}


def _lost_position_message(sink_position: StartPosition, tp: TopicPartition, written: int) -> str:
    return (
        f"it has no position for {tp}, and had {written}: its table was emptied or replaced. If "
        "the rows exist, or are not wanted, insert the position again (in a database: into "
        f"headrace_positions, name '{sink_position.name}', source '{sink_position.source}', "
        f"partition {tp.partition}, next {written}; for each partition), or restore both from "
        "a backup; to write all rows again, empty the table and run headrace reset"
    )
