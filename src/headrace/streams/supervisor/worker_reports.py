"""What a worker tells its supervisor: one line of JSON for each report (see `report_sender`)."""

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
from headrace.streams.tasks.failures import Failure
from headrace.topology.describe.picture import Picture


@dataclass(frozen=True, slots=True)
class Loaded:
    """The application is imported and its settings are right.

    Args:
        state_dir: where its state is on this host, which other applications may share.
    """

    application: str
    shutdown_timeout_ms: int
    state_dir: str = ""
    topology: str = ""
    """Tells versions of the topology from each other."""
    picture: Picture | None = None
    """What it looks like."""


@dataclass(frozen=True, slots=True)
class Status:
    """How a worker is doing.

    Args:
        state: the application's, in words.
        restored: changelog offsets that are behind it, of the restores under way.
        to_restore: offsets of these restores in all.
        processed: records since the start.
        commit_age_s: since the last one, in seconds, or None before the first.
        at_s: when this was so, in seconds of the worker's clock.
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
class Failed:
    """What stopped the application: the parts of a `headrace.streams.tasks.failures.Failure`."""

    error: str
    reason: str
    cause: str
    places: list[str]
    traceback: list[str]

    @classmethod
    def of(cls, failure: Failure) -> Failed:
        """Make one that a pipe takes whole: the outermost frames go first."""
        made = cls(**asdict(failure))
        while len(encode(made)) > select.PIPE_BUF:
            parts = asdict(made)
            longest = max(("reason", "places", "traceback"), key=lambda n: len(str(parts[n])))
            part = parts[longest]
            if longest == "reason":
                parts[longest] = _half(part)
            else:
                parts[longest] = part[1:] if len(part) > 1 else [_half(part[0])]
            made = cls(**parts)
        return made

    def failure(self) -> Failure:
        """What it was made of."""
        return Failure(**asdict(self))


def _half(text: str) -> str:
    return text[: len(text) // 2]


@dataclass(frozen=True, slots=True)
class Told:
    """What a worker tells of itself in numbers."""

    facts: WorkerSnapshot


@dataclass(frozen=True, slots=True)
class Ended:
    """The worker has closed, and ends its process with this code.

    The code alone proves nothing: user code and libraries may end a process with any.
    """

    code: int


Report = Loaded | Status | Failed | Unreached | Told | Ended
_KINDS: dict[str, type[Report]] = {
    "loaded": Loaded,
    "status": Status,
    "failed": Failed,
    "unreached": Unreached,
    "ended": Ended,
}
_TOLD = b'{"told": '


def encode(report: Report) -> bytes:
    """Make a line of a report."""
    if isinstance(report, Told):
        return b"%s%s}\n" % (_TOLD, to_json(report.facts))
    kind = next(name for name, kind in _KINDS.items() if isinstance(report, kind))
    return json.dumps({kind: asdict(report)}).encode() + b"\n"


def decode(line: bytes) -> Report:
    """Read a line.

    Example:
        >>> decode(encode(Loaded("word-count", 30_000)))  # doctest: +ELLIPSIS
        Loaded(application='word-count', shutdown_timeout_ms=30000, ..., picture=None)
    """
    if line.startswith(_TOLD):
        # Of many tasks it is long, and the supervisor reads some of them each second.
        return Told(worker_of(line[len(_TOLD) :].rstrip()[:-1]))
    ((kind, fields),) = json.loads(line).items()
    if kind == "loaded":
        return msgspec.convert(fields, Loaded, str_keys=True)
    return _KINDS[kind](**fields)


class Activity:
    """Listens to a worker, and says at any time how it is doing.

    The worker's thread writes and another one reads; each fact is replaced at once, so no lock is
    needed and the worker never waits for one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: Sequence[TaskId] = ()
        self._restoring: dict[TopicPartition, tuple[int, int, int]] = {}
        self._commits = 0
        self._last_commit_s: float | None = None

    def status(self, state: str, processed: int) -> Status:
        """Say how the worker is doing.

        Args:
            processed: records since the start.
        """
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
        """The worker's tasks changed; restores of tasks that left have no end of their own."""
        self._tasks = tuple(tasks)
        here = {task.partition for task in tasks}
        self._restoring = {p: r for p, r in self._restoring.items() if p.partition in here}

    def on_running(self) -> None:
        """All tasks process records."""
        self._restoring = {}

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:  # noqa: ARG002
        """A commit is final."""
        self._commits += 1
        self._last_commit_s = self._clock.monotonic_s()

    def on_restore_start(self, place: TopicPartition, store: str, begin: int, end: int) -> None:  # noqa: ARG002
        """A store's restore begins."""
        self._restoring[place] = (begin, begin, end)

    def on_batch_restored(self, place: TopicPartition, store: str, offset: int, count: int) -> None:  # noqa: ARG002
        """Records were applied."""
        if place in self._restoring:
            begin, _, end = self._restoring[place]
            self._restoring[place] = (begin, min(offset, end), end)

    def on_restore_end(self, place: TopicPartition, store: str, total: int) -> None:  # noqa: ARG002
        """A store is complete."""
        self._restoring.pop(place, None)


# How reports get from a worker to its supervisor: over a socket, and never waited for.
#
# A report is a courtesy. It is written without waiting. What the socket has no room for stays here
# and goes on with the next one; as long as something stays, later reports are dropped. So a
# supervisor that is slow, stopped or gone never delays a worker, a report of any size arrives
# whole,
# and no more than one of them is ever kept. Each says how things are, not what changed, so a
# dropped
# one is made good by the next.
#
# A stream of lines and not of packets: those have a largest size, and not every system has them.


EVERY_S = 0.5
_ROOM_BYTES = 256 << 10


def report_channel() -> tuple[int, int]:
    """Make the supervisor's end and the worker's, as numbers of files."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
    return ours.detach(), theirs.detach()


class ReportSender:
    """The worker's end of the socket.

    Args:
        file: its number; nothing else may write to it.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._rest = b""
        self._lock = threading.Lock()
        os.set_blocking(file, False)

    def send(self, report: Report) -> bool:
        """Write a report if there is room; returns whether anybody may still read."""
        with self._lock:
            if not self._write():
                return False
            if self._rest:
                return True  # nobody reads: this one is dropped
            self._rest = encode(report)
            return self._write()

    def send_surely(self, report: Report, *, within_s: float = 1.0) -> bool:
        """Write a report, waiting for room; returns whether it is written."""
        end_s = time.monotonic() + within_s
        with self._lock:
            self._rest += encode(report)
            while self._write() and self._rest:
                left_s = end_s - time.monotonic()
                if left_s <= 0 or not select.select([], [self._file], [], left_s)[1]:
                    return False
            return not self._rest

    def _write(self) -> bool:
        """Write what is left, as far as there is room; returns whether anybody may still read."""
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._file, self._rest) :]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


class Reporter:
    """Sends how the worker is doing now and then, from a thread of its own.

    Args:
        facts: the worker's last snapshot; None before the first.
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
        told = facts is None or self._sender.send(Told(facts))
        # Behind it: a supervisor that has read how the worker is has its numbers, too.
        return told and self._sender.send(self._status())
