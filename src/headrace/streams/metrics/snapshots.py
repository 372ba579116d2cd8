"""An application in numbers at one moment: application > worker > task > store, input partition.

Nodes stand beside the tasks: all tasks of a sub-topology run the same code. Everything is a plain
number or text, and nothing refers to what runs, so a snapshot can be read by any thread and sent to
another process. Counts begin with the worker's process. Those of records count what was processed
again after an abort again; `committed` counts nothing twice.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from headrace import __version__
from headrace.streams.metrics.counters import Distribution
from headrace.streams.plan.plan import SubPlan
from headrace.streams.states import State
from headrace.topology.describe.picture import Picture

SILENT_S = 10.0
"""What a worker told so long ago says nothing of how it is now: about as long as the group waits
for a member that is silent before it gives its tasks to others."""
SILENT = "silent"
"""The state of a worker that was at work and has told nothing for so long."""
_AT_WORK = frozenset({"rebalancing", "running", "paused"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSnapshot:
    """An input partition of a task that runs.

    Args:
        internal: whether the application writes the topic itself, between two sub-topologies.
        committed: the offset that the next record has, as it is committed.
        processed: the same, as far as records were processed.
        end: the last stable offset, as far as the worker has heard; None before that.
        queued: records that wait in the worker.
        behind_ms: how far the records that come next may be behind the clock; 0 without a lag.
    """

    topic: str
    partition: int
    internal: bool
    committed: int
    processed: int
    end: int | None
    queued: int
    behind_ms: int

    @property
    def lag(self) -> int | None:
        """Offsets between what is committed and the end; markers of transactions count too."""
        return None if self.end is None else max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """A key that changes often, see `hot.keys.max`; it is data, and nothing logs it.

    Args:
        key: its bytes; of windows and sessions without their times.
        share: about which part of the last commits that wrote to the store has written it, from 0
            to 1; a commit counts half as much for each minute that it is old.
        over: by how much that may be too much.
    """

    key: bytes
    share: float
    over: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSnapshot:
    """A store of a task.

    Args:
        keys: how many rows are committed; looked at now and then.
        is_counted: whether that is exact: few rows are counted, and RocksDB estimates many, of
            which some may count each time that they were written.
        size_bytes: about what they take on disk or in memory; likewise.
        uncommitted_bytes: about what rows take that no commit holds yet.
        cached_bytes: about what committed rows take that are kept for reading.
        cache_hits: rows that commits changed without reading the store, as they were kept.
        cache_misses: rows that were not there and were read from the store, since the task began.
        restore_remaining: offsets of its changelog that are still to be read.
        hot_keys: those that change most, where the setting ``hot.keys.max`` asks for them; none
            over HTTP, where ``/api/hot-keys`` has them for whoever may read rows.
    """

    name: str
    keys: int
    is_counted: bool
    size_bytes: int
    uncommitted_bytes: int
    cached_bytes: int
    cache_hits: int
    cache_misses: int
    restore_remaining: int
    hot_keys: tuple[HotKey, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSnapshot:
    """A task that the worker owns.

    Args:
        id: sub-topology and partition, as ``0_3``.
        state: "waiting" for what the cluster says, "restoring" or "running"; "silent" where its
            worker was at work and has told nothing for `SILENT_S`.
        state_s: for how long, in seconds.
        unready_s: for how long it has not run, in seconds: since it did so last in this worker, or
            since the worker got it. 0 while it runs.
        processed: records of chunks that went through, those of aborted transactions included.
        committed: records whose commits are final.
    """

    id: str
    sub_topology: int
    partition: int
    state: str
    state_s: float
    processed: int
    committed: int
    inputs: tuple[InputSnapshot, ...] = ()
    stores: tuple[StoreSnapshot, ...] = ()
    unready_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """A node of the topology, over all tasks of a worker.

    Args:
        dropped: records that it left out, by reason.
        own_s: about how long it ran, in seconds, without functions of the user.
        user_s: about how long functions of the user ran that it calls.
    """

    sub_topology: int
    name: str
    dropped: Mapping[str, int] = field(default_factory=dict)
    own_s: float = 0.0
    user_s: float = 0.0

    @property
    def late(self) -> int:
        """Records that came too late, in whole or for some of their windows."""
        return sum(count for reason, count in self.dropped.items() if reason.startswith("late"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySnapshot:
    """How old records were when a sub-topology had committed them.

    From the timestamp of the oldest record that a batch began with to the end of its commit.
    """

    sub_topology: int
    latency: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNumber:
    """What the processors of a node counted themselves."""

    node: str
    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """A worker at one moment.

    Args:
        id: the worker's identity.
        at_s: when this was so, in seconds of a clock of this host that never goes back.
        at_ms: the same by the wall clock, in milliseconds since 1970.
        is_running: whether it has tasks, and all of them process records.
        is_paused: whether it was told to process nothing.
        processed: records of chunks that went through, those of aborted transactions included.
        committed: records whose commits are final.
        undecided: records of commits of which the brokers did not say whether they were made. They
            are in neither until a task begins again and shows it, and stay here where none does.
        commits: those that are final.
        commit_latency: how long commits took, up to the rows in local state; one that fails behind
            its transaction is not in it.
        rebalances: times that the group gave partitions, or said that some were lost.
        aborted: transactions that were open and came to nothing, empty ones included.
        reactions: what went wrong and was put right, by what was done.
        producers_replaced: new producers, in place of those that were of no more use.
        restored: changelog records that were applied; those of a restore that begins anew again.
        restored_per_s: the same by second, since the snapshot before.
        cpu_s: processor time of the process, in seconds; None where nobody tells.
        memory_bytes: memory of the process; None where nobody tells.
        busy_s: about how long its thread did what, in seconds.
        numbers: what processors counted.
        sent: records that were sent to each topic, changelogs too, those of aborted transactions
            included; the client tells it every two seconds.
    """

    id: str
    at_s: float
    at_ms: int
    is_running: bool
    is_paused: bool
    processed: int
    committed: int
    undecided: int = 0
    commits: int
    commit_latency: Distribution
    latencies: tuple[LatencySnapshot, ...]
    rebalances: int
    aborted: int
    reactions: Mapping[str, int]
    producers_replaced: int
    restored: int
    restored_per_s: float
    cpu_s: float | None
    memory_bytes: int | None
    busy_s: Mapping[str, float]
    nodes: tuple[NodeSnapshot, ...]
    tasks: tuple[TaskSnapshot, ...]
    numbers: tuple[OwnNumber, ...]
    sent: Mapping[str, int] = field(default_factory=dict)

    def age_s(self, now_s: float) -> float:
        """How old it is, in seconds of the clock of `at_s`: much, where the worker is stuck."""
        return max(0.0, now_s - self.at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One of an application's workers on a host, as it is known there.

    Args:
        index: the worker's number, from 0.
        state: of its application, in words.
        pid: its process; None while there is none.
        restarts: how often it was started again.
        facts: the last that it told, of a process that has ended, too; None before the first.
    """

    index: int
    state: str
    pid: int | None
    restarts: int
    facts: WorkerSnapshot | None

    def state_at(self, now_s: float) -> str:
        """Its state, or "silent" where it was at work and has told nothing for `SILENT_S`.

        Args:
            now_s: the present second of the clock of `facts.at_s`.
        """
        if self.pid is None or self.facts is None or self.state not in _AT_WORK:
            return self.state
        return SILENT if self.facts.age_s(now_s) > SILENT_S else self.state

    def at(self, now_s: float) -> WorkerView:
        """The same as it is then: of one that is silent no rate is known, nor what its tasks do.

        Args:
            now_s: the present second of the clock of `facts.at_s`.
        """
        state = self.state_at(now_s)
        if state != SILENT or self.facts is None:
            return self
        silent_s = self.facts.age_s(now_s)
        tasks = tuple(replace(t, state=SILENT, state_s=silent_s) for t in self.facts.tasks)
        facts = replace(self.facts, restored_per_s=0.0, is_running=False, tasks=tasks)
        return replace(self, state=state, facts=facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationSnapshot:
    """An application as one host knows it.

    Args:
        version: of this library.
        topology: tells versions of the topology from each other; empty while it is not loaded.
    """

    application: str
    version: str
    topology: str
    workers: tuple[WorkerView, ...]

    def at(self, now_s: float) -> ApplicationSnapshot:
        """The same as it is then, see `WorkerView.at`."""
        return replace(self, workers=tuple(view.at(now_s) for view in self.workers))

    @property
    def facts(self) -> tuple[WorkerSnapshot, ...]:
        """What the workers told, of those that have told anything."""
        return tuple(view.facts for view in self.workers if view.facts is not None)

    @property
    def tasks(self) -> tuple[TaskSnapshot, ...]:
        """The tasks of all workers, in order."""
        # What has ended has no tasks any more: others have them.
        here = [view.facts for view in self.workers if view.pid is not None and view.facts]
        found = [task for facts in here for task in facts.tasks]
        return tuple(sorted(found, key=lambda task: (task.sub_topology, task.partition)))

    @property
    def inputs(self) -> tuple[InputSnapshot, ...]:
        """The input partitions of all tasks that run."""
        return tuple(one for task in self.tasks for one in task.inputs)


# What whoever looks after an application knows of it at one moment, for those who ask.


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSnapshot:
    """Health of an application at one moment, shared with other threads.

    Args:
        facts: the application and its workers.
        turned_s: when the loop that looks after the workers turned last, in seconds of the clock
            of the snapshots' `at_s`.
        is_loaded: whether the application was loaded, and its settings are right.
        picture: what the topology looks like; None before it is loaded.
        is_given_up: whether a worker has failed for good, and the others are told to stop.
        why: what has come to pass then, in words.
    """

    facts: ApplicationSnapshot
    turned_s: float
    is_loaded: bool
    is_given_up: bool
    why: str = "a worker is given up"
    picture: Picture | None = None


# An application that runs in this process, in numbers.


def digest_of(plans: Sequence[SubPlan]) -> str:
    """What tells versions of a topology from each other: of the code that is made of it."""
    digest = hashlib.sha256()
    for plan in plans:
        digest.update(plan.program.source_code.encode())
    return digest.hexdigest()[:12]


def embedded(
    application: str,
    digest: str,
    state: str,
    facts: WorkerSnapshot | None,
    added: Sequence[WorkerView] = (),
) -> ApplicationSnapshot:
    """The application with its own worker, and those that were added."""
    own = WorkerView(index=0, state=state, pid=os.getpid(), restarts=0, facts=facts)
    return ApplicationSnapshot(
        application=application, version=__version__, topology=digest, workers=(own, *added)
    )


def board_of(
    facts: ApplicationSnapshot, now_s: float, picture: Picture | None = None
) -> HealthSnapshot:
    """What is known of it; no loop looks after it, so none can have stopped to turn."""
    over = (State.PENDING_ERROR.value, State.ERROR.value)
    given_up = any(view.state in over for view in facts.workers)
    return HealthSnapshot(
        facts=facts,
        turned_s=now_s,
        is_loaded=True,
        is_given_up=given_up,
        picture=picture,
        why="the application in this process was stopped by an error",
    )


# Leaves out tasks that a worker told of and another one has by now.
#
# A worker that is frozen or cut off keeps its last word, with tasks that the group has given to
# others since. Snapshots of one host share a clock, so who began with a task later has it.


def without_taken(app: ApplicationSnapshot) -> ApplicationSnapshot:
    """The application with each task at one worker: at the one that began with it last."""
    began: dict[str, tuple[float, float]] = {}
    is_twice = False
    for facts in _here(app):
        for task in facts.tasks:
            known = began.get(task.id)
            is_twice = is_twice or known is not None
            began[task.id] = max(_began(facts, task), known or (float("-inf"), 0.0))
    if not is_twice:
        return app
    return replace(app, workers=tuple(_left(view, began) for view in app.workers))


def _here(app: ApplicationSnapshot) -> list[WorkerSnapshot]:
    return [view.facts for view in app.workers if view.facts and view.pid is not None]


def _began(facts: WorkerSnapshot, task: TaskSnapshot) -> tuple[float, float]:
    """When the task came into its state; of two at once, what was told later holds."""
    return facts.at_s - task.state_s, facts.at_s


def _left(view: WorkerView, began: dict[str, tuple[float, float]]) -> WorkerView:
    facts = view.facts
    if facts is None or view.pid is None:
        return view
    tasks = tuple(task for task in facts.tasks if _began(facts, task) == began[task.id])
    return replace(view, facts=replace(facts, tasks=tasks))


# Snapshots as JSON: between processes, and for whoever asks over the web.


_WORKER = msgspec.json.Decoder(WorkerSnapshot)


def to_json(facts: object) -> bytes:
    """Any of the snapshots as JSON, without line breaks."""
    return msgspec.json.encode(facts)


def to_plain(facts: object) -> Any:
    """Any of the snapshots as dictionaries, lists and numbers."""
    return msgspec.to_builtins(facts)


def worker_of(text: bytes) -> WorkerSnapshot:
    """A worker's snapshot again, of what `to_json` made.

    Raises:
        ValueError: it is of another version.

    >>> worker_of(b'{"id": "w"}')
    Traceback (most recent call last):
        ...
    msgspec.ValidationError: Object missing required field `at_s`
    """
    return _WORKER.decode(text)
