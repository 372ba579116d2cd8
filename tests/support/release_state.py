"""State directories, topics and offsets of an application, as a release wrote them.

`python -m tests.support.release_state` writes them for the version of this tree, with the results
of a run without an interruption, to `tests/golden/release-VERSION`; CONTRIBUTING.md says when.
"""

from __future__ import annotations

import base64
import json
import lzma
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.streams.kafka.protocols import CommittedOffset, Offsets, TopicPartition
from headrace.streams.plan.deployed import DeployedTopology
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.local_cluster import Transaction
from headrace.streams.testing.memory_cluster import MemoryCluster
from tests.support.release_app import (
    APPLICATION_ID,
    PARTITIONS,
    START_MS,
    Abort,
    Commit,
    Part,
    Restart,
    Send,
    Wait,
    input_steps,
    release_topology,
)

GOLDEN = Path(__file__).parents[1] / "golden"
SETTINGS = {"application.id": APPLICATION_ID, "processing.guarantee": "exactly_once_v2"}
_TOPICS, _STATE, _RESULTS = "topics.jsonl.xz", "state.tar.xz", "results.jsonl"
_IGNORED = shutil.ignore_patterns("LOG", "LOG.old.*", "LOCK")
"""Files of RocksDB that hold no state."""

Results = dict[str, dict[str, list[Any]]]
"""The records of each output topic, and the rows of each store, by key."""


def release_directories() -> list[Path]:
    """Return the directories of all releases."""
    return sorted(GOLDEN.glob("release-*"))


def make_driver(directory: Path) -> TopologyTestDriver:
    """Create a driver with local state in a directory."""
    return TopologyTestDriver(
        release_topology(),
        SETTINGS,
        partitions=PARTITIONS,
        now=START_MS,
        commit="manual",
        state_dir=directory,
    )


def run_part(driver: TopologyTestDriver, part: Part) -> None:
    """Send the inputs of a part; commit, abort, wait and restart between them."""
    for step in input_steps(part):
        if isinstance(step, Send):
            driver.input(step.topic).send(step.key, step.value, timestamp=step.timestamp_ms)
        elif isinstance(step, Commit):
            driver.commit(rounds=step.rounds)
        elif isinstance(step, Abort):
            driver.abort()
        elif isinstance(step, Wait):
            driver.advance(timedelta(seconds=step.seconds))
        elif isinstance(step, Restart):
            driver.restart()


def results_of(driver: TopologyTestDriver, after: Mapping[TopicPartition, int]) -> Results:
    """Return the output records after some offsets, and the rows of all stores.

    The records of a key are in their order; the order between keys is arbitrary.
    """
    found: Results = {}
    for topic in driver.output_topics:
        for record in driver.output(topic).read_all():
            if record.offset >= after.get(TopicPartition(topic, record.partition), 0):
                own = found.setdefault(f"topic {topic}", {}).setdefault(repr(record.key), [])
                own.append([record.timestamp, record.value])
    for name in stores_of(driver):
        rows = found.setdefault(f"store {name}", {})
        for key, value, timestamp in driver.store(name, committed=True).rows():
            rows.setdefault(repr(key), []).append([timestamp, value])
    loaded: Results = json.loads(json.dumps(found, default=_plain))
    return loaded


def _plain(value: object) -> Any:
    return value.hex() if isinstance(value, bytes) else repr(value)


def stores_of(driver: TopologyTestDriver) -> list[str]:
    """Return the names of the stores of tasks, and of global tables."""
    tasks = [s.spec.name for plan in driver._plans for s in plan.program.sub_topology.stores]
    return [*tasks, *(table.store.name for table in driver._global_plans)]


# Topics and offsets.


