"""Which tasks a worker has, for those who want to hear of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.streams.plan.task_spec import TaskId
from headrace.streams.tasks.gate_watch import Gate
from headrace.streams.tasks.intake import Intake
from headrace.streams.tasks.tasks import Tasks
from headrace.streams.worker.listeners import WorkerListener


@dataclass(frozen=True, slots=True)
class Ownership:
    """Lets go of tasks, and tells what is left."""

    tasks: Tasks
    intake: Intake
    gate: Gate
    listener: WorkerListener

    def let_go(self, tasks: Sequence[TaskId]) -> None:
        """Let go of tasks."""
        self.tasks.release(tasks)
        self.intake.keep_to_running()
        self.tell()

    def tell(self) -> None:
        """Tell which tasks there are now."""
        self.gate.on_assignment(self.tasks.owned)
        self.listener.on_assignment(self.tasks.owned)
