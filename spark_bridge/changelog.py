"""The state and the topics of an application as DataFrames, decoded by its serdes.

Only what is committed is read, up to ends that are fixed when the DataFrame is made: every action
on it sees the same records. Nothing is written, and no group is joined.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.spark_bridge.errors import ReadError
from headrace.streams.clients import ReceivedMessage, TopicPartition
from headrace.streams.config import StreamsConfig
from headrace.streams.global_plan import plan_global_tables
from headrace.streams.plan import SubPlan, plan_application
from headrace.streams.source_rows import SourceRows
from headrace.topology.binding import bound_to_topics
from headrace.topology.graph import AnySerde, GlobalSource, Node, Sink, Source, Store, Topology
from headrace.topology.windows_serde import (
    SessionWindowedSerde,
    TimeWindowedSerde,
    WindowStoreSerde,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark_bridge.topic_rows import Change, Form, KeyColumns, Range

__all__ = ["fixed_ranges", "read_store", "read_topic", "register"]

Settings = Mapping[str, object] | StreamsConfig


def read_store(
    spark: SparkSession,
    topology: Topology,
    store: str,
    settings: Settings,
    *,
    key_type: str | None = None,
    value_type: str | None = None,
) -> DataFrame:
    """Read the state of an application, as its last commits left it.

    Args:
        spark: whose executors read; they reach the brokers and can import the project.
        topology: what the application runs.
        store: the store's name, such as that of ``count(store="counts")``.
        settings: of the application.
        key_type: the Spark type of keys, such as "string" or "struct<id bigint>", where the
            serde does not tell it; "binary" leaves the bytes as they are.
        value_type: that of values.

    Returns:
        A row for each key: ``key``, ``value``, ``timestamp``, ``partition``. Windowed stores have
        ``window_start`` and ``window_end`` behind the key; versioned ones a row for each version,
        with ``valid_from`` and ``valid_to`` (null: it still holds).

    Raises:
        ReadError: the topology has no such store, or nothing outside of the application has it.
        StreamsError: the cluster does not answer, or the changelog is not there.

    >>> from headrace import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> _ = builder.stream("words").group_by_key().count(store="counts")
    >>> settings = {"application.id": "app", "bootstrap.servers": "localhost:9092"}
    >>> read_store(None, builder.build(), "count", settings)
    Traceback (most recent call last):
        ...
    headrace.spark_bridge.errors.ReadError: the topology has no store 'count' (did you mean counts?)
    """
    from headrace.spark_bridge.topic_rows import Form

    config = _config(settings)
    found = _find_store(topology, store, config)
    columns = _key_columns(spark, found.key, key_type)
    versioned = found.store.spec.layout == "versioned"
    form = Form(
        "versions" if versioned else "rows",
        columns,
        _column(spark, found.value, value_type),
        found.store.spec,
    )
    ranges = fixed_ranges(config, found.topic, to_commits=found.rows is not None)
    changed = None if found.rows is None else _Changed(found.rows)
    return _frame(spark, ranges, form, config, changed)


def read_topic(
    spark: SparkSession,
    topology: Topology,
    topic: str,
    settings: Settings,
    *,
    compacted: bool = False,
    key_type: str | None = None,
    value_type: str | None = None,
) -> DataFrame:
    """Read a topic that a topology reads or writes, decoded by the serdes it does so with.

    Args:
        spark: whose executors read; they reach the brokers and can import the project.
        topology: what the application runs.
        topic: one of its sources or sinks.
        settings: of the application.
        compacted: only the last record of each key, without those that deleted one.
        key_type: as for `read_store`.
        value_type: as for `read_store`.

    Returns:
        A row for each committed record: ``key``, ``value``, ``timestamp``, ``partition``,
        ``offset`` and, unless it is compacted, ``headers``.

    Raises:
        ReadError: the topology neither reads nor writes the topic.
        StreamsError: the cluster does not answer, or the topic is not there.

    >>> from headrace import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> builder.stream("words").to("copies")
    >>> settings = {"application.id": "app", "bootstrap.servers": "localhost:9092"}
    >>> read_topic(None, builder.build(), "wordz", settings)
    Traceback (most recent call last):
        ...
    headrace.spark_bridge.errors.ReadError: the topology neither reads nor writes a topic 'wordz' \
(did you mean words?)
    """
    from headrace.spark_bridge.topic_rows import Form

    config = _config(settings)
    key, value = _serdes_of(topology, topic, config)
    form = Form(
        "rows" if compacted else "records",
        _key_columns(spark, key, key_type),
        _column(spark, value, value_type),
        with_offset=True,
    )
    return _frame(spark, fixed_ranges(config, topic), form, config)


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("changelog")`` known to a session; see docs/backfill.md.

    `local_session` and `headrace backfill` have done so already.
    """
    from headrace.spark_bridge.changelog_source import ChangelogSource

    spark.dataSource.register(ChangelogSource)


def fixed_ranges(
    config: StreamsConfig, topic: str, *, to_commits: bool = False
) -> tuple[Range, ...]:
    """Ask where the partitions of a topic begin and end now.

    Args:
        config: of the clients.
        topic: its name.
        to_commits: end where the application has committed, instead of at the last stable offsets.

    Raises:
        ReadError: the topic is not there.
    """
    from headrace.spark_bridge.topic_rows import Range
    from headrace.streams.broker_contact import reach
    from headrace.streams.group_admin import GroupAdmin
    from headrace.streams.topics import describe_as

    reach(config.admin_config())
    admin = GroupAdmin(config.admin_config(), timeout_s=config.task_timeout_ms / 1000)
    facts = describe_as(admin, [topic]).get(topic)
    if facts is None:
        raise ReadError(f"topic {topic} does not exist{_nearest(topic, admin.names())}")
    places = [TopicPartition(topic, number) for number in range(facts.partitions)]
    starts, ends = admin.start_offsets(places), admin.stable_offsets(places)
    if to_commits:
        committed = admin.committed(config.application_id, decided=True)
        reached = {place: committed[place].offset if place in committed else 0 for place in places}
        ends = {place: min(end, reached[place]) for place, end in ends.items()}
    return tuple(Range(place, starts[place], ends[place]) for place in places)


