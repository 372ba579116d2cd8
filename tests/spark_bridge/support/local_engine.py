"""Runs a backfill without Spark and without a broker: its stages over a cluster in memory.

What Spark does between the stages is in `local_packs`. Everything else is the production code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from headrace.spark_bridge.history.planning import Until, make_plan
from headrace.spark_bridge.plan.job import (
    CompiledApplication,
    StageJob,
    combined_topics,
    pack_application,
)
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.packs import RESULT, RESULT_KINDS
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.local_cluster import Transaction
from headrace.streams.testing.memory_clients import MemoryAdmin, MemoryConsumer
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.topology.topology import Topology
from tests.spark_bridge.support.local_packs import Pack, rows_of, run_stage

Seen = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]
"""Key, value, timestamp and headers."""


class ResultRow(NamedTuple):
    """A row of a backfill's results."""

    kind: str
    sub: int
    d: int
    topic: str
    partition: int
    number: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes | None]] | None


class HistoryMemoryAdmin(MemoryAdmin):
    """Knows last stable offsets, too."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster)
        self._logs = cluster.log

    def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: self._logs(place).last_stable for place in partitions}

    def offsets_at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int, *, committed: bool = True
    ) -> dict[TopicPartition, int | None]:
        return {
            place: next(
                (
                    m.offset()
                    for m in self._logs(place).entries
                    if m is not None and m.timestamp()[1] >= timestamp_ms
                ),
                None,
            )
            for place in partitions
        }


def backfilled(
    topology: Topology,
    settings: Mapping[str, object],
    cluster: MemoryCluster,
    *,
    until: Until = "latest",
    order: str = "exact",
    memory_bytes: int = 1 << 30,
    uncommitted_bytes: int | None = None,
) -> tuple[BackfillPlan, list[ResultRow]]:
    """Compute a backfill; returns its plan and its results, in the order of `Results.batches`.

    Skips the test where pyspark is not installed, whose pickler packs the application.
    """
    pytest.importorskip("pyspark")
    config = StreamsConfig.parse(
        {"application.id": "test", "bootstrap.servers": "nowhere:1", **settings}
    )
    if uncommitted_bytes is not None:  # less than the settings allow
        config = replace(config, statestore_uncommitted_max_bytes=uncommitted_bytes)
    application = CompiledApplication.of(topology, config)
    plan = make_plan(
        application, HistoryMemoryAdmin(cluster), id="b", now_ms=0, until=until, create=True
    )
    combined = combined_topics(topology, config, order)
    job = StageJob(
        pack_application(topology, config),
        plan.to_text(),
        (),
        combined,
        memory_bytes=memory_bytes,
    )
    packs: list[Pack] = []
    for stage in plan.stages:
        packs += run_stage(
            replace(job, stage=stage),
            packs,
            lambda: MemoryConsumer(cluster, group=None, committed=config.reads_committed),
        )
    found = [pack for pack in packs if pack["kind"] in RESULT_KINDS]
    return plan, [_result(row) for row in rows_of(found)]


def _result(row: dict[str, Any]) -> ResultRow:
    values = {name: row[name] for name in RESULT.names}
    if values["headers"] is not None:
        values["headers"] = [(pair["name"], pair["value"]) for pair in values["headers"]]
    return ResultRow(**values)


def hand_over(
    plan: BackfillPlan, rows: Sequence[ResultRow], cluster: MemoryCluster, application_id: str
) -> None:
    """Write results as a hand-over does: all in one transaction, the offsets with it."""
    transaction = Transaction()
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for row in rows:
        place = TopicPartition(row.topic, row.partition)
        if row.kind == "progress":
            assert row.value is not None
            end = plan.ends.get(place)
            offset = cluster.log(place).end if end is None else end
            offsets[place] = CommittedOffset(offset, row.value.decode())
        else:
            cluster.append(
                row.topic, row.value, row.key, row.partition, row.timestamp, row.headers,
                transaction,
            )  # fmt: skip
    transaction.offsets[application_id] = offsets
    cluster.end(transaction, committed=True)


def outputs_of(driver: TopologyTestDriver, topic: str) -> list[list[Seen]]:
    """The committed records of each partition of a topic."""
    if topic not in driver.cluster.topics:
        return []
    seen = []
    for log in driver.cluster.topics[topic].logs:
        found, _ = log.read(0, 1 << 30, committed=True)
        seen.append(
            [(m.key(), m.value(), m.timestamp()[1], tuple(m.headers() or ())) for m in found]
        )
    return seen


def goes_anywhere(driver: TopologyTestDriver) -> bool:
    """Whether a record without a key is in a repartition topic.

    Left and outer joins take those whose key was taken away, and producers put them into any
    partition. There they move the task's stream time, which ends what waits beside them: two live
    runs differ in that, too.
    """
    return any(
        record[0] is None
        for topic in driver.cluster.topics
        if topic.endswith("-repartition")
        for partition in outputs_of(driver, topic)
        for record in partition
    )


def last_of(seen: Sequence[Sequence[Seen]]) -> list[dict[bytes | None, Seen]]:
    """The last update of each key, by partition; nothing at all says as much as a deletion."""
    found = [{one[0]: one for one in partition} for partition in seen]
    return [{key: one for key, one in last.items() if one[1] is not None} for last in found]


def store_rows_of(
    driver: TopologyTestDriver,
) -> dict[tuple[str, str], list[tuple[bytes, Any, int]]]:
    """All rows of all stores of the running tasks, by task and store."""
    driver.run()
    assert driver._worker.worker is not None
    return {
        (str(task.id), store.name): list(task.rows(store.name))
        for task in driver._worker.worker.tasks.running
        for store in task.spec.stores
    }
