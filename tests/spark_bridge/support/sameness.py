"""What an application comes to on a real broker, whichever way it got there.

A run is made of records that a backfill has and records that come live. What is compared is what is
left of it: the rows of the stores of the live tasks, the changelogs, and what is in the sinks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from typing import Any, NamedTuple, Self

import confluent_kafka
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka.admin import AdminClient

from headrace.spark_bridge.plan.job import CompiledApplication
from headrace.state.codec import partition_for_key
from headrace.streams.app import State
from headrace.streams.kafka.protocols import TopicPartition
from headrace.topology import Topology
from tests.support import kafka
from tests.support.live import Live

WITHIN_S = 60

Headers = tuple[tuple[str, bytes | None], ...]
Rows = dict[tuple[str, str], list[tuple[bytes, Any, int]]]
"""Key, value and timestamp of the rows of each task and store."""


class Input(NamedTuple):
    """A record for a source."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers = ()

    def partition(self, partitions: int) -> int:
        """Where it goes: that of its key; without one, by its time."""
        if self.key is None:
            return self.timestamp % partitions
        return partition_for_key(self.key, partitions)


class Output(NamedTuple):
    """A record of a sink."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


def in_order(inputs: Sequence[Input], partitions: int) -> list[Input]:
    """The order in which a task takes records of several topics that are all there.

    What is cut off it is as far in each topic as the rest of the task is.
    """
    streams: dict[tuple[str, int], list[tuple[tuple[int, str, int, int], Input]]] = {}
    for number, one in enumerate(inputs):
        place = one.topic, one.partition(partitions)
        stream = streams.setdefault(place, [])
        largest = max(one.timestamp, stream[-1][0][0] if stream else -1)
        stream.append(((largest, *place, number), one))
    return [one for _, one in merge(*streams.values(), key=lambda pair: pair[0])]


def write(bootstrap: str, inputs: Iterable[Input], partitions: int) -> None:
    """Write records in their order, and wait for all of them."""
    failed: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "on_delivery": lambda error, _: failed.append(error) if error else None,
        }
    )
    for one in inputs:
        options: Any = {"timestamp": one.timestamp, "headers": list(one.headers)}
        place = one.partition(partitions)
        producer.produce(one.topic, one.value, one.key, partition=place, **options)
    assert producer.flush(30) == 0
    assert not failed, failed


def furthest_behind(inputs: Sequence[Input], topic: str, first: int, last: int) -> int:
    """Where to cut, from a first up to a last record: before one of a topic that comes very late.

    Whoever does not know how far the others were takes it for one in time.
    """
    largest, behind = 0, []
    for one in inputs[:last]:
        counts = one.topic == topic and None not in (one.key, one.value)
        behind.append(largest - one.timestamp if counts else -1)
        largest = max(one.timestamp, largest)
    return max(range(first, last), key=behind.__getitem__)


def ends(
    inputs: Iterable[Input], topics: Iterable[str], partitions: int
) -> dict[TopicPartition, int]:
    """The offset behind the last of some records, which are the first of their topics."""
    counts = {TopicPartition(topic, p): 0 for topic in topics for p in range(partitions)}
    for one in inputs:
        counts[TopicPartition(one.topic, one.partition(partitions))] += 1
    return counts


def archive(
    spark: Any, bootstrap: str, topic: str, before: Mapping[TopicPartition, int], path: Path
) -> Any:
    """What a topic has before some offsets, as Parquet of which Spark knows nothing."""
    pairs = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    schema = pa.schema(
        [
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("timestamp", pa.int64()),
            ("headers", pairs),
        ]
    )
    rows = [
        {
            **record._asdict(),
            "headers": record.headers
            and [{"name": name, "value": value} for name, value in record.headers],
        }
        for record in kafka.read(bootstrap, topic)
        if record.offset < before[TopicPartition(topic, record.partition)]
    ]
    path.mkdir(parents=True)
    # In two files, neither of which is in order.
    for number in range(2):
        table = pa.Table.from_pylist(rows[number::2][::-1], schema=schema)
        pq.write_table(table, path / f"part-{number}.parquet")
    return spark.read.parquet(str(path))


class Progress:
    """Looks whether a running application has processed everything that is there for it."""

    def __init__(self, topology: Topology, settings: Mapping[str, Any]) -> None:
        application = CompiledApplication.of(topology, settings)
        plans = application.plans.values()
        sources = {topic for plan in plans for topic in plan.topics.sources}
        self._group = str(settings["application.id"])
        bootstrap = str(settings["bootstrap.servers"])
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._consumer = kafka.reader(bootstrap)
        known = self._admin.list_topics(timeout=10).topics
        self._places = [
            (topic, partition)
            for topic in sorted(sources | application.repartitions)
            for partition in known[topic].partitions
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def is_whole(self) -> bool:
        """Whether nothing is left to do.

        What a task makes of records is visible with the offsets behind them. So nothing is under
        way if all that is there now was done when the offsets were asked for.
        """
        done = self._committed()
        self._consumer.assign(
            [confluent_kafka.TopicPartition(*place, done.get(place, 0)) for place in self._places]
        )
        return next(kafka.to_the_ends(self._consumer, self._places), None) is None

    def _committed(self) -> dict[tuple[str, int], int]:
        request = confluent_kafka.ConsumerGroupTopicPartitions(self._group)
        answer = self._admin.list_consumer_group_offsets([request])[self._group].result(30)
        return {(p.topic, p.partition): p.offset for p in answer.topic_partitions if p.offset >= 0}

    def wait(self, app: Live) -> None:
        """Wait until nothing is left to do; ends with the application's error if there is one."""
        give_up_at = time.monotonic() + WITHIN_S
        while app.state is not State.ERROR and not self.is_whole():
            assert time.monotonic() < give_up_at, f"not all is processed within {WITHIN_S} s"
            time.sleep(0.005)
        if app.state is State.ERROR:
            app.app.close()


