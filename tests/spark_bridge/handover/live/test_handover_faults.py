"""Hand-overs that fail on their way, on a real broker: none lost, none doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.spark_bridge.records.packs import RESULT
from headrace.streams.errors import BackfillOpenError
from tests.spark_bridge.support.handed import Handed
from tests.spark_bridge.support.handover_faults import KINDS, Kind, UnitFault
from tests.spark_bridge.support.local_rows import LocalResults
from tests.spark_bridge.support.ways import (
    find,
    finish_partitioned,
    hand_over_by_driver,
    hand_over_partitioned,
    left_to_write,
)
from tests.support import kafka
from tests.support.live import Live
from tests.support.processes import AppProcess
from tests.support.topics import Topics

UNIT = "1_0"
LINES = 200


@pytest.fixture
def handed(topics: Topics, tmp_path: Path) -> Handed:
    made = Handed(topics, tmp_path)
    made.write(LINES)
    return made


class SparkRows:
    """Results whose rows are in Spark, those of each unit in a partition of their own."""

    def __init__(self, spark: Any, local: LocalResults) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
        self.plan = local.plan
        rows, units = local.local.rows, local.local.units
        number_of = {task: i for i, unit in enumerate(units) for task in unit.tasks}
        table = pa.Table.from_pylist(list(rows), schema=RESULT)
        numbers = [number_of[row["sub"], row["d"]] for row in rows]
        frame = spark.createDataFrame(table.append_column("unit", pa.array(numbers, pa.int32())))
        self._frame = (
            frame.repartitionById(len(units), F.col("unit"))
            .sortWithinPartitions("unit", "kind", "number")
            .select(*RESULT.names)
        )

    def run(self, work: Any, ddl: str) -> Any:
        """As `Results` does, with small batches, so that a fault can come between two."""
        return self._frame.mapInArrow(work, ddl).collect()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.long) if kind == "raise_half_way" else kind
        for kind in KINDS
    ],
)
def test_a_task_that_fails_is_run_again_and_nothing_is_lost_or_doubled(
    spark: Any, handed: Handed, tmp_path: Path, kind: Kind
) -> None:
    """Spark's own second attempt; afterwards the live application goes on, warm."""
    local = handed.computed(handed.plan("bf-1"))
    fault = UnitFault(kind, UNIT, str(tmp_path), handed.told)
    try:
        results = SparkRows(spark, local)
        report = hand_over_partitioned(
            results, handed.application, summary=local.local.summary(), unit_probe=fault
        )
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert fault.has_happened
    assert report.units == 4
    handed.check_recount()
    committed = len(kafka.read(handed.bootstrap, handed.sink))
    visible = len(kafka.read(handed.bootstrap, handed.sink, "read_uncommitted"))
    if kind != "raise_after_commit":
        assert visible > committed, "the fault came before anything was sent"
    handed.go_on_live()


@pytest.mark.parametrize(
    "step",
    [
        "handover_opened",
        pytest.param("unit_0", marks=pytest.mark.long),
        "unit_2",
        pytest.param("handover_written", marks=pytest.mark.long),
        "handover_checked",
    ],
)
def test_the_next_driver_with_the_same_id_does_the_rest(
    handed: Handed, tmp_path: Path, step: str
) -> None:
    """The first one ends without a word; until the second is done the application refuses."""
    first = AppProcess({**handed.told, "id": "bf-1", "step": step}, tmp_path / "driver.log",
                       "tests.spark_bridge.support.handover_driver_process")  # fmt: skip
    assert first.wait() == 77, first.text()[-4000:]
    assert handed.offsets() == {}
    assert isinstance(Live(handed.topology, handed.settings).failure(), BackfillOpenError)
    handed.write(10, live=True)
    application = handed.application
    found = find(application, "bf-1")
    assert found.plan is not None
    assert found.is_partitioned
    written = {"unit_0": 1, "unit_2": 3, "handover_written": 4, "handover_checked": 4}.get(step, 0)
    left = left_to_write(application, found.plan)
    assert len(left) == 4 - written
    if left:
        local = handed.computed(found.plan)
        report = hand_over_partitioned(local, application, summary=local.local.summary())
    else:
        report = finish_partitioned(application, found.plan)
        assert report.counts.total == 0
    assert report.found == written
    handed.go_on_live()


def test_a_driver_that_died_after_the_flip_left_nothing_to_do(
    handed: Handed, tmp_path: Path
) -> None:
    first = AppProcess({**handed.told, "id": "bf-1", "step": "handover_committed"},
                       tmp_path / "driver.log",
                       "tests.spark_bridge.support.handover_driver_process")  # fmt: skip
    assert first.wait() == 77, first.text()[-4000:]
    assert find(handed.application, "bf-1").is_done
    handed.check_recount()
    handed.go_on_live()


@pytest.mark.parametrize(
    "step",
    [
        "handover_opened",
        pytest.param("handover_written", marks=pytest.mark.long),
        "handover_checked",
    ],
)
def test_of_a_driver_that_died_with_its_one_transaction_nothing_is_visible(
    handed: Handed, tmp_path: Path, step: str
) -> None:
    """The second one begins anew; its identity ends what the first one left open."""
    first = AppProcess({**handed.told, "id": "bf-1", "step": step, "how": "driver"},
                       tmp_path / "driver.log",
                       "tests.spark_bridge.support.handover_driver_process")  # fmt: skip
    assert first.wait() == 77, first.text()[-4000:]
    if step != "handover_opened":
        assert kafka.read(handed.bootstrap, handed.sink, "read_uncommitted")
    handed.check_empty()
    assert isinstance(Live(handed.topology, handed.settings).failure(), BackfillOpenError)
    found = find(handed.application, "bf-1")
    assert found.plan is not None
    assert not found.is_partitioned
    local = handed.computed(found.plan)
    hand_over_by_driver(local, handed.application, summary=local.local.summary())
    handed.check_recount()
    handed.go_on_live()


def test_a_twin_of_the_driver_fences_the_first_one(handed: Handed) -> None:
    """Two drivers with one id: the later one goes on, the earlier one commits nothing."""
    from headrace.spark_bridge.errors import BackfillError

    plan = handed.plan("bf-1")
    local = handed.computed(plan)

    def second(step: str) -> None:
        if step == "handover_checked":
            hand_over_partitioned(local, handed.application, summary=local.local.summary())

    with pytest.raises(BackfillError, match="another driver"):
        hand_over_partitioned(
            local, handed.application, summary=local.local.summary(), probe=second
        )
    handed.check_recount()
