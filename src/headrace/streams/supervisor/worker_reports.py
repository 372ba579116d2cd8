"""Reports of a worker to its supervisor: a line of JSON each."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from headrace.streams.kafka.protocols import Clock, TopicPartition
from headrace.streams.kafka.unreached import Unreached
from headrace.streams.metrics.snapshots import WorkerSnapshot, to_json, worker_of
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.failures import FailureReport
from headrace.topology.describe.picture import Picture


@dataclass(frozen=True, slots=True)
class Loaded:
    """Report that the application is loaded and its settings are valid.

    Args:
        state_dir: its state directory on this host, which other applications may share.
    """

    application: str
    shutdown_timeout_ms: int
    state_dir: str = ""
    topology: str = ""
    """Digest of the topology's version."""
    picture: Picture | None = None
    """Drawing of the topology."""


@dataclass(frozen=True, slots=True)
class Status:
    """Status of a worker.

    Args:
        state: the application's state, as text.
        restored: changelog offsets already restored by the current restores.
        to_restore: total changelog offsets of the current restores.
        processed: records since the start.
        commit_age_s: age of the last commit in seconds; None before the first.
        at_s: time of this report, in seconds of the worker's clock.
    """

    state: str
    tasks: int
    restored: int
    to_restore: int
    processed: int
    commits: int
    commit_age_s: float | None
    at_s: float


@dataclass(frozen=True, slots=True)
class MetricsReport:
    """Metrics snapshot of a worker."""

    facts: WorkerSnapshot


@dataclass(frozen=True, slots=True)
class Ended:
    """Report that the worker has closed and exits with this code.

    The exit code of the process is no proof, because user code and libraries may exit with any
    code.
    """

    code: int


Report = Loaded | Status | FailureReport | Unreached | MetricsReport | Ended
_KINDS: dict[str, type[Report]] = {
    "loaded": Loaded,
    "status": Status,
    "failed": FailureReport,
    "unreached": Unreached,
    "ended": Ended,
}
_TOLD = b'{"told": '


def encode(report: Report) -> bytes:
    if isinstance(report, MetricsReport):
        return b"%s%s}\n" % (_TOLD, to_json(report.facts))
    kind = next(name for name, kind in _KINDS.items() if isinstance(report, kind))
    return json.dumps({kind: asdict(report)}).encode() + b"\n"


def fitted(failure: FailureReport) -> FailureReport:
    """Shorten a failure to a report that fits into a pipe's buffer, outermost frames first."""
    while len(encode(failure)) > select.PIPE_BUF:
        parts = asdict(failure)
        longest = max(("reason", "places", "traceback"), key=lambda n: len(str(parts[n])))
        part = parts[longest]
        if longest == "reason":
            parts[longest] = _half(part)
        else:
            parts[longest] = part[1:] if len(part) > 1 else [_half(part[0])]
        failure = FailureReport(**parts)
    return failure


