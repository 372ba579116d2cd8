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
from headrace.streams.kafka.connectivity import BrokerMonitor
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


CHECK_INTERVAL_S = 2.0
JOIN_TIMEOUT_S = 5.0
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
class ShutdownRequest:
    """Shutdown request from a worker to all workers; the reason quotes no records.

    Examples:
        >>> request = ShutdownRequest("db-3", 41, "RecordError", "in-0 offset 7 cannot be read")
        >>> ShutdownRequest.decode(request.encode() + "what was in memory behind it") == request
        True
        >>> ShutdownRequest.decode("something else") is None
        True
    """

    host: str
    process: int
    error: str
    reason: str

    @classmethod
    def of(cls, error: str, reason: str) -> ShutdownRequest:
        return cls(socket.gethostname(), os.getpid(), error, reason[:_REASON_MAX])

    def encode(self) -> str:
        written = json.dumps(asdict(self), ensure_ascii=False).encode(errors="replace")
        text = base64.urlsafe_b64encode(written).decode()
        return f"headrace.shutdown {text}."

    @classmethod
    def decode(cls, text: str) -> ShutdownRequest | None:
        match = _TEXT.match(text)
        try:
            return None if match is None else cls(**json.loads(base64.urlsafe_b64decode(match[1])))
        except (ValueError, TypeError):
            return None


class ShutdownGroup(Protocol):
    """Group of the shutdown request; see `headrace.streams.kafka.group_offsets.OpenGroup`."""

    def committed(self, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the current offsets of partitions."""

    def close(self) -> None:
        """Close the connection."""


def write_request(
    request: ShutdownRequest,
    tps: Iterable[TopicPartition],
    *,
    set_offsets: Callable[[Offsets], None],
    clock: Clock,
) -> None:
    """Send a shutdown request to all workers, at partition 0 of the application's inputs."""
    offset = CommittedOffset(clock.now_ms(), request.encode())
    set_offsets(dict.fromkeys(tps, offset))


class ShutdownWatch:
    """Watch for shutdown requests while a worker runs, in a separate thread.

    Args:
        open_group: opens the group of the shutdown request.
        tps: partition 0 of the application's inputs.
        on_request: called after a request, with the error that ends the application.
        wait: sleeps for a number of seconds, and returns whether the watch has ended; for tests.
    """

    def __init__(
        self,
        application_id: str,
        open_group: Callable[[], ShutdownGroup],
        tps: Iterable[TopicPartition],
        *,
        on_request: Callable[[ShutDownError], None],
        log: Log,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._application_id = application_id
        self._open_group = open_group
        self._tps = sorted(tps)
        self._on_request = on_request
        self._log = log
        self._has_ended = threading.Event()
        self._wait = wait or self._has_ended.wait
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
        self._has_ended.set()
        self._thread.join(JOIN_TIMEOUT_S)

    def watch(self) -> None:
        try:
            group = self._open_group()
        except FatalClientError:  # the worker's own clients cannot be made either
            return
        try:
            self._poll_requests(group)
        except AccessError as error:
            advice = "grant it, or stop all processes manually after a shutdown request"
            self._log.warning("shutdown_requests_unreadable", reason=str(error), advice=advice)
        finally:
            group.close()

    def _poll_requests(self, group: ShutdownGroup) -> None:
        last: int | None = None
        while True:
            latest = self._latest_request(group)
            if latest is not None:
                offset, request = latest
                if last is not None and offset > last and request is not None:
                    self._on_request(ShutDownError(self._application_id, **asdict(request)))
                    return
                last = offset
            if self._wait(CHECK_INTERVAL_S):
                return

    def _latest_request(self, group: ShutdownGroup) -> tuple[int, ShutdownRequest | None] | None:
        """Return the latest shutdown request, or None if the coordinator did not answer."""
        try:
            offsets = group.committed(self._tps).values()
        except FatalClientError:
            return None
        latest = max(offsets, key=lambda offset: offset.offset, default=None)
        if latest is None:
            return -1, None
        return latest.offset, ShutdownRequest.decode(latest.metadata)


SEND_TIMEOUT_S = 10.0


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
        self._tps = {TopicPartition(name, 0) for plan in plans for name in plan.topics.sources}
        self._clock = clock
        self._log = log
        self._received: ShutDownError | None = None
        self._is_sending = False

    def watched(self, brokers: BrokerMonitor, stop: Callable[[], None]) -> ShutdownWatch:
        """Return the watch context in which a worker runs; another thread calls `stop`."""

        def on_request(error: ShutDownError) -> None:
            if self._is_sending:  # it is closing, and this may be its own request
                return
            self._received = error
            self._log.warning("shutdown_request_received", host=error.host, process=error.process)
            stop()

        return ShutdownWatch(
            self._config.application_id,
            lambda: OpenGroup(self._config.admin_config(), self._group, brokers=brokers),
            self._tps,
            on_request=on_request,
            log=self._log,
        )

    def check(self) -> None:
        """Raise a received shutdown request, after the worker has ended."""
        if self._received is not None:
            raise self._received

    def request(self, error: Exception) -> bool:
        """Send a shutdown request to all running workers; return whether it was written."""
        self._is_sending = True
        failure = describe_failure(error, full=False)
        cluster = MemberlessGroup(
            self._config.admin_config(), timeout_s=SEND_TIMEOUT_S, stopping=lambda: False
        )
        try:
            write_request(
                ShutdownRequest.of(failure.error, failure.reason),
                self._tps,
                set_offsets=lambda offsets: cluster.set_offsets(self._group, offsets),
                clock=self._clock,
            )
        except (AccessError, FatalClientError) as unwritten:
            advice = "stop the application's other processes manually"
            self._log.error("shutdown_request_failed", reason=str(unwritten), advice=advice)
            return False
        self._log.warning("shutdown_requested", group=self._group)
        return True
