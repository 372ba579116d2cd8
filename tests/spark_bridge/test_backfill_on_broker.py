"""Backfills in Spark from a real broker: the rows that the stages make in this process, too.

What those are compared with, live runs, is in test_equality.py and test_local_runs.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from spark_bridge.backfill import Computation, StageReport, backfill, compute
from spark_bridge.errors import BackfillError, CannotBackfillError, HistoryGapError
from spark_bridge.records import ResultRow
from streams.clients import TopicPartition
from streams.memory_cluster import Fate, MemoryCluster, Transaction
from tests.spark_bridge.local_engine import backfilled
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.topics import Topics
from topology import StreamsBuilder, TimeWindows, serdes
from topology.graph import Topology

YEAR_2023_MS = 1_680_000_000_000
MS = timedelta(milliseconds=1)
Sent = tuple["bytes | None", "bytes | None", int, int, "list[tuple[str, bytes | None]] | None"]
"""Key, value, partition, timestamp and headers."""


class Both:
    """The same records in Kafka and in a cluster in memory, at the same offsets."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.cluster = MemoryCluster()
        self._number = 0

    def create(self, topics: Topics, prefix: str, partitions: int) -> str:
        name = topics.create(prefix, partitions=partitions)
        self.cluster.create(name, partitions)
        return name

    def write(self, topic: str, sent: Sequence[Sent], fate: Fate = Fate.COMMITTED) -> Any:
        """Write records in one transaction; returns the producer of one that is left open."""
        self._number += 1
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": f"{topic}-{self._number}",
                "linger.ms": 5,
            }
        )
        producer.init_transactions()
        producer.begin_transaction()
        transaction = Transaction()
        for key, value, partition, timestamp, headers in sent:
            producer.produce(
                topic, value, key, partition=partition, timestamp=timestamp, headers=headers
            )
            self.cluster.append(topic, value, key, partition, timestamp, headers, transaction)
        assert producer.flush(30) == 0
        if fate is Fate.COMMITTED:
            producer.commit_transaction()
        elif fate is Fate.ABORTED:
            producer.abort_transaction()
        if fate is not Fate.OPEN:
            self.cluster.end(transaction, fate)
        return producer


@pytest.fixture
def both(broker: str) -> Both:
    return Both(broker)


def settings(broker: str, app: str, **more: object) -> dict[str, object]:
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {
        "application.id": app,
        "bootstrap.servers": broker,
        "statestore.cache.max.bytes": 0,
        **named,
    }


def rows_in(computed: Computation) -> list[ResultRow]:
    try:
        computed.run()
        return list(computed.results.rows())
    finally:
        computed.release()


def words(bootstrap: str, source: str, sink: str) -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream(source, key=serdes.string, value=serdes.string)
        .flat_map_values(str.split)
        .group_by(lambda _, word: word, key=serdes.string, name="by-word")
        .count(store="counts")
        .to_stream()
        .to(sink)
    )
    return builder.build()


