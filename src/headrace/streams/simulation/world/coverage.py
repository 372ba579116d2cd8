"""What a run has met: in which phase of a worker which calls, which faults and which reactions.

A fault that never struck a worker in some phase proves nothing of that phase. So what was met is
counted by phase, and `FaultPlan.focus` has one call struck in one phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.plan import TaskId
from headrace.streams.simulation.world.process import Process

PHASES = ("connecting", "joining", "restoring", "running", "committing", "closing")
"""
| phase | from | to |
|---|---|---|
| `connecting` | the process starts | it begins to join |
| `joining` | it joins, or has lost its place | it has tasks |
| `restoring` | tasks come, or a restore begins | all tasks run |
| `running` | all tasks run | |
| `committing` | caches are flushed | the commit is final, or has failed |
| `closing` | the worker is told to stop, and has seen it | the process ends |
"""

REACTIONS = (
    "transaction_aborted",
    "producer_replaced",
    "member_replaced",
    "state_rebuilt",
    "offset_lost",
    "restore_lost",
    "partitions_assigned",
    "partitions_revoked",
    "partitions_lost",
    "offsets_undecided",
    "store_dropped",
    "rebalance_requested",
    "last_commit_failed",
)
"""What a worker logs when it reacts."""

_GIVES_UP = ("transaction_aborted", "producer_replaced", "member_replaced", "state_rebuilt",
             "offset_lost", "restore_lost", "partitions_lost", "last_commit_failed")  # fmt: skip
"""After these no commit is under way any more."""
_ALL_ANEW = ("producer_replaced", "restore_lost", "partitions_lost", "member_replaced")
"""After these no restore is."""


@dataclass(slots=True)
class Coverage:
    """How often each thing was met while faults happened.

    Args:
        calls: calls that a fault could have struck, by call and phase.
        struck: those that one did.
        reactions: what workers did, by what they log and phase; what happens in the middle of a
            restore counts for `restoring`, too.
    """

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    struck: Counter[tuple[str, str]] = field(default_factory=Counter)
    reactions: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: Coverage) -> None:
        """Count what another run has met, too."""
        self.calls.update(other.calls)
        self.struck.update(other.struck)
        self.reactions.update(other.reactions)


class PhaseWatch:
    """Tells a process its phase, by what its worker says (a listener of both kinds)."""

    def __init__(self, process: Process, coverage: Coverage) -> None:
        self._process = process
        self._coverage = coverage
        self._tasks: frozenset[TaskId] = frozenset()
        self._pending: frozenset[TaskId] = frozenset()
        """Tasks that came and do not run yet."""
        self._restores: set[tuple[TopicPartition, str]] = set()
        self._is_joining = self._is_committing = self._is_closing = False

    def joins(self) -> None:
        """The worker begins."""
        self._is_joining = True
        self._tell()

    def heard(self, event: str, *, counts: bool) -> None:
        """The worker has logged something; it counts while faults happen."""
        if counts and event in REACTIONS:
            phases = {self._process.phase} | ({"restoring"} if self._restores else set())
            self._coverage.reactions.update((event, phase) for phase in phases)
        if event in _GIVES_UP:
            self._is_committing = False
        if event in _ALL_ANEW:
            self._restores.clear()
        if event in ("partitions_lost", "member_replaced"):
            self._is_joining = True
        self._is_closing |= event == "worker_stopping"
        self._tell()

    def stepped(self, step: str) -> None:
        """A step of a commit or a restore is done."""
        if step == "caches_flushed":
            self._is_committing = True
            self._tell()

    def _tell(self) -> None:
        if self._is_closing:
            phase = "closing"
        elif self._is_committing:
            phase = "committing"
        elif self._pending or self._restores:
            phase = "restoring"
        elif self._is_joining:
            phase = "joining"
        else:
            phase = "running" if self._tasks else self._process.phase
        self._process.phase = phase

    # -- what a worker tells ---------------------------------------------------------------------

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """The worker's tasks changed."""
        found = frozenset(tasks)
        self._pending = (self._pending & found) | (found - self._tasks)
        self._tasks = found
        self._is_joining = not found
        self._tell()

    def on_running(self) -> None:
        """All tasks of the worker process records."""
        self._pending = frozenset()
        self._tell()

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        """A commit is final, local state included."""
        del tasks, records
        self._is_committing = False
        self._tell()

    # -- what a restore tells --------------------------------------------------------------------

    def on_restore_start(self, place: TopicPartition, store: str, begin: int, end: int) -> None:
        """A store's restore begins."""
        del begin, end
        self._restores.add((place, store))
        self._tell()

    def on_batch_restored(self, place: TopicPartition, store: str, offset: int, count: int) -> None:
        """Some records were applied."""

    def on_restore_end(self, place: TopicPartition, store: str, total: int) -> None:
        """A store is complete."""
        del total
        self._restores.discard((place, store))
        self._tell()
