"""Writer of a unit of a backfill in its own transaction, which runs in Spark's tasks.

A task may run twice, even at the same time. Each attempt first fences the earlier attempts. Then
it checks for the marker that only a committed attempt leaves: the offset metadata of the unit's
inputs, as offsets in the plan's own group, committed in the transaction that has the rows. So one
attempt writes the unit, and later attempts find it written.

    init ─► plan still open? ─► marker found? ── yes ─► nothing to do
                                     └─ no ─► rows, tombstones, marker ─► commit

A fenced attempt waits for the attempt that has fenced it, and fails only if that does not write
the unit: Spark gives up after four failed attempts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark_bridge.cleanup import cleanup_after
from headrace.spark_bridge.errors import BackfillError
from headrace.spark_bridge.handover.notes import marker_group, transactional_id
from headrace.spark_bridge.handover.rows import (
    CALL_TIMEOUT_MS,
    OldKeys,
    RowWriter,
    group_metadata,
    make_producer,
    read_old_keys,
)
from headrace.spark_bridge.handover.units import HandoverUnit
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.read import OpenConsumer
from headrace.spark_bridge.records.packs import schema_ddl
from headrace.state.log import get_logger
from headrace.streams.admin.backfill_gate import BackfillNote, backfill_group
from headrace.streams.errors import ProducerFencedError
from headrace.streams.kafka.protocols import CommittedOffset, Offsets, TopicPartition

_REPORT = pa.schema(
    {
        "unit": pa.string(),
        "written": pa.bool_(),
        "changelog": pa.int64(),
        "sink": pa.int64(),
        "tombstones": pa.int64(),
    }
)
REPORT_DDL = schema_ddl(_REPORT)

_POLL_S = 0.5
_CALL_TIMEOUT_S = CALL_TIMEOUT_MS / 1000

UnitProbe = Callable[[str, str], Any]
"""Called in executors with a step and the unit's name, so that tests can inject faults."""


def no_unit_probe(step: str, unit: str) -> None: ...


class UnitReport(NamedTuple):
    """Report of a unit: its name, whether this attempt wrote it, and the number of records."""

    unit: str
    written: bool
    changelog: int = 0
    sink: int = 0
    tombstones: int = 0


def markers_of(
    plan: BackfillPlan, unit: HandoverUnit, progress: Mapping[TopicPartition, str]
) -> Offsets:
    """Return the offsets that mark a unit as written, with the offset metadata of its inputs."""
    missing = sorted(set(unit.inputs) - progress.keys())
    if missing:
        raise BackfillError(
            f"rows of unit {unit.name} are missing: it has no progress of "
            f"{', '.join(map(str, missing[:3]))}"
        )
    return {p: CommittedOffset(plan.ends.get(p, 0), progress[p]) for p in unit.inputs}