@dataclass(frozen=True, slots=True)
class _Found:
    """A store: the serdes of its rows, and the topic that has them."""

    store: Store
    key: AnySerde
    value: AnySerde
    topic: str
    rows: SourceRows | None = None


def _config(settings: Settings) -> StreamsConfig:
    return settings if isinstance(settings, StreamsConfig) else StreamsConfig.parse(settings)


def _find_store(topology: Topology, name: str, config: StreamsConfig) -> _Found:
    plans = plan_application(topology, config)
    for plan in plans:
        for store in plan.program.sub_topology.stores:
            if store.name == name:
                return _stored(plan, store, config)
    tables = plan_global_tables(topology, config)
    for table in tables:
        if name == table.store.name:
            return _Found(Store(table.store), table.key, table.value, table.topic)
    names = [store.name for plan in plans for store in plan.program.sub_topology.stores]
    names += [table.store.name for table in tables]
    raise ReadError(f"the topology has no store {name!r}{_nearest(name, names)}")


def _stored(plan: SubPlan, store: Store, config: StreamsConfig) -> _Found:
    key, value = store.key or config.default_key_serde, plan.value_serdes[store.name]
    rows = plan.source_rows.get(store.name)
    if rows is not None:
        return _Found(store, key, value, rows.topic, rows)
    if store.name not in plan.changelogs:
        raise ReadError(
            f"store {store.name!r} has no changelog, so nobody but the application has its rows; "
            "let it be logged"
        )
    return _Found(store, key, value, plan.changelogs[store.name])


def _serdes_of(topology: Topology, topic: str, config: StreamsConfig) -> tuple[AnySerde, AnySerde]:
    key, value = config.default_key_serde, config.default_value_serde
    bound = bound_to_topics(
        topology, application_id=config.application_id, default_key=key, default_value=value
    )
    names: list[str] = []
    for node in bound.nodes:
        topics = _topics_of(node)
        names += topics
        if topic in topics:
            assert isinstance(node, Source | GlobalSource | Sink), node
            return _inner(node.key, key), node.value or value
    raise ReadError(
        f"the topology neither reads nor writes a topic {topic!r}" + _nearest(topic, names)
    )


def _topics_of(node: Node) -> tuple[str, ...]:
    """The topics outside of the application that a node reads or writes."""
    if isinstance(node, Source) and not node.internal:
        return node.topics
    if isinstance(node, GlobalSource):
        return (node.topic,)
    if isinstance(node, Sink) and isinstance(node.topic, str) and not node.internal:
        return (node.topic,)
    return ()


def _inner(serde: AnySerde | None, default: AnySerde) -> AnySerde:
    fill = getattr(serde, "with_inner_default", None)
    filled: AnySerde = serde or default
    return filled if fill is None else fill(default)


def _nearest(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, sorted(known), n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def _key_columns(spark: SparkSession, serde: AnySerde, kind: str | None) -> KeyColumns:
    from headrace.spark_bridge.topic_rows import KeyColumns

    windowed = serde.windowed if isinstance(serde, WindowStoreSerde) else serde
    if kind != "binary" and isinstance(windowed, TimeWindowedSerde | SessionWindowedSerde):
        assert windowed.inner is not None, "defaults are filled in"
        return KeyColumns(_column(spark, windowed.inner, kind), serde)
    return KeyColumns(_column(spark, serde, kind))


def _column(spark: SparkSession, serde: AnySerde, kind: str | None) -> Any:
    from headrace.spark_bridge.columns import column_of, declared_column

    return column_of(serde) if kind is None else declared_column(serde, _arrow_type(spark, kind))


def _arrow_type(spark: SparkSession, kind: str) -> Any:
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import DataType

    assert spark is not None, "types are read by a session"
    return to_arrow_type(DataType.fromDDL(kind))


class _Changed:
    """Makes records of a source the rows of the table that is read from it."""

    def __init__(self, rows: SourceRows) -> None:
        self._rows = rows

    def __call__(self, records: Iterable[ReceivedMessage]) -> list[_Changing]:
        return [
            _Changing(record, *row) for record in records for row in self._rows.changes([record])
        ]


@dataclass(frozen=True, slots=True)
class _Changing:
    """A record with the bytes of a row."""

    record: ReceivedMessage
    row_key: bytes
    row_value: bytes | None
    row_timestamp: int

    def key(self) -> bytes:
        return self.row_key

    def value(self) -> bytes | None:
        return self.row_value

    def timestamp(self) -> tuple[int, int]:
        return 0, self.row_timestamp

    def offset(self) -> int:
        return self.record.offset()


def _frame(
    spark: SparkSession,
    ranges: tuple[Range, ...],
    form: Form,
    config: StreamsConfig,
    changed: Change | None = None,
) -> DataFrame:
    from headrace.spark_bridge.by_value import ByValue
    from headrace.spark_bridge.topic_rows import TopicRows

    count = len(ranges)
    numbers = spark.range(0, count, 1, count)
    rows = TopicRows(ranges, form, config, changed)
    return numbers.mapInArrow(ByValue(rows), form.ddl)
