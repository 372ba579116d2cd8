"""What a worker tells its supervisor: one line of JSON for each report (see `report_sender`)."""

from __future__ import annotations

import json
import select
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import msgspec

from headrace.streams.contact.unreached import Unreached
from headrace.streams.facts.snapshots import WorkerSnapshot
from headrace.streams.facts.wire import to_json, worker_of
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.records.failures import Failure
from headrace.streams.seams.clients import Clock, TopicPartition
from headrace.topology.show.picture import Picture


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
    """What stopped the application: the parts of a `headrace.streams.records.failures.Failure`."""

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