def _half(text: str) -> str:
    return text[: len(text) // 2]


def decode(line: bytes) -> Report:
    """Decode a line.

    >>> decode(encode(Loaded("word-count", 30_000)))  # doctest: +ELLIPSIS
    Loaded(application='word-count', shutdown_timeout_ms=30000, ..., picture=None)
    """
    if line.startswith(_TOLD):
        # Decoded by msgspec because it is long with many tasks and sent several times per second.
        return MetricsReport(worker_of(line[len(_TOLD) :].rstrip()[:-1]))
    ((kind, fields),) = json.loads(line).items()
    if kind == "loaded":
        return msgspec.convert(fields, Loaded, str_keys=True)
    return _KINDS[kind](**fields)


class Activity:
    """Listener of a worker that returns its status at any time.

    The worker's thread writes and another thread reads; each field is replaced atomically, so no
    lock is required and the worker never waits.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: Sequence[TaskId] = ()
        self._restoring: dict[TopicPartition, tuple[int, int, int]] = {}
        self._commits = 0
        self._last_commit_s: float | None = None

    def status(self, state: str, processed: int) -> Status:
        now_s = self._clock.monotonic_s()
        last_s = self._last_commit_s
        restoring = list(self._restoring.copy().values())
        return Status(
            state=state,
            tasks=len(self._tasks),
            restored=sum(reached - begin for begin, reached, _ in restoring),
            to_restore=sum(end - begin for begin, _, end in restoring),
            processed=processed,
            commits=self._commits,
            commit_age_s=None if last_s is None else round(now_s - last_s, 3),
            at_s=now_s,
        )

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """Handle changed tasks; restores of revoked tasks have no end event."""
        self._tasks = tuple(tasks)
        here = {task.partition for task in tasks}
        self._restoring = {p: r for p, r in self._restoring.items() if p.partition in here}

    def on_running(self) -> None:
        self._restoring = {}

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:  # noqa: ARG002
        self._commits += 1
        self._last_commit_s = self._clock.monotonic_s()

    def on_restore_start(self, tp: TopicPartition, store: str, begin: int, end: int) -> None:  # noqa: ARG002
        self._restoring[tp] = (begin, begin, end)

    def on_batch_restored(self, tp: TopicPartition, store: str, offset: int, count: int) -> None:  # noqa: ARG002
        if tp in self._restoring:
            begin, _, end = self._restoring[tp]
            self._restoring[tp] = (begin, min(offset, end), end)

    def on_restore_end(self, tp: TopicPartition, store: str, total: int) -> None:  # noqa: ARG002
        self._restoring.pop(tp, None)


# Transport of reports from a worker to its supervisor, over a socket and without blocking.
#
# The rest of a report that does not fit into the socket's buffer is kept and sent with the next
# report; until then, further reports are dropped. So a slow, stopped or lost supervisor never
# delays a worker, a report of any size arrives whole, and at most one report is kept. Each report
# contains the whole state rather than changes, so the next report replaces a dropped report.
#
# A stream socket, because packet sockets limit the size and are not available on every system.


EVERY_S = 0.5
_ROOM_BYTES = 256 << 10


def report_channel() -> tuple[int, int]:
    """Create a socket pair; return the file descriptors of the supervisor and of the worker."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
    return ours.detach(), theirs.detach()


class ReportSender:
    """Worker's end of the report socket.

    Args:
        file: its file descriptor; nothing else may write to it.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._rest = b""
        self._lock = threading.Lock()
        os.set_blocking(file, False)

    def send(self, report: Report) -> bool:
        """Send a report without blocking; return whether the supervisor may still read."""
        with self._lock:
            if not self._write():
                return False
            if self._rest:
                return True  # the buffer is full: drop the report
            self._rest = encode(report)
            return self._write()

    def send_surely(self, report: Report, *, within_s: float = 1.0) -> bool:
        """Send a report, waiting for buffer space; return whether it was sent."""
        end_s = time.monotonic() + within_s
        with self._lock:
            self._rest += encode(report)
            while self._write() and self._rest:
                left_s = end_s - time.monotonic()
                if left_s <= 0 or not select.select([], [self._file], [], left_s)[1]:
                    return False
            return not self._rest

    def _write(self) -> bool:
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._file, self._rest) :]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


class Reporter:
    """Background thread that regularly sends the worker's status.

    Args:
        facts: returns the worker's last metrics snapshot; None before the first.
    """

    def __init__(
        self,
        sender: ReportSender,
        status: Callable[[], Status],
        facts: Callable[[], WorkerSnapshot | None] = lambda: None,
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self._sender = sender
        self._status = status
        self._facts = facts
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-reports", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._thread.join(self._every_s * 2)
        self._report()

    def _run(self) -> None:
        while not self._ended.is_set() and self._report():
            self._ended.wait(self._every_s)

    def _report(self) -> bool:
        facts = self._facts()
        told = facts is None or self._sender.send(MetricsReport(facts))
        # Last, so that a supervisor that has the status has the snapshot, too.
        return told and self._sender.send(self._status())
