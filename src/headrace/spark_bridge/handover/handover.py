"""Handover of a backfill to its live application, by the driver or by the executors.

The driver writes everything in a single transaction (`hand_over_by_driver`), or the executors
write a transaction per unit, and the offsets come last (`hand_over_partitioned`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.spark_bridge.cleanup import and_then
from headrace.spark_bridge.driver_memory import HEAP_BYTES
from headrace.spark_bridge.errors import BackfillError, CannotBackfillError
from headrace.spark_bridge.handover.clients import CALL_TIMEOUT_MS, expected_ms
from headrace.spark_bridge.handover.lead import HandoverCoordinator, fenced, other_is_open
from headrace.spark_bridge.handover.notes import (
    DEADLINE,
    HandoverOptions,
    How,
    check_id,
    is_in_parts,
    marker_group,
)
from headrace.spark_bridge.handover.rows import RowWriter
from headrace.spark_bridge.handover.target import HandoverTarget
from headrace.spark_bridge.handover.units import HandoverUnit, RowFacts, UnitCounts, units_of
from headrace.spark_bridge.handover.worker import REPORT_DDL, UnitProbe, WriteUnit, no_unit_probe
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.plan.plan_identity import refuse_other_topology
from headrace.spark_bridge.read import consumer_opener
from headrace.spark_bridge.records.records import Results
from headrace.spark_bridge.run.stage_errors import denied, said_of_results
from headrace.streams.admin.backfill_gate import BackfillNote
from headrace.streams.errors import (
    AbortableError,
    OutcomeUnknownError,
    ProducerFencedError,
    StreamsError,
)
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    Offsets,
    Probe,
    TopicPartition,
    no_probe,
)
from headrace.streams.plan.changelog_identity import with_changelogs
from headrace.streams.plan.progress import with_topic_id

# The report of a handover.


@dataclass(frozen=True, slots=True)
class HandOverReport:
    """Report of a handover.

    Args:
        counts: number of records that this attempt wrote.
        units: number of transactions with records.
        found: number of units that an earlier attempt had committed.
    """

    how: Literal["driver", "partitioned"]
    counts: UnitCounts = field(default_factory=UnitCounts)
    units: int = 1
    found: int = 0
    seconds: float = 0.0


# The request for a handover, driver or partitioned.


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request to hand over the results of a backfill.

    Args:
        probe: called between the steps of the driver, for tests.
        unit_probe: called between the steps of executors, for tests; must be picklable.
    """

    target: HandoverTarget
    outputs: str = "write"
    reset: bool = False
    probe: Probe = no_probe
    unit_probe: UnitProbe = no_unit_probe

    @property
    def with_sinks(self) -> bool:
        return self.outputs == "write"

    def terms(self, how: How) -> HandoverOptions:
        return HandoverOptions(how, self.outputs, self.reset)


# Handover in a single transaction of the driver.
#
# Executors have computed and persisted the rows. The driver streams them into a transaction: state
# to changelogs, records to sinks, and finally the offsets of the inputs. Nothing is visible before
# the commit, so the transaction can be retried until then.


ATTEMPTS_MAX = 3
"""Maximum number of attempts of the transaction, after temporary errors."""


_SLOW = "pass handover='partitioned', or raise the brokers' transaction.max.timeout.ms"


def driver_fits(facts: RowFacts, target: HandoverTarget) -> bool:
    """Return whether the brokers allow a transaction as long as these rows may take."""
    return expected_ms(facts.total, facts.size) <= target.transaction_timeout_ms()


def hand_over_by_driver(
    results: Results, request: Request, facts: RowFacts | None = None
) -> HandOverReport:
    """Write everything in a single transaction; after an error, nothing is visible."""
    begun = time.monotonic()
    facts = facts or RowFacts.of(results)
    target = request.target
    timeout_ms = target.transaction_timeout_ms()
    if not driver_fits(facts, target):
        raise CannotBackfillError(
            f"{facts.total} rows of {facts.size} bytes may take "
            f"{expected_ms(facts.total, facts.size)} ms, and the brokers abort transactions after "
            f"{timeout_ms} ms; {_SLOW}"
        )
    prepare_topics_for(request, facts)
    lead = HandoverCoordinator(target, results.plan.id, timeout_ms=timeout_ms, probe=request.probe)
    try:
        with and_then(lambda: lead.producer.close(), quietly=True):
            lead.open(results.plan, request.terms("driver"))
            counts = _OneTransaction(lead, request, results, facts.largest).repeat()
    except ProducerFencedError as error:
        way_out = f". If it took more than {timeout_ms} ms, {_SLOW}"
        raise fenced(results.plan.id, error, way_out) from error
    return HandOverReport("driver", counts, seconds=time.monotonic() - begun)


