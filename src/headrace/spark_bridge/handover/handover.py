"""Handover of a backfill to its live application, by the driver or by the executors.

The parts of this file, in order: the driver writes everything in a single transaction
(`hand_over_by_driver`); or the executors write a transaction per unit, and the offsets come last
(`hand_over_partitioned`); and the choice between the two, which also finds what an earlier attempt
with the same id has done (`hand_over`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from headrace.spark_bridge.cleanup import cleanup_after
from headrace.spark_bridge.errors import BackfillError, CannotBackfillError
from headrace.spark_bridge.executor_errors import executor_error, explained_results
from headrace.spark_bridge.handover.coordinator import HandoverCoordinator, fenced, other_is_open
from headrace.spark_bridge.handover.notes import (
    DEADLINE,
    HandoverOptions,
    How,
    check_id,
    is_in_parts,
    marker_group,
)
from headrace.spark_bridge.handover.rows import CALL_TIMEOUT_MS, RowWriter, expected_ms
from headrace.spark_bridge.handover.target import HandoverTarget
from headrace.spark_bridge.handover.units import HandoverUnit, RowSummary, UnitCounts, units_of
from headrace.spark_bridge.handover.worker import REPORT_DDL, UnitProbe, WriteUnit, no_unit_probe
from headrace.spark_bridge.history.planning import refuse_other_topology
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.read import consumer_opener
from headrace.spark_bridge.records.results import HEAP_BYTES, Results
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
from headrace.streams.plan.identity import with_changelogs, with_topic_id


@dataclass(frozen=True, slots=True)
class HandoverReport:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverRequest:
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

    def options(self, how: How) -> HandoverOptions:
        return HandoverOptions(how, self.outputs, self.reset)


@contextmanager
def _coordinated(
    request: HandoverRequest, plan: BackfillPlan, timeout_ms: int, fix: str = ""
) -> Iterator[HandoverCoordinator]:
    """Create the coordinator of a handover, close it after the block, and explain its fencing."""
    coordinator = HandoverCoordinator(
        request.target, plan.id, timeout_ms=timeout_ms, probe=request.probe
    )
    try:
        with cleanup_after(lambda: coordinator.producer.close(), quietly=True):
            yield coordinator
    except ProducerFencedError as error:
        raise fenced(plan.id, error, fix) from error


# Handover in a single transaction of the driver.
#
# Executors have computed and persisted the rows. The driver streams them into a transaction: state
# to changelogs, records to sinks, and finally the offsets of the inputs. Nothing is visible before
# the commit, so the transaction can be retried until then.


ATTEMPTS_MAX = 3
"""Maximum number of attempts of the transaction, after temporary errors."""


_SLOW = "pass handover='partitioned', or increase the brokers' transaction.max.timeout.ms"


def driver_fits(summary: RowSummary, target: HandoverTarget) -> bool:
    """Return whether the brokers allow a transaction as long as these rows may take."""
    return expected_ms(summary.rows, summary.size) <= target.transaction_timeout_ms()


def hand_over_by_driver(
    results: Results, request: HandoverRequest, summary: RowSummary
) -> HandoverReport:
    """Write everything in a single transaction; after an error, nothing is visible."""
    begun = time.monotonic()
    timeout_ms = request.target.transaction_timeout_ms()
    if not driver_fits(summary, request.target):
        raise CannotBackfillError(
            f"the transaction would take longer than the brokers allow ({summary.rows} rows, "
            f"{summary.size} bytes, {expected_ms(summary.rows, summary.size)} ms, limit "
            f"{timeout_ms} ms). To hand over, {_SLOW}"
        )
    prepare_topics_for(request, summary)
    fix = f"; if the transaction took more than {timeout_ms} ms, {_SLOW}"
    with _coordinated(request, results.plan, timeout_ms, fix) as coordinator:
        coordinator.open(results.plan, request.options("driver"))
        counts = _OneTransaction(coordinator, request, results, summary.largest).repeat()
    return HandoverReport("driver", counts, seconds=time.monotonic() - begun)


def prepare_topics_for(request: HandoverRequest, summary: RowSummary) -> None:
    """Check that sinks keep the rows, and suspend the retention of changelogs that would not."""
    if request.with_sinks:
        request.target.refuse_short_sinks(summary.oldest("sink"))
    request.target.protect_windows(summary.oldest("changelog"))


def live_offsets(
    target: HandoverTarget, plan: BackfillPlan, progress: Mapping[TopicPartition, str]
) -> Offsets:
    """Return the offsets to commit for the application, with the offset metadata of its tasks."""
    ends = target.ends(plan)
    missing = sorted(ends.keys() - progress.keys())
    if missing:
        raise BackfillError(
            f"rows of the backfill are missing: no task has reported progress of "
            f"{', '.join(map(str, missing[:3]))}. Run it again with the same id"
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

    coordinator: HandoverCoordinator
    request: HandoverRequest
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
                if self.coordinator.renew():
                    return self.counts
                if attempt == ATTEMPTS_MAX:
                    self._drop(error)
                    raise BackfillError(
                        f"the transaction of backfill {self.results.plan.id} failed {attempt} "
                        f"times ({error}). Nothing is visible: check the brokers, and run it again"
                    ) from error
            except ProducerFencedError:
                raise
            except BaseException as error:
                self._drop(error)
                raise
        raise AssertionError("unreachable")

    def _drop(self, error: BaseException) -> None:
        """Close the plan as dropped, so that the application can start; nothing was committed."""
        try:
            # The note does not exist if its topic was deleted.
            if self.coordinator.renew() or self.coordinator.notes.open_head is None:
                return
            self.coordinator.close_with("dropped")
        except Exception as second:
            raise BackfillError(
                f"{error}; nothing is visible, but backfill {self.results.plan.id} is still open "
                f"({second}). Run it again with the same id, or drop it"
            ) from error

    def _write(self) -> UnitCounts:
        plan, producer = self.results.plan, self.coordinator.producer
        request, target = self.request, self.request.target
        old = target.old_keys(target.changelogs(plan)) if request.reset else {}
        producer.begin()
        now_ms = target.now_ms()
        writer = RowWriter(producer.send, with_sinks=request.with_sinks, old=old, now_ms=now_ms)
        self.counts = writer.counts
        batches = self.results.batches(self.largest)
        while True:
            with explained_results():  # errors of Spark; errors of the writer come from Kafka
                batch = next(batches, None)
            if batch is None:
                break
            writer.write(batch)
        writer.delete_old(sorted(old))
        producer.apply_backpressure(self.coordinator.timeout_s)
        request.probe("handover_written")
        live = live_offsets(target, plan, writer.progress)
        self.coordinator.finish(plan, live, reset=request.reset, begun=True)
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
    results: Results, request: HandoverRequest, summary: RowSummary
) -> HandoverReport:
    """Write each unit in its own transaction, then commit the offsets.

    The results must include all units that are not written yet.
    """
    prepare_topics_for(request, summary)
    return _partitioned(results.plan, request, results)


def finish_partitioned(plan: BackfillPlan, request: HandoverRequest) -> HandoverReport:
    """Commit the offsets of a plan whose units are all written, without Spark."""
    return _partitioned(plan, request, None)


def _partitioned(
    plan: BackfillPlan, request: HandoverRequest, results: Results | None
) -> HandoverReport:
    begun = time.monotonic()
    units = units_of(request.target.application, plan)
    counts = UnitCounts()
    with _coordinated(request, plan, CALL_TIMEOUT_MS) as coordinator:
        if coordinator.open(plan, request.options("partitioned")):
            coordinator.commit({marker_group(plan): _markers(request.target, plan)})
        missing = left_to_write(plan, request.target)
        if missing and results is not None:
            opened = coordinator.notes.open_head
            assert opened is not None, "the plan is not open"
            counts = _run(results, unit_writer(request, opened, plan, units))
        request.probe("handover_written")
        _cut_over(coordinator, request, plan)
    found = len(units) - len(missing)
    return HandoverReport("partitioned", counts, len(units), found, time.monotonic() - begun)


def _markers(target: HandoverTarget, plan: BackfillPlan) -> Offsets:
    """Return the marker offsets of written units, with the offset metadata of their inputs."""
    tps = [tp for unit in units_of(target.application, plan) for tp in unit.inputs]
    return target.groups.committed_at(marker_group(plan), tps)


def left_to_write(plan: BackfillPlan, target: HandoverTarget) -> tuple[HandoverUnit, ...]:
    found = _markers(target, plan)
    units = units_of(target.application, plan)
    return tuple(unit for unit in units if not found.keys() >= set(unit.inputs))


def unit_writer(
    request: HandoverRequest,
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
        raise executor_error(
            f"a unit of backfill {results.plan.id} cannot be written",
            error,
            ". The application cannot start before you run the backfill again with the same id, or "
            f"drop it, {DEADLINE}",
        ) from error
    return UnitCounts(
        *(sum(row[name] for row in rows) for name in ("changelog", "sink", "tombstones"))
    )


def _cut_over(
    coordinator: HandoverCoordinator, request: HandoverRequest, plan: BackfillPlan
) -> None:
    """Commit the application's offsets, which completes a partitioned handover."""
    target = request.target
    progress = {tp: committed.metadata for tp, committed in _markers(target, plan).items()}
    live = live_offsets(target, plan, progress)
    try:
        coordinator.finish(plan, live, reset=request.reset, begun=False)
    except (AbortableError, OutcomeUnknownError) as error:
        if not coordinator.renew():
            raise BackfillError(
                f"all units of backfill {plan.id} are written, but its offsets are not committed "
                f"({error}). Run it again with the same id to commit them, {DEADLINE}"
            ) from error
    target.delete_group(marker_group(plan))


