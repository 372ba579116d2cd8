"""What is the same in every run, and what is found at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.simulation.inputs import Row
from headrace.streams.simulation.world.faults import FaultPlan
from headrace.streams.worker.worker import Worker

# One life of one worker, and what others than itself have seen of it.


@dataclass(slots=True, eq=False)
class Incarnation:
    """One life of a simulated worker, and what other actors observed of it.

    Args:
        name: the worker's.
        worker: it; None where the process ended before there was one.
        has_stopped: whether it ended because it was told to.
        steps: how often it passed each probe.
        events: what it logged, how often.
        producers: how many producers it made.
        restored: changelog records that its listener was told of.
    """

    name: str
    worker: Worker | None = None
    has_stopped: bool = False
    steps: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    producers: int = 0
    restored: int = 0


@dataclass(frozen=True, slots=True)
class Setup:
    """What is the same in every run.

    Args:
        rows: the input, encoded.
        partitions: partition count of each topic that is not internal.
        global_rows: what these have when the first worker starts, encoded.
        next_plans: the version that workers are upgraded to, one after the other; none without.
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
        """The version that runs in the end."""
        return self.next_plans or self.plans


@dataclass(slots=True)
class Outcome:
    """What was found at the end, before the workers were stopped."""

    problems: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """The errors that named a disaster and ended the application."""
    conflicts: int = 0
    """How many starts were refused because live workers ran another version."""
    lives: list[Incarnation] = field(default_factory=list)
    """Those of all workers, in the order in which they began."""
    states: dict[TaskId, dict[str, dict[bytes, bytes]]] = field(default_factory=dict)
