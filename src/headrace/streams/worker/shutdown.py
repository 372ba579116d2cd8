"""Shutdown of all processes of an application: sends and receives the shutdown request."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Protocol, Self

from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.settings import SHUTDOWN_ENDING
from headrace.streams.errors import FatalClientError, ShutDownError
from headrace.streams.kafka.acls import AccessError
from headrace.streams.kafka.connectivity import BrokerContact
from headrace.streams.kafka.group_offsets import MemberlessGroup, OpenGroup
from headrace.streams.kafka.protocols import Clock, CommittedOffset, Log, Offsets, TopicPartition
from headrace.streams.plan.plan import SubPlan
from headrace.streams.tasks.failures import describe_failure

# Shutdown request to all workers of an application, on all hosts.
#
# It is stored as offset metadata in the group `<application.id>.shutdown`, at partition 0 of each
# input. So it needs no topic, no port, and no ACL that workers lack. The offset is a timestamp, so
# that the latest request is the largest, even after an older request has expired.
#
#     sender             writes the request, and ends with its error
#     running worker     checks every few seconds, and ends after a larger offset
#     starting worker    ignores existing requests, because earlier shutdowns are complete


LOOK_EVERY_S = 2.0
LAST_LOOK_S = 5.0
"""Seconds that a stop waits for a check in progress."""
_REASON_MAX = 500
_TEXT = re.compile(r"headrace\.shutdown ([A-Za-z0-9+/=_-]*)\.")
"""The text has an end mark, as `headrace.streams.kafka.offset_texts` requires."""


def shutdown_group(application_id: str) -> str:
    """Return the group that stores the shutdown request.

    >>> shutdown_group("word-count")
    'word-count.shutdown'
    """
    return application_id + SHUTDOWN_ENDING


@dataclass(frozen=True, slots=True)
class ShutdownNote:
    """Shutdown request from a worker to all workers; the reason quotes no records.

    Examples:
        >>> note = ShutdownNote("db-3", 41, "RecordError", "in-0 offset 7 cannot be read")
        >>> ShutdownNote.decode(note.encode() + "what was in memory behind it") == note
        True
        >>> ShutdownNote.decode("something else") is None
        True
    """

    host: str
    process: int
    error: str
    reason: str

    @classmethod
    def of(cls, error: str, reason: str) -> ShutdownNote:
        return cls(socket.gethostname(), os.getpid(), error, reason[:_REASON_MAX])

    def encode(self) -> str:
        written = json.dumps(asdict(self), ensure_ascii=False).encode(errors="replace")
        text = base64.urlsafe_b64encode(written).decode()
        return f"headrace.shutdown {text}."

    @classmethod
    def decode(cls, text: str) -> ShutdownNote | None:
        found = _TEXT.match(text)
        try:
            return None if found is None else cls(**json.loads(base64.urlsafe_b64decode(found[1])))
        except (ValueError, TypeError):
            return None


class ShutdownGroup(Protocol):
    """Group of the shutdown request; see `headrace.streams.kafka.group_offsets.OpenGroup`."""

    def committed(self, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the current offsets of partitions."""

    def close(self) -> None:
        """Close the connection."""


def write_note(
    note: ShutdownNote,
    tps: Iterable[TopicPartition],
    *,
    set_offsets: Callable[[Offsets], None],
    clock: Clock,
) -> None:
    """Send a shutdown request to all workers, at partition 0 of the application's inputs."""
    offset = CommittedOffset(clock.now_ms(), note.encode())
    set_offsets(dict.fromkeys(tps, offset))


class ShutdownWatch:
    """Watch for shutdown requests while a worker runs, in a separate thread.

    Args:
        make_notes: opens the group of the shutdown request.
        tps: partition 0 of the application's inputs.
        ended: called after a request, with the error that ends the application.
        wait: sleeps for a number of seconds, and returns whether the watch has ended; for tests.
    """

    def __init__(
        self,
        application_id: str,
        make_notes: Callable[[], ShutdownGroup],
        tps: Iterable[TopicPartition],
        *,
        ended: Callable[[ShutDownError], None],
        log: Log,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._application_id = application_id
        self._make_notes = make_notes
        self._places = sorted(tps)
        self._ended = ended
        self._log = log
        self._over = threading.Event()
        self._wait = wait or self._over.wait
        self._thread = threading.Thread(target=self.watch, name="headrace-shutdown", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(LAST_LOOK_S)

    def watch(self) -> None:
        try:
            notes = self._make_notes()
        except FatalClientError:  # the worker's own clients cannot be made either
            return
        try:
            self._look_on(notes)
        except AccessError as error:
            advice = "grant it, or stop all processes manually after a shutdown request"
            self._log.warning("shutdown_not_looked_for", reason=str(error), advice=advice)
        finally:
            notes.close()

    def _look_on(self, notes: ShutdownGroup) -> None:
        last: int | None = None
        while True:
            found = self._latest(notes)
            if found is not None:
                number, note = found
                if last is not None and number > last and note is not None:
                    self._ended(ShutDownError(self._application_id, **asdict(note)))
                    return
                last = number
            if self._wait(LOOK_EVERY_S):
                return

    def _latest(self, notes: ShutdownGroup) -> tuple[int, ShutdownNote | None] | None:
        """Return the latest shutdown request, or None if the coordinator did not answer."""
        try:
            found = notes.committed(self._places).values()
        except FatalClientError:
            return None
        latest = max(found, key=lambda offset: offset.offset, default=None)
        if latest is None:
            return -1, None
        return latest.offset, ShutdownNote.decode(latest.metadata)


TELL_WITHIN_S = 10.0


class Shutdown:
    """Shutdown request to all workers of an application, on all hosts.

    Args:
        plans: the sub-topologies of the application; the request is stored at their inputs.
    """

    def __init__(
        self, config: StreamsConfig, plans: Sequence[SubPlan], *, clock: Clock, log: Log
    ) -> None:
        self._config = config
        self._group = shutdown_group(config.application_id)
        self._places = {TopicPartition(name, 0) for plan in plans for name in plan.topics.sources}
        self._clock = clock
        self._log = log
        self._heard: ShutDownError | None = None
        self._tells = False

    def watched(self, contact: BrokerContact, stop: Callable[[], None]) -> ShutdownWatch:
        """Return the watch context in which a worker runs; another thread calls `stop`."""

        def ended(error: ShutDownError) -> None:
            if self._tells:  # it is closing, and this may be its own request
                return
            self._heard = error
            self._log.warning("shutdown_heard", host=error.host, process=error.process)
            stop()

        return ShutdownWatch(
            self._config.application_id,
            lambda: OpenGroup(self._config.admin_config(), self._group, contact=contact),
            self._places,
            ended=ended,
            log=self._log,
        )

    def check(self) -> None:
        """Raise a received shutdown request, after the worker has ended."""
        if self._heard is not None:
            raise self._heard

    def tell(self, error: Exception) -> bool:
        """Send a shutdown request to all running workers; return whether it was written."""
        self._tells = True
        failure = describe_failure(error, full=False)
        cluster = MemberlessGroup(
            self._config.admin_config(), timeout_s=TELL_WITHIN_S, stopping=lambda: False
        )
        try:
            write_note(
                ShutdownNote.of(failure.error, failure.reason),
                self._places,
                set_offsets=lambda offsets: cluster.set_offsets(self._group, offsets),
                clock=self._clock,
            )
        except (AccessError, FatalClientError) as unwritten:
            advice = "stop the application's other processes by hand"
            self._log.error("shutdown_not_told", reason=str(unwritten), advice=advice)
            return False
        self._log.warning("shutdown_told", group=self._group)
        return True