def prepare_topics_for(request: Request, facts: RowFacts) -> None:
    """Check that sinks keep the rows, and suspend the retention of changelogs that would not."""
    if request.with_sinks:
        request.target.refuse_short_sinks(facts.oldest("sink"))
    request.target.protect_windows(facts.oldest("changelog"))


def live_offsets(
    target: HandoverTarget, plan: BackfillPlan, progress: Mapping[TopicPartition, str]
) -> Offsets:
    """Return the offsets to commit for the application, with the offset metadata of its tasks."""
    ends = target.ends(plan)
    silent = sorted(ends.keys() - progress.keys())
    if silent:
        raise BackfillError(
            f"no task has told its progress for {', '.join(map(str, silent[:3]))}: not all rows "
            "of the backfill are there; run it again with the same id"
        )
    ids = plan.topic_ids
    changelogs = {
        topic: {name: ids[name] for name in sub.changelogs.values() if name in ids}
        for sub in target.application.plans.values()
        for topic in sub.topics.all_sources
    }
    texts = {tp: with_topic_id(progress[tp], tp.topic, ids.get(tp.topic)) for tp in ends}
    return {
        tp: CommittedOffset(end, with_changelogs(texts[tp], changelogs[tp.topic]))
        for tp, end in ends.items()
    }


@dataclass(slots=True, eq=False)
class _OneTransaction:
    """Transaction of the driver, with retries."""

    lead: HandoverCoordinator
    request: Request
    results: Results
    largest: int
    counts: UnitCounts = field(default_factory=UnitCounts)

    def repeat(self) -> UnitCounts:
        """Write and commit; retry after temporary errors.

        After an error, the plan is not open any more, unless the message says that it is.
        """
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return self._write()
            except (AbortableError, OutcomeUnknownError) as error:
                self.request.target.log.warning(
                    "handover_repeated", attempt=attempt, reason=str(error)
                )
                if self.lead.renew():
                    return self.counts
                if attempt == ATTEMPTS_MAX:
                    self._give_up(error)
                    raise BackfillError(
                        f"the transaction of backfill {self.results.plan.id} failed {attempt} "
                        f"times, at last with: {error}; nothing is visible: see that the brokers "
                        "are well, and run it again"
                    ) from error
            except ProducerFencedError:
                raise
            except BaseException as error:
                self._give_up(error)
                raise
        raise AssertionError("unreachable")

    def _give_up(self, error: BaseException) -> None:
        """Close the plan as dropped, so that the application can start; nothing was committed."""
        try:
            # The note is gone if its topic was deleted.
            if self.lead.renew() or self.lead.notes.open_head is None:
                return
            self.lead.close_with("dropped")
        except Exception as second:
            raise BackfillError(
                f"{error}; nothing is visible, but backfill {self.results.plan.id} is still open "
                f"({second}): run it again with the same id, or drop it"
            ) from error

    def _next(self, batches: Iterator[Any]) -> Any:
        """Return the next batch; errors here come from Spark, errors in the writer from Kafka."""
        with said_of_results():
            return next(batches, None)

    def _write(self) -> UnitCounts:
        plan, producer = self.results.plan, self.lead.producer
        request, target = self.request, self.request.target
        old = target.old_keys(target.changelogs(plan), reset=request.reset)
        producer.begin()
        now_ms = target.now_ms()
        writer = RowWriter(producer, with_sinks=request.with_sinks, old=old, now_ms=now_ms)
        self.counts = writer.counts
        batches = self.results.batches(self.largest)
        while (batch := self._next(batches)) is not None:
            writer.write(batch)
        writer.forget_old(sorted(old))
        producer.pressure(self.lead.timeout_s)
        request.probe("handover_written")
        live = live_offsets(target, plan, writer.progress)
        self.lead.finish(plan, live, reset=request.reset, begun=True)
        return writer.counts


# Partitioned handover: a transaction for each unit, from the executors, then the cut-over.
#
# Kafka has no atomic commit over several producers, so units are visible before the handover is
# complete. The application cannot start meanwhile (`headrace.streams.admin.backfill_gate`), but
# consumers of its sinks see the units arrive in sequence. State and offsets become valid with the
# cut-over: one transaction that commits the application's offsets, and marks the plan as done.
#
# A driver that dies leaves the plan open. The next driver with the same id reads the plan back,
# finds the written units, and writes the rest.