@dataclass(frozen=True, slots=True)
class Record:
    """Record of a partition's log."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class TransactionRun:
    """Consecutive records of one transaction, or outside of any.

    Args:
        committed: whether the transaction was committed; None outside of any.
        records: the records, without the marker.
    """

    committed: bool | None
    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class Partition:
    """Log of a partition: its runs, and its first offset."""

    tp: TopicPartition
    start: int
    runs: Sequence[TransactionRun]


@dataclass(frozen=True, slots=True)
class Topic:
    """Topic with its id and its logs."""

    name: str
    id: str
    config: Mapping[str, str]
    partitions: Sequence[Partition]


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """All topics of a cluster, and the committed offsets by group."""

    topics: Sequence[Topic]
    offsets: Mapping[str, Offsets]

    @classmethod
    def of(cls, cluster: MemoryCluster) -> ClusterSnapshot:
        topics = [
            Topic(
                topic.name,
                topic.id,
                topic.config,
                [
                    Partition(tp, cluster.log(tp).start, list(_runs(cluster, tp)))
                    for tp in cluster.partitions(topic.name)
                ],
            )
            for topic in cluster.topics.values()
        ]
        return cls(topics, {group: dict(own) for group, own in cluster.offsets.items()})

    def load(self, cluster: MemoryCluster) -> None:
        """Write everything to a cluster, whose topics are empty."""
        for topic in self.topics:
            cluster.create(topic.name, len(topic.partitions), topic.config).id = topic.id
            for partition in topic.partitions:
                for run in partition.runs:
                    _append(cluster, partition.tp, run)
                cluster.delete_before(partition.tp, partition.start)
        for group, offsets in self.offsets.items():
            cluster.commit_offsets(group, offsets)

    # The files have a line for each topic, partition and run of records.

    def encode(self) -> str:
        lines: list[Any] = []
        for topic in self.topics:
            lines.append(["topic", topic.name, topic.id, topic.config])
            for partition in topic.partitions:
                lines.append(["partition", partition.tp.partition, partition.start])
                for run in partition.runs:
                    records = [
                        [r.timestamp_ms, _text(r.key), _text(r.value)]
                        + ([[[name, _text(v)] for name, v in r.headers]] if r.headers else [])
                        for r in run.records
                    ]
                    lines.append(["records", run.committed, records])
        for group, offsets in self.offsets.items():
            for tp, committed in offsets.items():
                lines.append(["offset", group, *tp, committed.offset, committed.metadata])
        return "".join(f"{json.dumps(line)}\n" for line in lines)

    @classmethod
    def decode(cls, text: str) -> ClusterSnapshot:
        topics: list[Topic] = []
        offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        for kind, *rest in map(json.loads, text.splitlines()):
            if kind == "topic":
                topics.append(Topic(*rest, partitions=[]))
            elif kind == "partition":
                tp = TopicPartition(topics[-1].name, rest[0])
                topics[-1].partitions.append(Partition(tp, rest[1], []))  # type: ignore[attr-defined]
            elif kind == "records":
                records = [
                    Record(
                        time,
                        _bytes(key),
                        _bytes(value),
                        [(name, _bytes(v)) for name, v in (headers[0] if headers else [])],
                    )
                    for time, key, value, *headers in rest[1]
                ]
                topics[-1].partitions[-1].runs.append(TransactionRun(rest[0], records))  # type: ignore[attr-defined]
            else:
                group, topic, number, offset, metadata = rest
                committed = CommittedOffset(offset, metadata)
                offsets.setdefault(group, {})[TopicPartition(topic, number)] = committed
        return cls(topics, offsets)


def _runs(cluster: MemoryCluster, tp: TopicPartition) -> Iterator[TransactionRun]:
    """Yield the runs of a log; a transaction that is still open counts as aborted."""
    log, records = cluster.log(tp), list[Record]()
    writer: Transaction | None = None
    for offset, entry in enumerate(log.entries):
        if records and log.writer(offset) is not writer:
            yield TransactionRun(_outcome(writer), records)
            records = []
        writer = log.writer(offset)
        if entry is not None:
            time, headers = entry.timestamp()[1], entry.headers() or []
            plain = [(name, v.encode() if isinstance(v, str) else v) for name, v in headers]
            records.append(Record(time, entry.key(), entry.value(), plain))
    if records:
        yield TransactionRun(_outcome(writer), records)


def _outcome(writer: Transaction | None) -> bool | None:
    return None if writer is None else bool(writer.committed)


def _append(cluster: MemoryCluster, tp: TopicPartition, run: TransactionRun) -> None:
    transaction = None if run.committed is None else Transaction()
    for r in run.records:
        cluster.append(
            tp.topic, r.value, r.key, tp.partition, r.timestamp_ms, list(r.headers), transaction
        )
    if transaction is not None:
        cluster.end(transaction, committed=bool(run.committed))


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


# The description of the deployed topology.


@dataclass(frozen=True, slots=True)
class MemoryOffsets:
    """Offsets of a cluster in memory (see `headrace.streams.kafka.protocols.OffsetClient`)."""

    cluster: MemoryCluster

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        del decided
        return dict(self.cluster.committed(group))

    def committed_at(
        self, group: str, tps: Iterable[TopicPartition], *, decided: bool = True
    ) -> dict[TopicPartition, CommittedOffset]:
        known = self.committed(group, decided=decided)
        return {tp: known[tp] for tp in tps if tp in known}

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        self.cluster.commit_offsets(group, offsets)


def deployed_topology(driver: TopologyTestDriver) -> DeployedTopology:
    """Return the description of the driver's topology, and the one deployed on its cluster."""
    offsets = MemoryOffsets(driver.cluster)
    found = DeployedTopology(driver._config, driver._plans, offsets, driver._log)
    counts = {name: len(topic.logs) for name, topic in driver.cluster.topics.items()}
    found.describe_subscriptions(driver._plans, counts)
    return found


