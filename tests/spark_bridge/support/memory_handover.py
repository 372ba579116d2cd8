"""A hand-over to a cluster in memory: all but Kafka's clients and Spark is the production code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import structlog

from headrace.spark_bridge.handover import coordinator as handover_coordinator
from headrace.spark_bridge.handover import drop as handover_drop
from headrace.spark_bridge.handover import handover as handover_partitioned
from headrace.spark_bridge.handover import worker as handover_worker
from headrace.spark_bridge.handover.target import HandoverTarget
from headrace.spark_bridge.handover.units import HandoverUnit, units_of
from headrace.spark_bridge.history.planning import make_plan
from headrace.spark_bridge.plan.job import CompiledApplication, StageJob, pack_application
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.packs import RESULT_KINDS
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    GroupMetadata,
    Member,
    Offsets,
    TopicPartition,
)
from headrace.streams.testing.memory_clients import MemoryConsumer, MemoryTransactionalProducer
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.spark_bridge.support.local_engine import HistoryMemoryAdmin
from tests.spark_bridge.support.local_packs import Pack, rows_of, run_stage
from tests.spark_bridge.support.local_rows import LocalResults, LocalRows

NOW_MS = 1_700_000_000_000
SETTINGS: dict[str, Any] = {
    "application.id": "app",
    "bootstrap.servers": "nowhere:1",
    "statestore.cache.max.bytes": 0,
}
CHANGELOG = "app-counts-changelog"


class TargetMemoryAdmin(HistoryMemoryAdmin):
    """What tools ask of a cluster, too.

    See `headrace.spark_bridge.handover.target.GroupAdminClient`.
    """

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster)
        self.running: list[Member] = []

    def members(self, group: str) -> tuple[Member, ...]:
        assert group == "app"
        return tuple(self.running)

    def transaction_timeout_max_ms(self) -> int:
        return 900_000

    def delete_groups(self, names: Iterable[str]) -> None:
        for name in names:
            self._cluster.offsets.pop(name, None)

    def delete_topics(self, names: Iterable[str]) -> None:
        for name in names:
            self._cluster.delete(name)


class MemoryGroups:
    """Offsets of groups (see `headrace.streams.plan.deployed.OffsetClient`)."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        del decided
        return dict(self._cluster.offsets.get(group, {}))

    def committed_at(
        self, group: str, places: Iterable[TopicPartition], *, decided: bool = True
    ) -> dict[TopicPartition, CommittedOffset]:
        del decided
        found = self._cluster.offsets.get(group, {})
        return {place: found[place] for place in places if place in found}

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        self._cluster.commit_offsets(group, offsets)


def counting() -> Topology:
    """Counts the values of a topic, in two sub-topologies."""
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    by_word = words.group_by(lambda _, word: word, key=serdes.string, name="by-word")
    by_word.count(store="counts").to_stream().to("counted", key=serdes.string, value=serdes.long)
    return builder.build()