# Choice of the handover, and state of an earlier attempt.


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
        is_partitioned: whether its handover is partitioned, and must continue so.
        is_done: whether its handover is complete.
    """

    plan: BackfillPlan | None = None
    is_partitioned: bool = False
    is_done: bool = False


def find_earlier_attempt(backfill_id: str, target: HandoverTarget) -> BackfillState:
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
            f"the plan of backfill {backfill_id} cannot be read (it is {head.state}). Use another "
            "id, and drop this backfill if it is open"
        )
    if head.state == "open":
        refuse_other_topology(target.application, plan)
        target.refuse_other_topics(plan)
    return BackfillState(plan, is_partitioned=is_in_parts(head), is_done=head.state == "done")


def check_target(request: HandoverRequest, plan: BackfillPlan) -> None:
    """Check, before Spark starts, that the application can receive a backfill."""
    target, reset = request.target, request.reset
    target.refuse_members()
    target.refuse_offsets(plan, reset=reset)
    target.refuse_rows(plan, reset=reset)


def finish(plan: BackfillPlan, request: HandoverRequest) -> HandoverReport | None:
    """Complete a partitioned handover without Spark; return None if units are missing."""
    return None if left_to_write(plan, request.target) else finish_partitioned(plan, request)


def hand_over(
    results: Results, request: HandoverRequest, handover: Handover = "auto"
) -> HandoverReport:
    """Hand over the results; "auto" chooses by size, or as an earlier attempt did."""
    with explained_results():
        summary = RowSummary.of(results)
        heap = results.heap_bytes
    if handover == "auto":
        handover = choose_handover(
            results.plan, request.target, summary, reset=request.reset, heap=heap
        )
    write = hand_over_by_driver if handover == "driver" else hand_over_partitioned
    return write(results, request, summary)


def choose_handover(
    plan: BackfillPlan,
    target: HandoverTarget,
    summary: RowSummary,
    *,
    reset: bool,
    heap: int = HEAP_BYTES,
) -> Handover:
    """Return the choice of "auto"; with `reset`, the driver would hold all old keys in memory."""
    opened = target.notes().open_head
    if opened is not None and opened[1].id == plan.id and is_in_parts(opened[1]):
        return "partitioned"
    rows = summary.rows + (target.old_rows(plan) if reset else 0)
    size_max = min(DRIVER_BYTES_MAX, heap // DRIVER_PART_OF_HEAP)
    fits = rows <= DRIVER_ROWS_MAX and summary.size <= size_max
    return "driver" if fits and driver_fits(summary, target) else "partitioned"