def rows_of(app: Live) -> Rows:
    """All rows of all stores of the tasks of an application that has nothing to do."""
    worker: Any = app.app._worker
    stores = [(task, store) for task in worker.tasks.running for store in task.spec.stores]
    # Others see a commit before the worker has put its rows in their place.
    app.wait(lambda: not any(task.buffer(store.name).dirty for task, store in stores))
    return {(str(task.id), store.name): list(task.rows(store.name)) for task, store in stores}


def changelogs_of(
    topology: Topology, settings: Mapping[str, Any]
) -> dict[tuple[str, str], dict[bytes, tuple[Any, int]]]:
    """The last value and timestamp of each key of the changelogs, by task and store."""
    plans = CompiledApplication.of(topology, settings).plans.values()
    topics = [topic for plan in plans for topic in plan.changelogs.values()]
    records = kafka.read_all(str(settings["bootstrap.servers"]), topics)
    found: dict[tuple[str, str], dict[bytes, tuple[Any, int]]] = {}
    for plan in plans:
        for store, topic in plan.changelogs.items():
            decode = plan.value_serdes[store].deserialize
            for record in records[topic]:
                rows = found.setdefault((f"{plan.id}_{record.partition}", store), {})
                assert record.key is not None
                rows.pop(record.key, None)
                if record.value is not None:
                    rows[record.key] = decode(record.value), record.timestamp
    return found


def outputs_of(bootstrap: str, sinks: Mapping[str, str]) -> dict[str, dict[int, list[Output]]]:
    """The committed records of topics by the names that these have in all runs, and partition."""
    records = kafka.read_all(bootstrap, sinks.values())
    found: dict[str, dict[int, list[Output]]] = {}
    for name, topic in sinks.items():
        found[name] = {}
        for r in records[topic]:
            output = Output(r.key, r.value, r.timestamp, tuple(r.headers or ()))
            found[name].setdefault(r.partition, []).append(output)
    return found


@dataclass(frozen=True)
class Final:
    """What a run left.

    Args:
        rows: what the live tasks go on with.
        changelogs: what others would go on with.
        outputs: of each sink, by the name that it has in all runs.
        warm: whether the live application found state that it had not made itself.
    """

    rows: Rows
    changelogs: dict[tuple[str, str], dict[bytes, tuple[Any, int]]]
    outputs: dict[str, dict[int, list[Output]]]
    warm: bool

    def check_state(self, alone: Final) -> None:
        """Compare the state with that of a run that was live alone.

        A changelog is compared by the rows that the store has: what it let go of as too old may
        still be in the changelog of a run that has seen it live.
        """
        assert self.rows == alone.rows
        for place, rows in self.rows.items():
            mine, theirs = self.changelogs.get(place, {}), alone.changelogs.get(place, {})
            for key, _, _ in rows:
                assert mine[key] == theirs[key], (place, key)
            assert mine.keys() <= theirs.keys(), place

    def check_values(self, alone: Final) -> None:
        """Compare the state without times: a row keeps its time while its value is the same, and
        which values it had in between is the caches' choice."""
        for place, rows in alone.rows.items():
            values = {key: value for key, value, _ in rows}
            assert {key: value for key, value, _ in self.rows[place]} == values, place
            found = {key: value for key, (value, _) in self.changelogs.get(place, {}).items()}
            assert {key: found[key] for key in values} == values, place

    def check_outputs(self, alone: Final) -> None:
        """Compare outputs record by record."""
        assert self.outputs.keys() == alone.outputs.keys()
        for name, partitions in alone.outputs.items():
            assert self.outputs[name] == partitions, name

    def check_number_of_outputs(self, alone: Final) -> None:
        """Compare how many there are of each key."""
        for name, partitions in alone.outputs.items():
            assert numbers(self.outputs[name]) == numbers(partitions), name

    def check_outputs_in_any_order(self, alone: Final) -> None:
        """Compare outputs of tasks that may have written to one partition."""
        for name, partitions in alone.outputs.items():
            assert pooled(self.outputs[name]) == pooled(partitions), name

    def check_last_outputs(
        self, alone: Final, decode: Callable[[bytes], Any] = lambda value: value
    ) -> None:
        """Compare the last update of each key; nothing at all says as much as a deletion."""
        for name, partitions in alone.outputs.items():
            assert last(self.outputs[name], decode) == last(partitions, decode), name


def pooled(partitions: Mapping[int, Sequence[Output]]) -> list[Output]:
    return sorted((one for outputs in partitions.values() for one in outputs), key=repr)


def numbers(partitions: Mapping[int, Sequence[Output]]) -> Counter[bytes | None]:
    return Counter(one.key for outputs in partitions.values() for one in outputs)


def last(
    partitions: Mapping[int, Sequence[Output]], decode: Callable[[bytes], Any]
) -> dict[tuple[int, bytes | None], tuple[Any, int]]:
    found = {}
    for partition, outputs in partitions.items():
        for one in outputs:
            found[partition, one.key] = one
    return {
        place: (decode(one.value), one.timestamp)
        for place, one in found.items()
        if one.value is not None
    }
