"""Two attempts of one unit at the same time, as speculation makes them, on a real broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.spark_bridge.errors import BackfillError
from headrace.spark_bridge.handover.coordinator import HandoverCoordinator
from headrace.spark_bridge.handover.notes import HandoverOptions, transactional_id
from headrace.spark_bridge.handover.rows import make_producer
from headrace.spark_bridge.handover.target import HandoverTarget
from headrace.spark_bridge.handover.units import units_of
from headrace.spark_bridge.handover.worker import WriteUnit
from headrace.streams.errors import ProducerFencedError
from headrace.streams.kafka.protocols import no_probe
from tests.spark_bridge.support.handed import Handed
from tests.spark_bridge.support.local_rows import batches_of
from tests.spark_bridge.support.ways import hand_over_partitioned, unit_writer
from tests.support.topics import Topics

Probe = Callable[[str, str], None]


class Twins:
    """A plan that is open, and attempts of its last unit."""

    def __init__(self, handed: Handed) -> None:
        handed.write(100)
        self.handed = handed
        self.plan = handed.plan("bf-1")
        self.local = handed.computed(self.plan)
        self.units = units_of(handed.application, self.plan)
        self.target = HandoverTarget.live(handed.application)
        lead = HandoverCoordinator(self.target, "bf-1", timeout_ms=60_000, probe=no_probe)
        lead.open(self.plan, HandoverOptions("partitioned"))
        lead.producer.close()

    def writer(self, probe: Probe, **more: Any) -> WriteUnit:
        head = self.target.notes().open_head
        assert head is not None
        made = unit_writer(self.target, head, self.plan, self.units, reset=False, probe=probe)
        return replace(made, **more)

    def write(self, probe: Probe, **more: Any) -> dict[str, Any]:
        """Write the last unit; returns what the attempt reports."""
        rows = self.local.local.of(self.units[-1])
        (report,) = self.writer(probe, **more)(batches_of(rows))
        (row,) = report.to_pylist()
        return dict(row)

    def fence(self) -> None:
        """Begin another attempt that never does anything."""
        identity = transactional_id(self.plan, self.units[-1].name)
        producer = make_producer(self.target.producer_settings(identity, 60_000))
        producer.init()
        producer.close()


@pytest.fixture
def twins(topics: Topics, tmp_path: Path) -> Twins:
    return Twins(Handed(topics, tmp_path))


def test_an_attempt_that_is_fenced_waits_for_the_one_that_writes(twins: Twins) -> None:
    """Four that fail would end Spark's stage, though the unit is being written all the time."""
    begun, reports = threading.Event(), []
    first_waits = threading.Event()

    def slow(step: str, unit: str) -> None:
        if step == "begun":
            begun.set()
        if step == "written":
            assert first_waits.wait(20)

    def on_batch(step: str, unit: str) -> None:
        if step == "batch" and not second.is_alive():
            second.start()
            assert begun.wait(20)
        if step == "fenced":
            first_waits.set()

    second = threading.Thread(target=lambda: reports.append(twins.write(slow)))
    first = twins.write(on_batch)
    second.join()
    assert first["written"] is False
    assert [report["written"] for report in reports] == [True]
    results: Any = twins.local
    hand_over_partitioned(results, twins.handed.application, summary=twins.local.local.summary())
    twins.handed.check_recount()


def test_an_attempt_that_is_fenced_fails_if_nobody_writes_the_unit(twins: Twins) -> None:
    is_fenced = False

    def on_batch(step: str, unit: str) -> None:
        nonlocal is_fenced
        if step == "batch" and not is_fenced:
            is_fenced = True
            twins.fence()

    with pytest.raises(ProducerFencedError):
        twins.write(on_batch, wait_s=0.2)
    is_fenced = False
    with pytest.raises(BackfillError, match=r"unit 1_1 .*transaction\.max\.timeout\.ms"):
        twins.write(on_batch, timeout_s=0.0)