def lines(count: int, partitions: int) -> list[Sent]:
    """Old, out of order, and one word in every line."""
    return [
        (
            f"k{n}".encode(),
            f"all w{n % 11} w{n * n % 17}".encode(),
            n * n % partitions,
            YEAR_2023_MS + 7 * n - 40 * (n % 5),
            [("n", str(n).encode()), ("n", None)],
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("partitions", [1, 8])
def test_a_word_count_is_what_it_is_in_one_process(
    spark: Any, broker: str, topics: Topics, both: Both, partitions: int
) -> None:
    """Row by row: keys, values, timestamps, headers, partitions, order and progress."""
    source = both.create(topics, "lines", partitions)
    sink, app = both.create(topics, "counts", 3), topics.name("app")
    both.write(source, lines(300, partitions))
    topology = words(broker, source, sink)
    found = rows_in(compute(topology, settings(broker, app), spark=spark, id="b"))
    _, expected = backfilled(topology, settings(broker, app), both.cluster)
    assert found == expected
    assert len([row for row in found if row.kind == "sink"]) == 900
    assert any(row.headers for row in found)


def test_transactions_that_are_aborted_or_open_are_left_out(
    spark: Any, broker: str, topics: Topics, both: Both
) -> None:
    source = both.create(topics, "lines", 2)
    sink, app = both.create(topics, "counts", 1), topics.name("app")
    for number, fate in enumerate((Fate.COMMITTED, Fate.ABORTED) * 4):
        both.write(source, lines(5 + number, 2), fate)
    left_open = both.write(source, lines(6, 2), Fate.OPEN)
    both.write(source, lines(4, 2))
    topology = words(broker, source, sink)
    computed = compute(topology, settings(broker, app), spark=spark, id="b")
    plan, expected = backfilled(topology, settings(broker, app), both.cluster)
    assert computed.plan.ends == plan.ends
    assert rows_in(computed) == expected
    left_open.abort_transaction()


def test_windows_joins_and_a_circle_of_sub_topologies_run_in_spark(
    spark: Any, broker: str, topics: Topics, both: Both
) -> None:
    """A join by a foreign key, whose result is keyed anew and counted in windows."""
    left, right = both.create(topics, "left", 3), both.create(topics, "right", 3)
    sink, app = both.create(topics, "out", 2), topics.name("app")
    builder = StreamsBuilder()
    orders = builder.table(left, key=serdes.string, value=serdes.string, store="orders")
    names = builder.table(right, key=serdes.string, value=serdes.string, store="names")
    joined = orders.left_join(
        names,
        lambda order, name: f"{order}+{name}",
        foreign_key=lambda order: order[:2],
        value=serdes.string,
        name="fk",
    )
    (
        joined.to_stream()
        .group_by(lambda _, row: row[:2], key=serdes.string, value=serdes.string, name="by-name")
        .windowed_by(TimeWindows(size=50 * MS, grace=20 * MS))
        .count(store="counts")
        .to_stream()
        .to(sink)
    )
    both.write(
        left,
        [
            (f"o{n % 20}".encode(), f"c{n % 7}-{n}".encode(), n % 20 % 3, YEAR_2023_MS + n, None)
            for n in range(120)
        ],
    )
    both.write(right, [(b"c1", b"Ada", 0, YEAR_2023_MS + 60, None)])
    topology = builder.build()
    computed = compute(topology, settings(broker, app), spark=spark, id="b")
    assert [len(stage) for stage in computed.plan.stages] == [2, 1]
    _, expected = backfilled(topology, settings(broker, app), both.cluster)
    assert rows_in(computed) == expected
    assert len({row.topic for row in expected if row.kind == "changelog"}) == 5


def test_skewed_keys_are_counted_in_front_of_the_repartition(
    spark: Any, broker: str, topics: Topics, both: Both
) -> None:
    source = both.create(topics, "lines", 4)
    sink, app = both.create(topics, "counts", 4), topics.name("app")
    both.write(source, lines(400, 4))
    topology = words(broker, source, sink)
    cached = settings(broker, app, statestore_cache_max_bytes=1 << 20)
    found = rows_in(compute(topology, cached, spark=spark, order="auto", id="b"))
    _, exact = backfilled(topology, settings(broker, app), both.cluster)
    assert changelogs(found) == changelogs(exact)
    assert len([row for row in found if row.kind == "sink"]) == len(changelogs(exact))


def changelogs(rows: Sequence[ResultRow]) -> list[tuple[Any, ...]]:
    return sorted(
        (row.topic, row.partition, row.key, row.value, row.timestamp)
        for row in rows
        if row.kind == "changelog"
    )


def test_the_live_application_goes_on_where_the_backfill_ends(
    spark: Any, broker: str, topics: Topics, both: Both, tmp_path: Path
) -> None:
    source = both.create(topics, "lines", 2)
    sink = both.create(topics, "counts", 1)
    own = settings_of(topics, tmp_path)
    both.write(source, lines(100, 2))
    topology = words(broker, source, sink)
    seen: list[StageReport] = []
    report = backfill(topology, own, spark=spark, order="exact", on_stage=seen.append)
    assert tuple(seen) == report.stages
    assert [stage.records for stage in report.stages] == [100, 300]
    assert (report.keys, report.outputs, report.records) == (15, 300, 400)
    both.write(source, lines(30, 2))
    with live(topology, own) as app:
        # Each line makes three records of the repartition topic.
        app.wait_processed(30 + 90)
    last = {record.key: record.value for record in kafka.read(broker, sink)}
    counted = {key: serdes.long.deserialize(value or b"") for key, value in last.items()}
    expected: dict[bytes, int] = {}
    for _, value, *_ in lines(100, 2) + lines(30, 2):
        for word in (value or b"").split():
            expected[word] = expected.get(word, 0) + 1
    assert counted == expected


def test_a_record_that_cannot_be_processed_is_named(
    spark: Any, broker: str, topics: Topics, both: Both
) -> None:
    source, app = both.create(topics, "in", 1), topics.name("app")
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string, value=serdes.long).for_each(print)
    both.write(source, [(b"k", b"short", 0, YEAR_2023_MS, None)])
    computed = compute(builder.build(), settings(broker, app), spark=spark)
    with pytest.raises(BackfillError, match=f"offset 0.*{source}|{source}.*offset 0"):
        computed.run()
    computed.release()


# -- archives ----------------------------------------------------------------------------------


def archive(spark: Any, sent: Mapping[TopicPartition, Sequence[tuple[int, Sent]]]) -> Any:
    columns = "partition int, offset long, key binary, value binary, timestamp long"
    rows = [
        (place.partition, offset, key, value, timestamp)
        for place, records in sent.items()
        for offset, (key, value, _, timestamp, _) in records
    ]
    # In no order: that of the offsets is what counts.
    return spark.createDataFrame(sorted(rows, key=str), columns)


def numbered(topic: str, sent: Sequence[Sent]) -> dict[TopicPartition, list[tuple[int, Sent]]]:
    found: dict[TopicPartition, list[tuple[int, Sent]]] = {}
    for one in sent:
        records = found.setdefault(TopicPartition(topic, one[2]), [])
        records.append((len(records), one))
    return found


def without_headers(sent: Sequence[Sent]) -> list[Sent]:
    return [(*one[:4], None) for one in sent]


def test_an_archive_and_the_rest_from_kafka_are_one_history(
    spark: Any, broker: str, topics: Topics, both: Both, tmp_path: Path
) -> None:
    """From Parquet, up to different offsets in the partitions; Kafka has the rest."""
    source = both.create(topics, "lines", 2)
    sink, app = both.create(topics, "counts", 2), topics.name("app")
    sent = without_headers(lines(200, 2))
    both.write(source, sent)
    topology = words(broker, source, sink)
    cuts = {TopicPartition(source, 0): 70, TopicPartition(source, 1): 20}
    old = {place: rows[: cuts[place]] for place, rows in numbered(source, sent).items()}
    archive(spark, old).write.parquet(str(tmp_path / "old"))
    frame = spark.read.parquet(str(tmp_path / "old"))
    own = settings(broker, app)
    computed = compute(topology, own, spark=spark, source={source: frame}, id="b")
    assert computed.plan.starts == cuts
    _, expected = backfilled(topology, own, both.cluster)
    assert rows_in(computed) == expected


def test_an_archive_without_offsets_needs_to_be_told_where_kafka_goes_on(
    spark: Any, broker: str, topics: Topics, both: Both
) -> None:
    source = both.create(topics, "lines", 1)
    sink, app = both.create(topics, "counts", 1), topics.name("app")
    new = lines(20, 1)
    both.write(source, new)
    old = [(f"k{n}", f"all w{n % 3}", YEAR_2023_MS - 1000 + n) for n in range(50)]
    frame = spark.createDataFrame(old, "key string, value string, timestamp long")
    topology, own = words(broker, source, sink), settings(broker, app)
    with pytest.raises(HistoryGapError, match="give cutover="):
        compute(topology, own, spark=spark, source={source: frame})
    cutover = {TopicPartition(source, 0): 0}
    found = rows_in(compute(topology, own, spark=spark, source={source: frame}, cutover=cutover))
    counted = {
        r.key: serdes.long.deserialize(r.value or b"") for r in found if r.kind == "changelog"
    }
    assert counted[b"all"] == 70
    in_kafka = [word for _, value, *_ in new for word in (value or b"").split()]
    assert counted[b"w0"] == 17 + in_kafka.count(b"w0")


def test_an_archive_that_does_not_reach_kafka_is_refused(
    spark: Any, broker: str, topics: Topics, both: Both
) -> None:
    source = both.create(topics, "lines", 1)
    sink, app = both.create(topics, "counts", 1), topics.name("app")
    sent = lines(30, 1)
    both.write(source, sent)
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker})
    deleted = admin.delete_records([confluent_kafka.TopicPartition(source, 0, 20)])
    assert all(future.result(30) for future in deleted.values())
    frame = archive(spark, {TopicPartition(source, 0): list(enumerate(sent))[:10]})
    with pytest.raises(CannotBackfillError, match="ends before offset 10, and Kafka has"):
        compute(
            words(broker, source, sink), settings(broker, app), spark=spark, source={source: frame}
        )


def test_a_dry_run_makes_a_plan_and_nothing_else(broker: str, topics: Topics, both: Both) -> None:
    source = both.create(topics, "lines", 2)
    sink, app = both.create(topics, "counts", 1), topics.name("app")
    both.write(source, lines(10, 2))
    report = backfill(words(broker, source, sink), settings(broker, app), spark=None, dry_run=True)
    assert report.plan is not None
    assert report.plan.stages == ((0,), (1,))
    assert report.plan.records == 12  # with the markers
    assert topics.partitions(f"{app}-counts-changelog") == 0
