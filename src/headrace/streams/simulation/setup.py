"""Setup of a simulation, and outcome of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.simulation.world.coverage import PhaseWatch
from headrace.streams.simulation.world.faults import FaultPlan
from headrace.streams.worker.worker import Worker

Row = tuple[bytes | None, bytes | None, int]
"""Key, value, and milliseconds since the start of the run."""


@dataclass(slots=True, eq=False)
class Incarnation:
    """Process of a simulated worker, with the observations of other actors.

    Args:
        worker: None if the process ended before it was created.
        steps: how often it passed each probe.
    """

    name: str
    watch: PhaseWatch
    worker: Worker | None = None
    has_stopped: bool = False
    steps: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    producers: int = 0


@dataclass(frozen=True, slots=True)
class Setup:
    """Configuration of a simulation that is the same for all seeds.

    Args:
        rows: the encoded input.
        partitions: the partition count of each external topic.
        global_rows: the encoded input of global tables, written before the first worker starts.
        next_plans: the version to which workers are upgraded, or empty.
    """

    config: StreamsConfig
    plans: Sequence[SubPlan]
    rows: dict[str, list[Row]]
    partitions: dict[str, int]
    workers: int
    plan: FaultPlan
    global_plans: Sequence[GlobalPlan] = ()
    global_rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    next_plans: Sequence[SubPlan] = ()

    @property
    def last_plans(self) -> Sequence[SubPlan]:
        return self.next_plans or self.plans


@dataclass(slots=True)
class Outcome:
    """Observations at the end of a run, before the workers are stopped."""

    problems: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """The errors that reported a disaster and ended the application."""
    conflicts: int = 0
    """Number of starts refused because live workers ran another version."""
    lives: list[Incarnation] = field(default_factory=list)
    """The processes of all workers, in the order of their starts."""
    states: dict[TaskId, dict[str, dict[bytes, bytes]]] = field(default_factory=dict)