@dataclass(frozen=True, slots=True)
class WriteUnit:
    """Function that Spark calls for each partition: takes rows, and yields a report per unit.

    Args:
        plan: the open plan, as text.
        head: partition of its first note.
        clients: librdkafka's settings of clients that read offsets and topics.
        producer: librdkafka's settings of the producer, without its transactional.id.
        consumer: opens the consumer that reads changelogs, or None if they are empty.
        now_ms: the timestamp of tombstones, the same in each attempt.
        timeout_s: maximum duration of a unit's transaction, in seconds.
        wait_s: minimum time that a fenced attempt waits for the other attempt, in seconds.
    """

    plan: str
    units: tuple[HandoverUnit, ...]
    head: TopicPartition
    digest: str
    clients: Mapping[str, Any]
    producer: Mapping[str, Any]
    consumer: OpenConsumer | None
    with_sinks: bool
    now_ms: int
    timeout_s: float
    probe: UnitProbe = no_unit_probe
    wait_s: float = 60.0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the units of a Spark partition: several if Spark merged equal partitionings."""
        by_task = {task: unit for unit in self.units for task in unit.tasks}
        filled = (batch for batch in batches if batch.num_rows)
        seen: set[str] = set()

        def unit_of(batch: pa.RecordBatch) -> HandoverUnit:
            task = batch.column("sub")[0].as_py(), batch.column("d")[0].as_py()
            if task not in by_task:
                raise BackfillError(f"the plan does not have task {task[0]}_{task[1]} of the rows")
            return by_task[task]

        for unit, rows in groupby(filled, key=unit_of):
            if unit.name in seen:
                raise BackfillError(_mixed_rows_message(unit))
            seen.add(unit.name)
            report = self._write_or_find(unit, rows)
            yield pa.RecordBatch.from_pylist([report._asdict()], schema=_REPORT)

    def _write_or_find(self, unit: HandoverUnit, batches: Iterator[pa.RecordBatch]) -> UnitReport:
        """Write a unit, or wait until a concurrent attempt has written it."""
        begun_s = time.monotonic()
        try:
            return self._write(unit, batches)
        except ProducerFencedError as error:
            took_s = time.monotonic() - begun_s
            if took_s >= self.timeout_s:
                raise BackfillError(
                    f"the brokers have aborted the transaction of unit {unit.name} (after "
                    f"{took_s:.0f} s, limit {self.timeout_s:.0f} s; {error}). Increase their "
                    "transaction.max.timeout.ms"
                ) from error
            self.probe("fenced", unit.name)
            # The other attempt started later, and may take as long.
            if not self._is_written_within(unit, self.wait_s + 2 * took_s):
                raise
        get_logger().info("unit_found", unit=unit.name)
        return UnitReport(unit.name, written=False)

    def _is_written_within(self, unit: HandoverUnit, wait_s: float) -> bool:
        plan = BackfillPlan.from_text(self.plan)
        deadline_s = time.monotonic() + min(wait_s, self.timeout_s)
        while not self._is_written(plan, unit):
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_POLL_S)
        return True

    def _write(self, unit: HandoverUnit, batches: Iterator[pa.RecordBatch]) -> UnitReport:
        log = get_logger().bind(unit=unit.name)
        plan = BackfillPlan.from_text(self.plan)
        identity = transactional_id(plan, unit.name)
        settings = {**self.producer, "transactional.id": identity}
        producer = make_producer(settings)
        with cleanup_after(producer.close, quietly=True):
            producer.init()
            self.probe("begun", unit.name)
            if self._is_written(plan, unit):
                log.info("unit_found")
                return UnitReport(unit.name, written=False)
            old = self._old_keys(unit)
            producer.begin()
            writer = RowWriter(
                producer.send, with_sinks=self.with_sinks, old=old, now_ms=self.now_ms
            )
            for batch in batches:
                _check_tasks(batch, unit)
                writer.write(batch)
                self.probe("batch", unit.name)
            writer.delete_old(unit.changelogs)
            producer.apply_backpressure(self.timeout_s)
            self.probe("written", unit.name)
            group = marker_group(plan)
            markers = markers_of(plan, unit, writer.progress)
            producer.send_offsets(markers, group_metadata(self.clients, group))
            producer.commit()
            self.probe("committed", unit.name)
        counts = writer.counts
        log.info("unit_written", changelog=counts.changelog, sink=counts.sink)
        return UnitReport(unit.name, True, counts.changelog, counts.sink, counts.tombstones)

    def _is_written(self, plan: BackfillPlan, unit: HandoverUnit) -> bool:
        """Return whether an attempt has committed the unit; raise if the plan is not open."""
        from headrace.streams.kafka.group_offsets import MemberlessGroup

        groups = MemberlessGroup(self.clients, timeout_s=_CALL_TIMEOUT_S, stopping=lambda: False)
        found = groups.committed_at(backfill_group(plan.application_id), [self.head])
        note = BackfillNote.decode(found[self.head].metadata) if found else None
        if note is None or (note.state, note.id, note.digest) != ("open", plan.id, self.digest):
            raise BackfillError(
                f"backfill {plan.id} is no longer open: another driver has ended it"
            )
        return len(groups.committed_at(marker_group(plan), unit.inputs)) == len(unit.inputs)

    def _old_keys(self, unit: HandoverUnit) -> OldKeys:
        from headrace.streams.kafka.group_admin import GroupAdmin

        if self.consumer is None or not unit.changelogs:
            return {}
        admin = GroupAdmin(self.clients, timeout_s=_CALL_TIMEOUT_S)
        return read_old_keys(admin, self.consumer, unit.changelogs, _CALL_TIMEOUT_S)


def _check_tasks(batch: pa.RecordBatch, unit: HandoverUnit) -> None:
    subs, ds = (set(pc.unique(batch.column(name)).to_pylist()) for name in ("sub", "d"))
    foreign = subs - {sub for sub, _ in unit.tasks} or ds - {d for _, d in unit.tasks}
    if foreign:
        raise BackfillError(_mixed_rows_message(unit))


def _mixed_rows_message(unit: HandoverUnit) -> str:
    return (
        f"rows of unit {unit.name} and of other units are mixed in a Spark partition. Make sure "
        "that the order of cached frames is not changed"
    )
