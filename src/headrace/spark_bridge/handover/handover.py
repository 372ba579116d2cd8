"""The hand-over of a backfill to its live application: which way, and where it stands.

There are two ways. The driver writes everything in one transaction (`handover_driver`), or the
executors write it in parts, and the offsets come last (`handover_partitioned`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.spark_bridge.driver_memory import HEAP_BYTES
from headrace.spark_bridge.errors import CannotBackfillError
from headrace.spark_bridge.handover.driver import driver_fits, hand_over_by_driver
from headrace.spark_bridge.handover.lead import other_is_open
from headrace.spark_bridge.handover.notes import check_id, is_in_parts
from headrace.spark_bridge.handover.partitioned import (
    finish_partitioned,
    hand_over_partitioned,
    left_to_write,
)
from headrace.spark_bridge.handover.report import HandOverReport
from headrace.spark_bridge.handover.request import Request
from headrace.spark_bridge.handover.target import Target
from headrace.spark_bridge.handover.units import RowFacts
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.plan.plan_identity import refuse_other_topology
from headrace.spark_bridge.records.records import Results
from headrace.spark_bridge.run.stage_errors import said_of_results

DRIVER_ROWS_MAX = 5_000_000
"""How many rows the driver writes itself where nobody says how; readers of sinks wait for it."""

DRIVER_BYTES_MAX = 512 << 20
"""How large they may be."""

DRIVER_PART_OF_HEAP = 4
"""Which part of the heap of Spark's driver they may be as large as."""

Handover = Literal["auto", "driver", "partitioned"]


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of a backfill with an id.

    Args:
        plan: the one that it follows.
        in_parts: whether it is handed over in parts, and goes on so.
        is_done: whether it was handed over already: there is nothing to do.
    """

    plan: BackfillPlan | None = None
    in_parts: bool = False
    is_done: bool = False


def find(backfill_id: str, target: Target) -> Found:
    """Look whether a backfill was begun before.

    Raises:
        CannotBackfillError: another one is open, this one is being dropped, or it was begun for
            other topics or another topology.
    """
    check_id(backfill_id)
    notes = target.notes()
    opened = notes.open_head
    if opened is not None and (opened[1].id, opened[1].state) != (backfill_id, "open"):
        dropping = opened[1].state == "dropping"
        raise CannotBackfillError(other_is_open(target.group, opened[1].id, drop=dropping))
    head = notes.head_of(backfill_id)
    if head is None or head.state == "dropped":
        return Found()
    plan = notes.plan_of(head)
    if plan is None:
        raise CannotBackfillError(
            f"backfill {backfill_id} is {head.state}, and its plan cannot be read back any more: "
            "take another id, and drop this one if it is open"
        )
    if head.state == "open":
        refuse_other_topology(target.application, plan)
        target.refuse_other_topics(plan)
    return Found(plan, in_parts=is_in_parts(head), is_done=head.state == "done")


def check_target(request: Request, plan: BackfillPlan) -> None:
    """See, before Spark starts, that the application can be handed something.

    Raises:
        CannotBackfillError: it runs, or has what may not be replaced.
    """
    target, reset = request.target, request.reset
    target.refuse_members()
    target.refuse_offsets(plan, reset=reset)
    target.refuse_rows(plan, reset=reset)


def finish(plan: BackfillPlan, request: Request) -> HandOverReport | None:
    """End a hand-over in parts, if all of them are written: Spark need not run for it.

    Returns:
        What was done, or None where parts are missing.
    """
    return None if left_to_write(plan, request.target) else finish_partitioned(plan, request)


def hand_over(results: Results, request: Request, handover: Handover = "auto") -> HandOverReport:
    """Hand over what was computed; "auto" is by size, and as it was begun.

    Raises:
        CannotBackfillError: the application or its topics are not ready for it.
        BackfillError: it did not come to its end; the message says how to go on.
    """
    with said_of_results():
        facts = RowFacts.of(results)
        heap = results.heap_bytes
    if handover == "auto":
        handover = chosen(results.plan, request.target, facts, reset=request.reset, heap=heap)
    hand = hand_over_by_driver if handover == "driver" else hand_over_partitioned
    return hand(results, request, facts)


def chosen(
    plan: BackfillPlan, target: Target, facts: RowFacts, *, reset: bool, heap: int = HEAP_BYTES
) -> Handover:
    """Which way "auto" is.

    Args:
        reset: whether old rows are replaced: the driver would keep all their keys in its memory.
        heap: of Spark's driver, in bytes.
    """
    opened = target.notes().open_head
    if opened is not None and opened[1].id == plan.id and is_in_parts(opened[1]):
        return "partitioned"
    rows = facts.total + (target.old_rows(plan) if reset else 0)
    size_max = min(DRIVER_BYTES_MAX, heap // DRIVER_PART_OF_HEAP)
    fits = rows <= DRIVER_ROWS_MAX and facts.size <= size_max
    return "driver" if fits and driver_fits(facts, target) else "partitioned"
