"""What writes a unit: once, whole, of the plan that is open; without Spark and without a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.spark_bridge.errors import BackfillError
from headrace.spark_bridge.handover.coordinator import HandoverCoordinator
from headrace.spark_bridge.handover.notes import HandoverOptions, marker_group, transactional_id
from headrace.spark_bridge.handover.units import HandoverUnit
from headrace.spark_bridge.handover.worker import WriteUnit
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.streams.admin.backfill_gate import NoteState, backfill_group
from headrace.streams.errors import ProducerFencedError
from headrace.streams.kafka.protocols import TopicPartition, no_probe
from headrace.streams.testing.memory_clients import MemoryTransactionalProducer
from tests.spark_bridge.support.local_rows import LocalResults, batches_of
from tests.spark_bridge.support.memory_handover import CHANGELOG, NOW_MS, MemoryHandover, aborted
from tests.spark_bridge.support.ways import unit_writer

Batches = Iterator[pa.RecordBatch]


class Opened:
    """A plan that is open, its rows, and what writes them."""

    def __init__(self, handover: MemoryHandover, *, reset: bool = False) -> None:
        self.handover = handover
        self.cluster = handover.cluster
        self.plan: BackfillPlan = handover.plan()
        self.units: tuple[HandoverUnit, ...] = handover.units(self.plan)
        self.local: LocalResults = handover.computed(self.plan)
        self.lead = HandoverCoordinator(handover.target(), "bf-1", timeout_ms=1000, probe=no_probe)
        self.lead.open(self.plan, HandoverOptions("partitioned", "write", reset))
        head = self.lead.notes.open_head
        assert head is not None
        self.write: WriteUnit = unit_writer(
            handover.target(), head, self.plan, self.units, reset=reset
        )

    def unit(self, name: str) -> HandoverUnit:
        return next(unit for unit in self.units if unit.name == name)

    def batches(self, *names: str) -> Batches:
        """The rows of some units, one behind the other."""
        for name in names:
            yield from batches_of(self.local.local.of(self.unit(name)))

    def run(self, batches: Batches, **changed: Any) -> list[dict[str, Any]]:
        """Write, with some fields of the writer changed; returns its reports."""
        write = replace(self.write, **changed)
        return [row for batch in write(batches) for row in batch.to_pylist()]

    def rows(self, topic: str) -> int:
        return len(self.handover.committed(topic))

    def markers(self) -> dict[TopicPartition, Any]:
        return self.cluster.offsets.get(marker_group(self.plan), {})


@pytest.fixture
def handover(monkeypatch: pytest.MonkeyPatch) -> MemoryHandover:
    made = MemoryHandover()
    made.patch(monkeypatch)
    return made


@pytest.fixture
def opened(handover: MemoryHandover) -> Opened:
    return Opened(handover)


def test_a_unit_is_written_with_what_says_that_it_is(opened: Opened) -> None:
    (report,) = opened.run(opened.batches("1_0"))
    written = opened.rows(CHANGELOG)
    assert (report["unit"], report["written"], report["changelog"]) == ("1_0", True, written)
    assert report["sink"] == opened.rows("counted")
    assert report["tombstones"] == 0
    assert written > 0
    assert opened.markers().keys() == set(opened.unit("1_0").inputs)
    assert all(committed.metadata for committed in opened.markers().values())


def test_rows_and_what_says_that_they_are_there_are_one_transaction(opened: Opened) -> None:
    opened.run(opened.batches("1_0"))
    logs = opened.cluster.topics[CHANGELOG].logs
    rows = [(log, n) for log in logs for n, entry in enumerate(log.entries) if entry is not None]
    (transaction,) = {log.writer(n) for log, n in rows}
    assert transaction is not None
    assert transaction.offsets == {marker_group(opened.plan): opened.markers()}


def test_the_markers_of_inputs_are_where_the_plan_ends(opened: Opened) -> None:
    opened.run(opened.batches("0_1"))
    (marker,) = opened.markers().values()
    assert marker.offset == opened.plan.ends[TopicPartition("words", 1)] == 20


def test_a_second_attempt_finds_it_and_writes_nothing(opened: Opened) -> None:
    opened.run(opened.batches("1_0"))
    before = opened.rows(CHANGELOG), opened.rows("counted")
    (report,) = opened.run(opened.batches("1_0"))
    assert (report["written"], report["changelog"], report["sink"]) == (False, 0, 0)
    assert (opened.rows(CHANGELOG), opened.rows("counted")) == before
    (other,) = opened.run(opened.batches("1_1"))
    assert other["written"], "another unit is not there yet"


def test_a_unit_of_which_one_input_is_marked_is_not_written(opened: Opened) -> None:
    """Of a unit of several tasks each has to have said what it knows."""
    first, second = opened.unit("0_0"), opened.unit("0_1")
    both = HandoverUnit("0_0", (*first.tasks, *second.tasks), (*first.inputs, *second.inputs), ())
    opened.run(opened.batches("0_0"))
    (report,) = opened.run(opened.batches("0_0", "0_1"), units=(both,))
    assert report["written"]
    assert opened.markers().keys() == set(both.inputs)


def test_records_for_others_are_left_out_where_they_are_to_be(opened: Opened) -> None:
    (report,) = opened.run(opened.batches("1_0"), with_sinks=False)
    assert report["sink"] == opened.rows("counted") == 0
    assert opened.rows(CHANGELOG) > 0


# -- the plan ----------------------------------------------------------------------------------


def left_by_a_refusal(opened: Opened, **changed: Any) -> tuple[int, int, int]:
    """How many rows, records and markers there are after a unit was refused."""
    with pytest.raises(BackfillError, match="bf-1 is no longer open"):
        opened.run(opened.batches("1_0"), **changed)
    return opened.rows(CHANGELOG), opened.rows("counted"), len(opened.markers())


def test_a_unit_refuses_another_digest_of_the_same_id(opened: Opened) -> None:
    """The plan was dropped, and opened anew with this id: for other records, or on other terms."""
    other = HandoverOptions("partitioned", "skip").digest(opened.plan)
    assert other != opened.write.digest
    assert left_by_a_refusal(opened, digest=other) == (0, 0, 0)


def test_a_unit_refuses_the_plan_of_another_id(opened: Opened) -> None:
    opened.lead.close_with("dropped")
    second = HandoverCoordinator(opened.handover.target(), "bf-2", timeout_ms=1000, probe=no_probe)
    second.open(replace(opened.plan, id="bf-2"), HandoverOptions("partitioned"))
    head = second.notes.open_head
    assert head is not None
    assert left_by_a_refusal(opened, digest=head[1].digest) == (0, 0, 0)


@pytest.mark.parametrize("state", ["dropping", "dropped", "done"])
def test_a_unit_refuses_a_plan_that_is_not_open(opened: Opened, state: NoteState) -> None:
    opened.lead.close_with(state)
    assert left_by_a_refusal(opened) == (0, 0, 0)


def test_a_unit_refuses_where_there_is_no_note(opened: Opened) -> None:
    del opened.cluster.offsets[backfill_group("app")]
    assert left_by_a_refusal(opened) == (0, 0, 0)


# -- other attempts ----------------------------------------------------------------------------


def with_something_between(batches: Batches, happen: Callable[[], None]) -> Batches:
    yield next(batches)
    happen()
    yield from batches


def fence(opened: Opened, unit: str) -> None:
    """Begin another attempt, and no more."""
    identity = transactional_id(opened.plan, unit)
    MemoryTransactionalProducer(opened.cluster, identity).init()


def test_an_attempt_fences_the_one_before_it_looks(opened: Opened) -> None:
    """Otherwise both might find nothing, and both write."""
    seen: list[str] = []

    def probe(step: str, unit: str) -> None:
        seen.append(step)
        if step == "begun":
            owner = opened.cluster.owners[transactional_id(opened.plan, unit)]
            assert owner is not before

    fence(opened, "1_0")
    before = opened.cluster.owners[transactional_id(opened.plan, "1_0")]
    opened.run(opened.batches("1_0"), probe=probe)
    assert seen[0] == "begun"
    assert seen[-2:] == ["written", "committed"]


def test_a_fenced_attempt_finds_what_the_other_has_written(opened: Opened) -> None:
    reports: list[dict[str, Any]] = []

    def twin() -> None:
        reports.extend(opened.run(opened.batches("1_0")))

    (report,) = opened.run(with_something_between(opened.batches("1_0"), twin))
    assert [found["written"] for found in reports] == [True]
    assert report["written"] is False
    assert opened.rows(CHANGELOG) == reports[0]["changelog"]
    assert aborted(opened.cluster, CHANGELOG) + aborted(opened.cluster, "counted") > 0


def test_a_fenced_attempt_fails_where_nobody_writes(opened: Opened) -> None:
    batches = with_something_between(opened.batches("1_0"), lambda: fence(opened, "1_0"))
    with pytest.raises(ProducerFencedError):
        opened.run(batches, wait_s=0.0)
    assert opened.rows(CHANGELOG) == 0
    assert opened.markers() == {}


def test_a_transaction_that_took_too_long_says_so(opened: Opened) -> None:
    batches = with_something_between(opened.batches("1_0"), lambda: fence(opened, "1_0"))
    with pytest.raises(BackfillError, match=r"unit 1_0 .*transaction\.max\.timeout\.ms"):
        opened.run(batches, timeout_s=0.0)


@pytest.mark.parametrize("step", ["batch", "written"])
def test_what_fails_half_way_leaves_nothing_visible(opened: Opened, step: str) -> None:
    def probe(at: str, _: str) -> None:
        if at == step:
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        opened.run(opened.batches("1_0"), probe=probe)
    assert opened.rows(CHANGELOG) == opened.rows("counted") == 0
    assert opened.markers() == {}
    (report,) = opened.run(opened.batches("1_0"))
    assert report["written"]


# -- rows --------------------------------------------------------------------------------------


def test_units_behind_each_other_are_written_one_by_one(opened: Opened) -> None:
    """So Spark merges frames that are partitioned alike."""
    empty = pa.RecordBatch.from_pylist([], schema=next(opened.batches("1_0")).schema)
    reports = opened.run(iter([empty, *opened.batches("0_0", "1_0"), empty]))
    assert [report["unit"] for report in reports] == ["0_0", "1_0"]


def test_a_unit_that_comes_twice_is_refused(opened: Opened) -> None:
    """What came behind it would be taken for another attempt, and be lost."""
    with pytest.raises(BackfillError, match=r"unit 1_0 and of other units are mixed"):
        opened.run(opened.batches("1_0", "1_1", "1_0"))


@pytest.mark.parametrize("column", ["sub", "d"])
def test_a_batch_of_two_units_is_refused(opened: Opened, column: str) -> None:
    rows = [row for batch in opened.batches("1_0") for row in batch.to_pylist()]
    rows[-1][column] += 1
    with pytest.raises(BackfillError, match=r"unit 1_0 and of other units are mixed"):
        opened.run(batches_of(rows))
    assert opened.rows(CHANGELOG) == 0


def test_rows_of_a_task_that_the_plan_has_not_are_refused(opened: Opened) -> None:
    rows = [{**row, "sub": 9} for batch in opened.batches("1_0") for row in batch.to_pylist()]
    with pytest.raises(BackfillError, match="plan does not have task 9_0"):
        opened.run(batches_of(rows))


def test_a_unit_without_its_progress_is_not_committed(opened: Opened) -> None:
    """Not all of what was computed is there."""
    batches = list(opened.batches("1_0"))
    rows = [row for batch in batches for row in batch.to_pylist() if row["kind"] != "progress"]
    with pytest.raises(BackfillError, match=r"rows of unit 1_0 are missing: .*by-word"):
        opened.run(batches_of(rows))
    assert opened.rows(CHANGELOG) == 0
    assert opened.markers() == {}


# -- old rows ----------------------------------------------------------------------------------


def location_of(opened: Opened, key: bytes) -> int:
    """Where a word's count goes."""
    (found,) = [
        place.partition
        for place in opened.cluster.partitions(CHANGELOG)
        if any(row["key"] == key for row in rows_of_changelog(opened, place.partition))
    ]
    return found


