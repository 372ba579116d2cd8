"""Coverage of a run: calls, faults and reactions in each phase of a worker.

A fault that never happened in some phase proves nothing about that phase. So everything is counted
by phase, and `FaultPlan.focus` injects faults into one call in one phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.plan import TaskId
from headrace.streams.simulation.world.process import SimulatedProcess

PHASES = ("connecting", "joining", "restoring", "running", "committing", "closing")
"""
| phase | from | to |
|---|---|---|
| `connecting` | the process starts | it starts to join |
| `joining` | it joins, or has lost its membership | it has tasks |
| `restoring` | tasks are assigned, or a restore starts | all tasks run |
| `running` | all tasks run | |
| `committing` | caches are flushed | the commit is complete, or has failed |
| `closing` | the worker handles a stop request | the process ends |
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
"""Log events of a worker's reactions."""

_ENDS_COMMIT = ("transaction_aborted", "producer_replaced", "member_replaced", "state_rebuilt",
             "offset_lost", "restore_lost", "partitions_lost", "last_commit_failed")  # fmt: skip
"""Events after which no commit is in progress."""
_ENDS_RESTORES = ("producer_replaced", "restore_lost", "partitions_lost", "member_replaced")
"""Events after which no restore is in progress."""


@dataclass(slots=True)
class Coverage:
    """Number of calls, faults and reactions while faults are injected.

    Args:
        calls: calls in which a fault could have been injected, by call and phase.
        struck: calls in which a fault was injected.
        reactions: reactions of workers, by log event and phase; reactions during a restore also
            count for `restoring`.
    """

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    struck: Counter[tuple[str, str]] = field(default_factory=Counter)
    reactions: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: Coverage) -> None:
        self.calls.update(other.calls)
        self.struck.update(other.struck)
        self.reactions.update(other.reactions)


class PhaseWatch:
    """Listener that sets the phase of a process from the events of its worker and its restores."""

    def __init__(self, process: SimulatedProcess, coverage: Coverage) -> None:
        self._process = process
        self._coverage = coverage
        self._tasks: frozenset[TaskId] = frozenset()
        self._pending: frozenset[TaskId] = frozenset()
        """Assigned tasks that do not run yet."""
        self._restores: set[tuple[TopicPartition, str]] = set()
        self._is_joining = self._is_committing = self._is_closing = False
        self.restored = 0
        """The number of restored records."""

    def on_joining(self) -> None:
        self._is_joining = True
        self._update_phase()

    def on_event(self, event: str, *, counts: bool) -> None:
        """Record a log event of the worker; `counts` is whether faults are injected now."""
        if counts and event in REACTIONS:
            phases = {self._process.phase} | ({"restoring"} if self._restores else set())
            self._coverage.reactions.update((event, phase) for phase in phases)
        if event in _ENDS_COMMIT:
            self._is_committing = False
        if event in _ENDS_RESTORES:
            self._restores.clear()
        if event in ("partitions_lost", "member_replaced"):
            self._is_joining = True
        self._is_closing |= event == "worker_stopping"
        self._update_phase()

    def on_step(self, step: str) -> None:
        if step == "caches_flushed":
            self._is_committing = True
            self._update_phase()

    def _update_phase(self) -> None:
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

    # -- events of the worker --------------------------------------------------------------------

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        found = frozenset(tasks)
        self._pending = (self._pending & found) | (found - self._tasks)
        self._tasks = found
        self._is_joining = not found
        self._update_phase()

    def on_running(self) -> None:
        self._pending = frozenset()
        self._update_phase()

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        del tasks, records
        self._is_committing = False
        self._update_phase()

    # -- events of a restore ---------------------------------------------------------------------

    def on_restore_start(self, tp: TopicPartition, store: str, begin: int, end: int) -> None:
        del begin, end
        self._restores.add((tp, store))
        self._update_phase()

    def on_batch_restored(self, tp: TopicPartition, store: str, offset: int, count: int) -> None:
        del tp, store, offset
        self.restored += count

    def on_restore_end(self, tp: TopicPartition, store: str, total: int) -> None:
        del total
        self._restores.discard((tp, store))
        self._update_phase()