# Files.


def write(directory: Path) -> None:
    """Run half of the input, and store state, topics and offsets as a kill would leave them.

    Then record the results of the rest.
    """
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        with make_driver(work / "live") as driver:
            run_part(driver, "before")
            if not deployed_topology(driver).keep():
                raise RuntimeError("The description of the topology was not stored.")
            shutil.copytree(work / "live", work / "state", ignore=_IGNORED)
            topics = ClusterSnapshot.of(driver.cluster)
            ends = ends_of(driver.cluster)
            run_part(driver, "after")
            results = results_of(driver, ends)
        directory.mkdir()
        with lzma.open(directory / _TOPICS, "wt") as file:
            file.write(topics.encode())
        with tarfile.open(directory / _STATE, "w:xz") as archive:
            archive.add(work / "state", "state")
    lines = [[name, *row] for name, rows in results.items() for row in rows.items()]
    text = "".join(f"{json.dumps(line)}\n" for line in sorted(lines))
    (directory / _RESULTS).write_text(text)


def ends_of(cluster: MemoryCluster) -> dict[TopicPartition, int]:
    """Return the offset after the last committed record of each partition."""
    return {
        tp: cluster.log(tp).last_stable
        for topic in cluster.topics
        for tp in cluster.partitions(topic)
    }


def read_topics(directory: Path) -> ClusterSnapshot:
    """Read the topics and offsets of a release."""
    with lzma.open(directory / _TOPICS, "rt") as file:
        return ClusterSnapshot.decode(file.read())


def read_results(directory: Path) -> Results:
    """Read the results of the run without an interruption."""
    results: Results = {}
    for line in (directory / _RESULTS).read_text().splitlines():
        name, key, found = json.loads(line)
        results.setdefault(name, {})[key] = found
    return results


def extract_state(directory: Path, target: Path) -> None:
    """Extract the local state of a release to an empty directory."""
    with tarfile.open(directory / _STATE) as archive:
        archive.extractall(target, filter="data")


def main() -> None:
    """Write the files of this version; those of a release never change."""
    target = GOLDEN / f"release-{__version__}"
    if target.exists():
        sys.exit(f"{target} exists. The files of a release never change.")
    write(target)
    print(target)


if __name__ == "__main__":
    main()
