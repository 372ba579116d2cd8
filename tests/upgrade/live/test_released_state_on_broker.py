"""Today's code continues from a release's state and topics on a real broker."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.state.codec import partition_for_key
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.group_offsets import MemberlessGroup
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.identity import changelog_number, id_values
from headrace.streams.plan.plan import TaskId
from headrace.streams.plan.progress import OffsetMetadata
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.testing import DevBroker
from tests.support.live import live
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.release_app import (
    APPLICATION_ID,
    PARTITIONS,
    Send,
    input_steps,
    release_topology,
)
from tests.support.release_state import (
    SETTINGS,
    ClusterSnapshot,
    Results,
    TransactionRun,
    extract_state,
    make_driver,
    read_results,
    read_topics,
    release_directories,
    results_of,
)
from tests.support.warm import await_coordinators

pytestmark = pytest.mark.broker

Ids = dict[str, str]
"""The id of each topic by its name."""
OPEN = {
    # They depend on the time at which the global table is read.
    *("topic out-named", "store names"),
    # The rows of the store in memory are not in files.
    "store in-memory",
    # They depend on how many updates a commit combines.
    *("topic out-calm", "store calm-store"),
    # Whether a late record is counted depends on when the other partitions were read.
    *("topic out-hopping", "store hopping", "topic out-once"),
    # Expired rows are deleted by a commit, and waiting records are numbered.
    *("store orders-once", "store visit-amounts", "store visit-sessions", "store rated-Buffer"),
}
"""Results that are not determined by the input alone; the tests in memory compare them."""


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[str]:
    """Broker without other topics: those of a release have fixed names."""
    broker = DevBroker(tmp_path / "broker", port=0)
    with broker:
        await_coordinators(broker.bootstrap)
        yield broker.bootstrap


def clients(bootstrap: str) -> dict[str, str]:
    return {"bootstrap.servers": bootstrap}


def load(topics: ClusterSnapshot, bootstrap: str) -> Ids:
    """Write the topics of a release to a broker; return the ids that they have there."""
    new = [
        # Records and rows have old times, and stay.
        NewTopic(t.name, len(t.partitions), config={**t.config, "retention.ms": "-1"})
        for t in topics.topics
    ]
    creator = AdminClient(clients(bootstrap))
    for created in creator.create_topics(new).values():
        created.result(timeout=PATIENCE_S)
    admin = GroupAdmin(clients(bootstrap), timeout_s=PATIENCE_S)
    write_runs(topics, bootstrap)
    tps = {p.tp: p.start for topic in topics.topics for p in topic.partitions}
    admin.delete_records({tp: start for tp, start in tps.items() if start})
    described = admin.describe([topic.name for topic in topics.topics])
    assert admin.end_offsets(tps) == ends_in_memory(topics)
    return {name: found.topic_id for name, found in described.items()}


def ends_in_memory(topics: ClusterSnapshot) -> dict[TopicPartition, int]:
    runs = {p.tp: p.runs for topic in topics.topics for p in topic.partitions}
    return {
        tp: sum(len(run.records) + (run.committed is not None) for run in own)
        for tp, own in runs.items()
    }


def write_runs(topics: ClusterSnapshot, bootstrap: str) -> None:
    """Write the runs of each partition in their order, those of several partitions together."""
    left = {p.tp: list(p.runs) for topic in topics.topics for p in topic.partitions}
    plain = confluent_kafka.Producer(clients(bootstrap))
    transactional = confluent_kafka.Producer(
        {**clients(bootstrap), "transactional.id": "release", "linger.ms": 0}
    )
    transactional.init_transactions(PATIENCE_S)
    while any(left.values()):
        for committed in (None, True, False):
            now = {tp: runs.pop(0) for tp, runs in left.items() if is_next(runs, committed)}
            if not now:
                continue
            producer = plain if committed is None else transactional
            if committed is not None:
                producer.begin_transaction()
            for tp, run in now.items():
                for r in run.records:
                    producer.produce(
                        *(tp.topic, r.value, r.key, tp.partition),
                        timestamp=r.timestamp_ms,
                        headers=r.headers,
                    )
            assert producer.flush(PATIENCE_S) == 0
            if committed is not None:
                end = producer.commit_transaction if committed else producer.abort_transaction
                end(PATIENCE_S)


def is_next(runs: Sequence[TransactionRun], committed: bool | None) -> bool:
    return bool(runs) and runs[0].committed is committed


def with_ids(offset: CommittedOffset, before: Ids, now: Ids) -> CommittedOffset:
    """Replace the ids in an offset's metadata: a broker does not let its clients choose ids."""
    metadata = OffsetMetadata.parse(offset.metadata)
    if metadata is None:  # the description of the topology
        return offset
    values = dict(metadata.values)
    for topic, topic_id in now.items():
        fresh = {**id_values(topic, topic_id), **dict([changelog_number(topic, topic_id)])}
        known = {
            **id_values(topic, before[topic]),
            **dict([changelog_number(topic, before[topic])]),
        }
        for name, number in known.items():
            if name in values:
                assert values[name] == number
                values[name] = fresh[name]
    return CommittedOffset(offset.offset, OffsetMetadata(metadata.partition_time, values).encode())


