"""Reports of a worker to its supervisor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.streams.config.client_settings import MAX_POLL_INTERVAL_MS
from headrace.streams.kafka.protocols import Clock, TopicPartition
from headrace.streams.metrics.snapshots import WorkerSnapshot
from headrace.streams.plan.plan import TaskId
from headrace.topology.describe.picture import Picture


@dataclass(frozen=True, slots=True)
class Loaded:
    """Report that the application is loaded and its settings are valid.

    Args:
        state_dir: its state directory on this host, which other applications may share.
        max_poll_interval_ms: time without a poll after which the group removes a member.
    """

    application: str
    shutdown_timeout_ms: int
    max_poll_interval_ms: int = MAX_POLL_INTERVAL_MS
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
class Ended:
    """Report that the worker has closed and exits with this code.

    The exit code of the process is no proof, because user code and libraries may exit with any
    code.
    """

    code: int


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


EVERY_S = 0.5


class Reporter:
    """Background thread that regularly sends the worker's status and its last metrics snapshot."""

    def __init__(
        self,
        send: Callable[[Status | WorkerSnapshot], object],
        status: Callable[[], Status],
        snapshot: Callable[[], WorkerSnapshot | None] = lambda: None,
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self._send = send
        self._status = status
        self._snapshot = snapshot
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
        while not self._ended.is_set():
            self._report()
            self._ended.wait(self._every_s)

    def _report(self) -> None:
        snapshot = self._snapshot()
        if snapshot is not None:
            self._send(snapshot)
        # Last, so that a supervisor that has the status has the snapshot, too.
        self._send(self._status())
