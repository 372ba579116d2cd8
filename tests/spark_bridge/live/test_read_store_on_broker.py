"""An application's state and topics as DataFrames, from a real broker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.spark_bridge import ReadError, read_store, read_topic
from headrace.state.codec import TIMESTAMP
from headrace.topology import StreamsBuilder, TimeWindows, Topology, serdes
from tests.support import kafka
from tests.support.topics import Topics

START_MS = 1_700_000_000_000


def at(ms: int) -> datetime:
    """As Spark's `collect` gives times: naive, in the zone of this process."""
    return datetime.fromtimestamp((START_MS + ms) / 1000)


def row_key(key: str, start: int) -> bytes:
    return key.encode() + TIMESTAMP.pack(START_MS + start) + bytes(4)


class Application:
    """Topics of an application that never runs: tests write its changelogs."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.id = topics.name("reads")
        self.source = topics.create("input", partitions=2)
        self.settings = {
            "application.id": self.id,
            "bootstrap.servers": topics.bootstrap,
            "processing.guarantee": "exactly_once_v2",
        }

    def stream(self, builder: StreamsBuilder) -> Any:
        return builder.stream(self.source, key=serdes.string, value=serdes.string)

    def changelog(self, store: str, records: list[tuple[bytes | None, bytes | None]]) -> None:
        name = self.topics.create_named(f"{self.id}-{store}-changelog", partitions=2)
        kafka.write(self.topics.bootstrap, name, records, timestamp=START_MS)


@pytest.fixture
def application(topics: Topics) -> Application:
    return Application(topics)


def long(value: int) -> bytes:
    return serdes.long.serialize(value)


def test_a_store_is_the_last_committed_row_of_each_key(
    spark: Any, application: Application
) -> None:
    """Tombstones and aborted rows are none; what is written later is not seen."""
    builder = StreamsBuilder()
    application.stream(builder).group_by_key().count(store="counts")
    application.changelog("counts", [])
    name = f"{application.id}-counts-changelog"
    bootstrap = application.topics.bootstrap
    kafka.write(
        bootstrap,
        name,
        [(b"a", long(1)), (b"b", long(1)), (b"a", long(2)), (b"gone", long(9)), (b"gone", None)],
        timestamp=START_MS,
    )
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, long(99), b"a")
    producer.flush()
    producer.abort_transaction()
    frame = read_store(spark, builder.build(), "counts", application.settings)
    assert frame.schema.simpleString() == (
        "struct<key:string,value:bigint,timestamp:timestamp,partition:int>"
    )
    kafka.write(bootstrap, name, [(b"later", long(1))])
    rows = {row["key"]: row for row in frame.collect()}
    assert {key: row["value"] for key, row in rows.items()} == {"a": 2, "b": 1}
    assert rows["a"]["timestamp"] == at(2)
    places = {r.key: r.partition for r in kafka.read(bootstrap, name)}
    assert rows["a"]["partition"] == places[b"a"]
    assert frame.count() == 2


def test_window_keys_are_split(spark: Any, application: Application) -> None:
    builder = StreamsBuilder()
    windows = TimeWindows(size=timedelta(seconds=1))
    application.stream(builder).group_by_key().windowed_by(windows).count(store="per-second")
    rows: list[tuple[bytes | None, bytes | None]] = [
        (row_key("a", 0), long(1)),
        (row_key("a", 1000), long(5)),
        (row_key("a", 0), long(3)),
    ]
    application.changelog("per-second", rows)
    frame = read_store(spark, builder.build(), "per-second", application.settings)
    assert frame.columns == [
        "key", "window_start", "window_end", "value", "timestamp", "partition",
    ]  # fmt: skip
    found = frame.orderBy("window_start").collect()
    assert [(r["key"], r["window_start"], r["window_end"], r["value"]) for r in found] == [
        ("a", at(0), at(1000), 3),
        ("a", at(1000), at(2000), 5),
    ]


def test_versions_have_the_times_between_which_they_hold(
    spark: Any, application: Application
) -> None:
    from headrace.topology import Materialized

    builder = StreamsBuilder()
    builder.table(
        application.source,
        key=serdes.string,
        value=serdes.long,
        store=Materialized("prices", history=timedelta(days=1)),
    )
    application.changelog(
        "prices", [(b"a", long(1)), (b"a", long(2)), (b"b", long(7)), (b"b", None)]
    )
    frame = read_store(spark, builder.build(), "prices", application.settings)
    found = sorted((r["key"], r["value"], r["valid_from"], r["valid_to"]) for r in frame.collect())
    assert found[0] == ("a", 1, at(0), at(1))
    assert found[1][:3] == ("a", 2, at(1))
    assert found[1][3] is None
    assert found[2] == ("b", 7, at(2), at(3))


def test_a_table_read_from_its_source_ends_where_the_application_is(
    spark: Any, application: Application
) -> None:
    """Beyond its commits are records that it has not seen."""
    settings = {
        **application.settings,
        "topology.optimization": "reuse.ktable.source.topics",
        "consumer.auto.offset.reset": "earliest",
    }
    source = application.topics.create("table", partitions=1, config={"cleanup.policy": "compact"})
    builder = StreamsBuilder()
    builder.table(source, key=serdes.string, value=serdes.json, store="latest")
    bootstrap = application.topics.bootstrap
    kafka.write(bootstrap, source, [(b"a", b"1"), (b"a", b'{ "x": 2 }'), (b"b", b"3")])
    topology = builder.build()
    assert read_store(spark, topology, "latest", settings).count() == 0
    kafka.set_committed(bootstrap, application.id, source, {0: 2})
    (row,) = read_store(spark, topology, "latest", settings).collect()
    assert (row["key"], row["value"]) == ("a", '{"x":2}')


def test_a_topic_is_read_record_by_record(spark: Any, application: Application) -> None:
    builder = StreamsBuilder()
    application.stream(builder).map_values(len).to("elsewhere", value=serdes.integer)
    bootstrap = application.topics.bootstrap
    kafka.write(bootstrap, application.source, [(b"k", b"v"), (None, b"w"), (b"k", None)])
    producer = Producer({"bootstrap.servers": bootstrap})
    headers: Any = [("h", b"1"), ("h", None)]
    producer.produce(application.source, b"x", b"k2", headers=headers)
    producer.flush()
    frame = read_topic(spark, builder.build(), application.source, application.settings)
    rows = frame.collect()
    assert sorted((r["key"] or "", r["value"] or "") for r in rows) == [
        ("", "w"), ("k", ""), ("k", "v"), ("k2", "x"),
    ]  # fmt: skip
    (found,) = [r["headers"] for r in rows if r["headers"]]
    assert [(h["name"], h["value"] and bytes(h["value"])) for h in found] == headers
    compacted = read_topic(
        spark, builder.build(), application.source, application.settings, compacted=True
    )
    assert [(r["key"], r["value"]) for r in compacted.collect()] == [("k2", "x")]


def test_any_topic_is_read_as_bytes_by_the_format(spark: Any, application: Application) -> None:
    """Its ends are fixed when the DataFrame is made, for every action on it."""
    bootstrap = application.topics.bootstrap
    kafka.write(bootstrap, application.source, [(b"k", b"1"), (b"k", b"2"), (b"j", None)])

    def load(**options: str) -> Any:
        reader = spark.read.format("changelog").option("topic", application.source)
        return reader.option("bootstrap.servers", bootstrap).options(**options).load()

    frame = load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,timestamp:timestamp,partition:int,offset:bigint>"
    )
    records = load(compacted="false")
    kafka.write(bootstrap, application.source, [(b"k", b"3")])
    (row,) = frame.collect()
    assert (bytes(row["key"]), bytes(row["value"])) == (b"k", b"2")
    assert records.count() == 3
    assert frame.count() == 1


def build(application: Application, make: Callable[[Any], Any]) -> Topology:
    builder = StreamsBuilder()
    make(application.stream(builder))
    return builder.build()


def test_what_is_not_there_is_refused(spark: Any, application: Application) -> None:
    topology = build(application, lambda s: s.group_by_key().count(store="counts"))
    settings = application.settings
    with pytest.raises(ReadError, match=r"no store 'count' \(did you mean counts\?\)"):
        read_store(spark, topology, "count", settings)
    with pytest.raises(ReadError, match="counts-changelog does not exist"):
        read_store(spark, topology, "counts", settings)
    with pytest.raises(ReadError, match="neither reads nor writes"):
        read_topic(spark, topology, "other", settings)


def test_utc() -> None:
    """The tests' times are those of Spark."""
    assert at(0) == datetime.fromtimestamp(START_MS / 1000, UTC).astimezone().replace(tzinfo=None)