def rows_of_changelog(opened: Opened, partition: int) -> Sequence[dict[str, Any]]:
    rows = opened.local.local.of(opened.unit(f"1_{partition}"))
    return [row for row in rows if row["kind"] == "changelog"]


def test_keys_of_before_that_are_not_written_again_get_tombstones(
    handover: MemoryHandover,
) -> None:
    handover.plan()
    append = handover.cluster.append
    for partition in range(2):
        append(CHANGELOG, b"old", b"gone%d" % partition, partition, 0, None)
        append(CHANGELOG, None, b"deleted before", partition, 0, None)
        for n in range(7):
            append(CHANGELOG, b"old", b"w%d" % n, partition, 0, None)
    opened = Opened(handover, reset=True)
    (report,) = opened.run(opened.batches("1_0"))
    mine = {row["key"] for row in rows_of_changelog(opened, 0)}
    log = opened.cluster.log(TopicPartition(CHANGELOG, 0))
    written = [r for r in log.entries[9:] if r is not None]
    tombstones = {r.key() for r in written if r.value() is None}
    assert mine
    assert tombstones == {b"gone0", *(b"w%d" % n for n in range(7))} - mine
    assert report["tombstones"] == len(tombstones)
    assert {r.timestamp()[1] for r in written if r.value() is None} == {NOW_MS}
    assert {r.key() for r in written if r.value() is not None} == mine
    assert opened.cluster.log(TopicPartition(CHANGELOG, 1)).end == 9, "the other unit's"


def test_what_an_aborted_attempt_left_is_no_row_of_before(handover: MemoryHandover) -> None:
    handover.plan()
    opened = Opened(handover, reset=True)
    batches = with_something_between(opened.batches("1_0"), lambda: fence(opened, "1_0"))
    with pytest.raises(ProducerFencedError):
        opened.run(batches, wait_s=0.0)
    (report,) = opened.run(opened.batches("1_0"))
    assert report["tombstones"] == 0
