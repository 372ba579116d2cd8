"""Context of processors in a task over history, without a wall clock."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.spark_bridge.errors import WallClockError
from headrace.streams.config.config import StreamsConfig, table
from headrace.streams.plan.plan import TaskId
from headrace.topology.context.calls import Caller, NoCaller
from headrace.topology.context.punctuation import Schedule
from headrace.topology.context.task_facts import TaskFacts, TimeKind


@dataclass(slots=True, eq=False)
class HistoryFacts(TaskFacts):
    """Context of a task that rejects wall-clock schedules."""

    def schedule(self, kind: TimeKind, schedule: Schedule) -> None:
        """Schedule by stream time; raise WallClockError for a wall-clock schedule."""
        if kind == "wall_clock":
            raise WallClockError(
                f"processor {schedule.node} (task {self.task_id}) schedules a punctuator by the "
                "wall clock, and nothing tells when it would have been called in the past; let it "
                "go by stream time, or take the processor out of the topology that is backfilled"
            )
        TaskFacts.schedule(self, kind, schedule)


def facts_of(
    config: StreamsConfig, task_id: TaskId, now_ms: int, calls: Caller | None = None
) -> HistoryFacts:
    """Create the context that the processors of a task share.

    Settings of clients, which may be secret, are not passed on; `now_ms` is the same in each
    attempt.
    """
    settings = {own.name: getattr(config, own.name.replace(".", "_")) for own in table()}
    return HistoryFacts(
        application_id=config.application_id,
        task_id=str(task_id),
        partition=task_id.partition,
        settings=settings,
        now_ms=lambda: now_ms,
        calls=NoCaller() if calls is None else calls,
    )