def replace_positions(driver: TopologyTestDriver, now: Ids) -> None:
    """Replace the ids and the times in the local state of tasks; old rows would be restored."""
    for plan in driver._plans:
        stores = plan.program.sub_topology.stores
        for partition in range(2):
            home = driver._worker.disk.open(TaskId(plan.id, partition), stores)
            for name, topic in plan.changelogs.items():
                if (position := home.state.position(name)) is not None:
                    wall_ms = int(time.time() * 1000)
                    position = replace(position, topic_id=now[topic], wall_ms=wall_ms)
                    home.state.write({}, {name: position})
    driver._worker.disk.process_ended()


class Sender:
    """Writer of input records that waits until the results of each of them were committed.

    Otherwise the order in which a task reads its inputs would depend on the speed of others.
    """

    def __init__(self, driver: TopologyTestDriver, bootstrap: str) -> None:
        self._driver = driver
        self._producer = confluent_kafka.Producer({**clients(bootstrap), "linger.ms": 0})
        self._group = confluent_kafka.Consumer({**clients(bootstrap), "group.id": APPLICATION_ID})

    def send(self, step: Send) -> None:
        source = self._driver.input(step.topic)
        key = source.key_serde.serialize(step.key)
        value = None if step.value is None else source.value_serde.serialize(step.value)
        offsets: list[int] = []
        partition = partition_for_key(key, PARTITIONS)
        self._producer.produce(
            *(step.topic, value, key, partition),
            timestamp=step.timestamp_ms,
            on_delivery=lambda _, message: offsets.append(message.offset()),
        )
        assert self._producer.flush(PATIENCE_S) == 0
        if step.topic == "names":  # a global table has no committed offsets
            return
        tp = confluent_kafka.TopicPartition(step.topic, partition)
        wait_until(
            lambda: self._group.committed([tp], timeout=PATIENCE_S)[0].offset > offsets[0],
            what=f"commit of {step}",
        )
        self._await_repartitioned()

    def _await_repartitioned(self) -> None:
        """Wait until the records of the repartition topics were committed, too."""
        internal = [
            confluent_kafka.TopicPartition(*tp)
            for plan in self._driver._plans
            for topic in plan.topics.repartition_sources
            for tp in self._driver.cluster.partitions(topic)
        ]
        wait_until(
            lambda: all(
                # The last entry is the marker of a transaction.
                tp.offset >= self._group.get_watermark_offsets(tp)[1] - 1
                for tp in self._group.committed(internal, timeout=PATIENCE_S)
            ),
            what="commit of all repartitioned records",
        )

    def close(self) -> None:
        self._group.close()


LastResults = dict[tuple[str, str], Any]


def differences(found: LastResults, expected: LastResults) -> dict[tuple[str, str], object]:
    """Return what was found, and what was expected, of each result that differs."""
    return {
        result: (found.get(result), expected.get(result))
        for result in sorted({*found, *expected})
        if found.get(result) != expected.get(result)
    }