def hand_over_partitioned(
    results: Results, request: Request, facts: RowFacts | None = None
) -> HandOverReport:
    """Write each unit in its own transaction, then commit the offsets.

    The results must include all units that are not written yet.
    """
    begun = time.monotonic()
    facts = facts or RowFacts.of(results)
    target, plan = request.target, results.plan
    units = units_of(target.application, plan)
    prepare_topics_for(request, facts)
    lead = HandoverCoordinator(target, plan.id, timeout_ms=CALL_TIMEOUT_MS, probe=request.probe)
    counts = UnitCounts()
    try:
        with and_then(lambda: lead.producer.close(), quietly=True):
            if lead.open(plan, request.terms("partitioned")):
                lead.commit({marker_group(plan): _markers(target, plan, units)})
            missing = _missing(target, plan, units)
            if missing:
                opened = lead.notes.open_head
                assert opened is not None, "the plan is not open"
                write = unit_writer(request, opened, plan, units)
                counts = _run(results, write)
            request.probe("handover_written")
            _flip(lead, request, plan, units)
    except ProducerFencedError as error:
        raise fenced(plan.id, error) from error
    found = len(units) - len(missing)
    return HandOverReport("partitioned", counts, len(units), found, time.monotonic() - begun)


def left_to_write(plan: BackfillPlan, target: HandoverTarget) -> tuple[HandoverUnit, ...]:
    return _missing(target, plan, units_of(target.application, plan))


def finish_partitioned(plan: BackfillPlan, request: Request) -> HandOverReport:
    """Commit the offsets of a plan whose units are all written, without Spark."""
    begun = time.monotonic()
    units = units_of(request.target.application, plan)
    lead = HandoverCoordinator(
        request.target, plan.id, timeout_ms=CALL_TIMEOUT_MS, probe=request.probe
    )
    try:
        with and_then(lambda: lead.producer.close(), quietly=True):
            lead.open(plan, request.terms("partitioned"))
            _flip(lead, request, plan, units)
    except ProducerFencedError as error:
        raise fenced(plan.id, error) from error
    return HandOverReport(
        "partitioned", UnitCounts(), len(units), len(units), time.monotonic() - begun
    )


def _markers(target: HandoverTarget, plan: BackfillPlan, units: Sequence[HandoverUnit]) -> Offsets:
    """Return the marker offsets of written units, with the offset metadata of their inputs."""
    tps = [tp for unit in units for tp in unit.inputs]
    return target.groups.committed_at(marker_group(plan), tps)


def _missing(
    target: HandoverTarget, plan: BackfillPlan, units: Sequence[HandoverUnit]
) -> tuple[HandoverUnit, ...]:
    found = _markers(target, plan, units)
    return tuple(unit for unit in units if not found.keys() >= set(unit.inputs))


def unit_writer(
    request: Request,
    head: tuple[TopicPartition, BackfillNote],
    plan: BackfillPlan,
    units: tuple[HandoverUnit, ...],
) -> WriteUnit:
    """Create the function that executors call; `head` is the first note and its partition."""
    target = request.target
    timeout_ms = target.transaction_timeout_ms()
    return WriteUnit(
        plan=plan.to_text(),
        units=units,
        head=head[0],
        digest=head[1].digest,
        clients=target.config.admin_config(),
        producer=target.producer_settings("", timeout_ms),
        consumer=consumer_opener(target.config) if request.reset else None,
        with_sinks=request.with_sinks,
        now_ms=target.now_ms(),
        timeout_s=timeout_ms / 1000,
        probe=request.unit_probe,
    )


def _run(results: Results, write: WriteUnit) -> UnitCounts:
    try:
        rows = results.run(write, REPORT_DDL)
    except StreamsError:
        raise
    except Exception as error:
        what = f"a part of backfill {results.plan.id} could not be written"
        way_out = (
            "; the plan stays open, and so the application does not start: correct the cause and "
            f"run the backfill again with the same id, or drop it, {DEADLINE}"
        )
        lacking = denied(what, error, way_out)
        raise lacking or BackfillError(f"{what}: {_said(error)}{way_out}") from error
    counts = UnitCounts()
    for row in rows:
        counts.add(UnitCounts(row["changelog"], row["sink"], row["tombstones"]))
    return counts


def _said(error: Exception) -> str:
    """Return the last error line of an executor's error."""
    lines = [line.strip() for line in str(error).splitlines() if "Error: " in line]
    return lines[-1] if lines else f"{type(error).__name__}: {error}"