@dataclass
class MemoryHandover:
    """An application with 40 words in two partitions, on a cluster of this process."""

    cluster: MemoryCluster = field(default_factory=lambda: MemoryCluster(partitions=2))
    topology: Topology = field(default_factory=counting)
    partitions: int = 2

    def __post_init__(self) -> None:
        for topic in ("words", "counted"):
            self.cluster.create(topic)
        self.admin = TargetMemoryAdmin(self.cluster)
        self.application = CompiledApplication.of(self.topology, SETTINGS)
        self.write(40)

    def write(self, count: int) -> None:
        for n in range(count):
            word = b"w%d" % (n % 7)
            self.cluster.append("words", word, b"k%d" % n, n % self.partitions, NOW_MS + n, None)

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Have clients of this cluster made where the bridge makes its own."""

        def make_producer(settings: Mapping[str, Any]) -> MemoryTransactionalProducer:
            return MemoryTransactionalProducer(self.cluster, settings["transactional.id"])

        def group_metadata(_: object, group: str) -> GroupMetadata:
            return MemoryConsumer(self.cluster, group=group, committed=True).group_metadata()

        for module in (handover_drop, handover_coordinator, handover_worker):
            patch.setattr(module, "make_producer", make_producer)
        for module in (handover_coordinator, handover_worker):
            patch.setattr(module, "group_metadata", group_metadata)
        patch.setattr(handover_partitioned, "consumer_opener", lambda _: self.consumer)
        patch.setattr(
            "headrace.streams.kafka.group_offsets.MemberlessGroup", lambda *_, **__: self.groups
        )
        patch.setattr("headrace.streams.kafka.group_admin.GroupAdmin", lambda *_, **__: self.admin)

    @property
    def groups(self) -> MemoryGroups:
        return MemoryGroups(self.cluster)

    def consumer(self) -> Any:
        return MemoryConsumer(self.cluster, group=None, committed=True)

    def target(self) -> HandoverTarget:
        log = structlog.get_logger()
        return HandoverTarget(
            self.application, self.admin, self.groups, self.consumer, log, lambda: NOW_MS
        )

    def plan(self, backfill_id: str = "bf-1") -> BackfillPlan:
        return make_plan(
            self.application,
            self.admin,
            id=backfill_id,
            now_ms=NOW_MS,
            until="latest",
            create=True,
        )

    def computed(self, plan: BackfillPlan) -> LocalResults:
        """Run the stages of a plan."""
        job = StageJob(pack_application(self.topology, SETTINGS), plan.to_text(), ())
        packs: list[Pack] = []
        for stage in plan.stages:
            packs += run_stage(replace(job, stage=stage), packs, self.consumer)
        rows = rows_of([pack for pack in packs if pack["kind"] in RESULT_KINDS])
        return LocalResults(LocalRows(rows, self.units(plan)), plan)

    def units(self, plan: BackfillPlan) -> tuple[HandoverUnit, ...]:
        return units_of(self.application, plan)

    # -- what there is ---------------------------------------------------------------------------

    def committed(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values of the committed records of a topic."""
        logs = self.cluster.topics[topic].logs
        found = [log.read(0, 1 << 30, committed=True)[0] for log in logs]
        return [(record.key(), record.value()) for records in found for record in records]

    def state(self) -> dict[bytes | None, int]:
        """What the changelog comes to."""
        last = dict(self.committed(CHANGELOG))
        return {key: serdes.long.deserialize(v) for key, v in last.items() if v is not None}

    def counted(self) -> dict[bytes | None, list[int]]:
        """What the sink has of each word."""
        found: dict[bytes | None, list[int]] = {}
        for key, value in self.committed("counted"):
            assert value is not None
            found.setdefault(key, []).append(serdes.long.deserialize(value))
        return found

    def expected(self) -> dict[bytes | None, int]:
        """How often each word is there."""
        words = [value for _, value in self.committed("words")]
        return {word: words.count(word) for word in words}

    def check_handed_over(self) -> None:
        """State, sink and offsets are those of all words, each counted once."""
        expected = self.expected()
        assert self.state() == expected
        assert self.counted() == {word: list(range(1, n + 1)) for word, n in expected.items()}
        offsets = self.cluster.offsets["app"]
        for place in self.cluster.partitions("words"):
            assert offsets[place].offset == self.cluster.log(place).end
        assert {place.topic for place in offsets} == {"words", "app-by-word-repartition"}

    def check_empty(self) -> None:
        """Nothing of a backfill is visible."""
        assert self.state() == {}
        assert self.counted() == {}
        assert self.cluster.offsets.get("app", {}) == {}


def aborted(cluster: MemoryCluster, topic: str) -> int:
    """How many records of a topic are of transactions that were aborted."""
    logs: Sequence[Any] = cluster.topics[topic].logs
    records = [(log, n) for log in logs for n, entry in enumerate(log.entries) if entry is not None]
    writers = [log.writer(n) for log, n in records]
    return sum(writer is not None and writer.committed is False for writer in writers)