def unexpired(driver: TopologyTestDriver, found: LastResults, expected: LastResults) -> LastResults:
    """Leave out expired rows, which stay on disk until their whole segment has expired.

    The driver, which only reads the files, does not know how far stream time is.
    """
    stores = [store.spec for plan in driver._plans for store in plan.program.sub_topology.stores]
    expired_before = {}
    for spec in stores:
        times = [row[0][0] for (name, _), row in expected.items() if name == f"store {spec.name}"]
        if spec.segmented and spec.retention_ms is not None:
            expired_before[f"store {spec.name}"] = max(times, default=-1) - spec.retention_ms

    def time_of(result: tuple[str, str]) -> int:
        time = re.search(r"(?:timestamp_ms|start_ms)=(\d+)", result[1])
        return sys.maxsize if time is None else int(time[1])

    return {
        result: row
        for result, row in found.items()
        if result in expected or time_of(result) >= expired_before.get(result[0], -1)
    }


def outputs(bootstrap: str, starts: Mapping[TopicPartition, int], directory: Path) -> LastResults:
    """Return the last output record of each key, read from some offsets on."""
    with make_driver(directory) as driver:
        read_outputs(driver, bootstrap, starts)
        found = last_results(results_of(driver, {}))
    return {result: row for result, row in found.items() if result[0].startswith("topic")}


def last_results(results: Results) -> LastResults:
    """Return the last record of each key, and the rows: how many updates come before is open."""
    return {
        (name, key): rows[-1] if name.startswith("topic ") else rows
        for name, own in results.items()
        if name not in OPEN
        for key, rows in own.items()
    }


def read_outputs(
    driver: TopologyTestDriver, bootstrap: str, starts: Mapping[TopicPartition, int]
) -> None:
    """Copy the output records after some offsets into the driver's cluster."""
    consumer = confluent_kafka.Consumer(
        {
            **clients(bootstrap),
            "group.id": "reader",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    tps = [tp for topic in driver.output_topics for tp in driver.cluster.partitions(topic)]
    consumer.assign([confluent_kafka.TopicPartition(*tp, starts[tp]) for tp in tps])
    left = len(tps)
    while left:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        if message.error():
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            left -= 1
            continue
        driver.cluster.append(
            message.topic(), message.value(), message.key(), message.partition(),
            message.timestamp()[1], message.headers(),
        )  # fmt: skip
    consumer.close()


@pytest.mark.parametrize("release", release_directories(), ids=lambda path: path.name)
@pytest.mark.parametrize("has_files", [True, False], ids=["local state", "changelogs"])
def test_a_release_is_continued_on_a_broker(
    own_broker: str, release: Path, tmp_path: Path, has_files: bool
) -> None:
    topics = read_topics(release)
    now = load(topics, own_broker)
    before = {topic.name: topic.id for topic in topics.topics}
    group = MemberlessGroup(clients(own_broker), timeout_s=PATIENCE_S, stopping=lambda: False)
    for name, offsets in topics.offsets.items():
        moved = {tp: with_ids(offset, before, now) for tp, offset in offsets.items()}
        group.set_offsets(name, moved)
    driver = make_driver(tmp_path / "state")
    if has_files:
        extract_state(release, tmp_path)
        replace_positions(driver, now)
    settings = {
        **SETTINGS,
        **clients(own_broker),
        "state.dir": str(tmp_path / "state"),
        "worker.id": "w",
        "commit.interval.ms": 0,
        "poll.ms": 10,
    }
    expected = last_results(read_results(release))
    starts = ends_in_memory(topics)
    sender = Sender(driver, own_broker)
    with live(release_topology(), settings) as running:
        running.wait_running()
        restored = {one.store for one in running.restored if one.total}
        for step in input_steps("after"):
            if isinstance(step, Send):
                sender.send(step)
        # Time that passes upstream emits results after the last record was committed.
        emitted = {result: row for result, row in expected.items() if result[0].startswith("topic")}
        wait_until(
            lambda: not differences(outputs(own_broker, starts, tmp_path / "probe"), emitted),
            what=lambda: str(differences(outputs(own_broker, starts, tmp_path / "probe"), emitted)),
        )
    sender.close()
    read_outputs(driver, own_broker, starts)
    found = unexpired(driver, last_results(results_of(driver, {})), expected)
    assert not differences(found, expected)
    assert "in-memory" in restored
    assert ("totals" in restored) is not has_files