def _flip(
    lead: HandoverCoordinator, request: Request, plan: BackfillPlan, units: Sequence[HandoverUnit]
) -> None:
    """Commit the application's offsets, which completes a partitioned handover."""
    target = request.target
    found = _markers(target, plan, units)
    progress = {tp: committed.metadata for tp, committed in found.items()}
    live = live_offsets(target, plan, progress)
    try:
        lead.certain(lambda: lead.finish(plan, live, reset=request.reset, begun=False))
    except (AbortableError, OutcomeUnknownError) as error:
        raise BackfillError(
            f"everything of backfill {plan.id} is written, but its offsets could not be committed: "
            f"{error}; run it again with the same id, which does that alone, {DEADLINE}"
        ) from error
    target.forget_group(marker_group(plan))


DRIVER_ROWS_MAX = 5_000_000
"""Maximum number of rows for which "auto" chooses the driver; consumers of sinks wait for it."""

DRIVER_BYTES_MAX = 512 << 20
"""Maximum size of rows for which "auto" chooses the driver."""

DRIVER_PART_OF_HEAP = 4
"""Maximum size of these rows, as a divisor of the heap of Spark's driver."""

Handover = Literal["auto", "driver", "partitioned"]


@dataclass(frozen=True, slots=True)
class BackfillState:
    """State of a backfill with an id.

    Args:
        plan: plan of its earlier attempts; None without earlier attempts.
        in_parts: whether its handover is partitioned, and must continue so.
        is_done: whether its handover is complete.
    """

    plan: BackfillPlan | None = None
    in_parts: bool = False
    is_done: bool = False


def find(backfill_id: str, target: HandoverTarget) -> BackfillState:
    """Find the earlier attempts of a backfill; raise if it cannot be continued."""
    check_id(backfill_id)
    notes = target.notes()
    opened = notes.open_head
    if opened is not None and (opened[1].id, opened[1].state) != (backfill_id, "open"):
        dropping = opened[1].state == "dropping"
        raise CannotBackfillError(other_is_open(target.group, opened[1].id, drop=dropping))
    head = notes.head_of(backfill_id)
    if head is None or head.state == "dropped":
        return BackfillState()
    plan = notes.plan_of(head)
    if plan is None:
        raise CannotBackfillError(
            f"backfill {backfill_id} is {head.state}, and its plan cannot be read back any more: "
            "take another id, and drop this one if it is open"
        )
    if head.state == "open":
        refuse_other_topology(target.application, plan)
        target.refuse_other_topics(plan)
    return BackfillState(plan, in_parts=is_in_parts(head), is_done=head.state == "done")


def check_target(request: Request, plan: BackfillPlan) -> None:
    """Check, before Spark starts, that the application can receive a backfill."""
    target, reset = request.target, request.reset
    target.refuse_members()
    target.refuse_offsets(plan, reset=reset)
    target.refuse_rows(plan, reset=reset)


def finish(plan: BackfillPlan, request: Request) -> HandOverReport | None:
    """Complete a partitioned handover without Spark; return None if units are missing."""
    return None if left_to_write(plan, request.target) else finish_partitioned(plan, request)


def hand_over(results: Results, request: Request, handover: Handover = "auto") -> HandOverReport:
    """Hand over the results; "auto" chooses by size, or as an earlier attempt did."""
    with said_of_results():
        facts = RowFacts.of(results)
        heap = results.heap_bytes
    if handover == "auto":
        handover = chosen(results.plan, request.target, facts, reset=request.reset, heap=heap)
    hand = hand_over_by_driver if handover == "driver" else hand_over_partitioned
    return hand(results, request, facts)


def chosen(
    plan: BackfillPlan,
    target: HandoverTarget,
    facts: RowFacts,
    *,
    reset: bool,
    heap: int = HEAP_BYTES,
) -> Handover:
    """Return the choice of "auto"; with `reset`, the driver would hold all old keys in memory."""
    opened = target.notes().open_head
    if opened is not None and opened[1].id == plan.id and is_in_parts(opened[1]):
        return "partitioned"
    rows = facts.total + (target.old_rows(plan) if reset else 0)
    size_max = min(DRIVER_BYTES_MAX, heap // DRIVER_PART_OF_HEAP)
    fits = rows <= DRIVER_ROWS_MAX and facts.size <= size_max
    return "driver" if fits and driver_fits(facts, target) else "partitioned"
