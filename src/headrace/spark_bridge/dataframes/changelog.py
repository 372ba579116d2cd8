"""State and topics of an application as DataFrames, decoded by its serdes.

Only committed data is read, up to ends that are fixed when the DataFrame is created, so every
action on it sees the same records. Nothing is written, and no consumer group is joined.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.spark_bridge.errors import ReadError
from headrace.spark_bridge.plan.job import Settings, config_of
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import ReceivedMessage, TopicPartition
from headrace.streams.plan.global_plan import plan_global_tables
from headrace.streams.plan.plan import SourceRows, SubPlan, plan_application
from headrace.topology.graph.binding import bound_to_topics
from headrace.topology.graph.graph import AnySerde, Node
from headrace.topology.processors.store import Store
from headrace.topology.serdes.windows_serde import (
    SessionWindowedSerde,
    TimeWindowedSerde,
    WindowStoreSerde,
)
from headrace.topology.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark_bridge.dataframes.topic_rows import (
        Change,
        KeyColumns,
        PartitionRange,
        RowFormat,
    )


def read_store(
    spark: SparkSession,
    topology: Topology,
    store: str,
    settings: Settings,
    *,
    key_type: str | None = None,
    value_type: str | None = None,
) -> DataFrame:
    """Read the state of an application as of its last commits.

    Args:
        spark: the session; its executors must be able to import the project and to reach the
            brokers.
        topology: topology of the application.
        store: the store's name, such as "counts" of ``count(store="counts")``.
        settings: settings of the application.
        key_type: the Spark type of keys, such as "string" or "struct<id bigint>", if it does not
            follow from the serde; "binary" leaves the bytes as they are.
        value_type: the Spark type of values.

    Returns:
        A row for each key: ``key``, ``value``, ``timestamp``, ``partition``. Windowed stores have
        ``window_start`` and ``window_end`` after the key. Versioned stores have a row for each
        version, with ``valid_from`` and ``valid_to`` (null for the current version).

    Raises:
        ReadError: the topology has no such store, or the store has no changelog.
        StreamsError: the cluster does not answer, or the changelog does not exist.

    Examples:
        >>> from headrace import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> _ = builder.stream("words").group_by_key().count(store="counts")
        >>> settings = {"application.id": "app", "bootstrap.servers": "localhost:9092"}
        >>> read_store(None, builder.build(), "count", settings)
        Traceback (most recent call last):
            ...
        headrace.spark_bridge.errors.ReadError: the topology has no store 'count' \
(did you mean counts?)
    """
    from headrace.spark_bridge.dataframes.topic_rows import RowFormat, fixed_ranges

    config = config_of(settings)
    found = _find_store(topology, store, config)
    columns = _key_columns(spark, found.key, key_type)
    versioned = found.store.spec.layout == "versioned"
    form = RowFormat(
        "versions" if versioned else "rows",
        columns,
        _column(spark, found.value, value_type),
        found.store.spec,
    )
    ranges = fixed_ranges(config, found.topic, to_commits=found.rows is not None)
    changed = None if found.rows is None else _ToTableRows(found.rows)
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
    """Read a topic that a topology reads or writes, decoded by the serdes of the topology.

    Args:
        spark: the session; its executors must be able to import the project and to reach the
            brokers.
        topology: topology of the application.
        topic: a source or sink of the topology.
        settings: settings of the application.
        compacted: return only the last record of each key, without deleted keys.
        key_type: as for `read_store`.
        value_type: as for `read_store`.

    Returns:
        A row for each committed record: ``key``, ``value``, ``timestamp``, ``partition``,
        ``offset`` and, unless `compacted` is set, ``headers``.

    Raises:
        ReadError: the topology neither reads nor writes the topic.
        StreamsError: the cluster does not answer, or the topic does not exist.

    Examples:
        >>> from headrace import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> builder.stream("words").to("copies")
        >>> settings = {"application.id": "app", "bootstrap.servers": "localhost:9092"}
        >>> read_topic(None, builder.build(), "wordz", settings)
        Traceback (most recent call last):
            ...
        headrace.spark_bridge.errors.ReadError: the topology neither reads nor writes a topic \
'wordz' (did you mean words?)
    """
    from headrace.spark_bridge.dataframes.topic_rows import RowFormat, fixed_ranges

    config = config_of(settings)
    key, value = _serdes_of(topology, topic, config)
    form = RowFormat(
        "rows" if compacted else "records",
        _key_columns(spark, key, key_type),
        _column(spark, value, value_type),
        with_offset=True,
    )
    return _frame(spark, fixed_ranges(config, topic), form, config)


def register(spark: SparkSession) -> None:
    """Register ``spark.read.format("changelog")`` in a session; see docs/backfill.md.

    `local_session` and `headrace backfill` register it automatically.
    """
    from headrace.spark_bridge.dataframes.changelog_source import ChangelogSource

    spark.dataSource.register(ChangelogSource)


@dataclass(frozen=True, slots=True)
class _ChangelogStore:
    """A store, with the serdes and the topic of its rows."""

    store: Store
    key: AnySerde
    value: AnySerde
    topic: str
    rows: SourceRows | None = None


def _find_store(topology: Topology, name: str, config: StreamsConfig) -> _ChangelogStore:
    from headrace.spark_bridge.dataframes.topic_rows import nearest

    plans = plan_application(topology, config)
    for plan in plans:
        for store in plan.program.sub_topology.stores:
            if store.name == name:
                return _stored(plan, store, config)
    tables = plan_global_tables(topology, config)
    for table in tables:
        if name == table.store.name:
            return _ChangelogStore(Store(table.store), table.key, table.value, table.topic)
    names = [store.name for plan in plans for store in plan.program.sub_topology.stores]
    names += [table.store.name for table in tables]
    raise ReadError(f"the topology has no store {name!r}{nearest(name, names)}")


def _stored(plan: SubPlan, store: Store, config: StreamsConfig) -> _ChangelogStore:
    key, value = store.key or config.default_key_serde, plan.value_serdes[store.name]
    rows = plan.source_rows.get(store.name)
    if rows is not None:
        return _ChangelogStore(store, key, value, rows.topic, rows)
    if store.name not in plan.changelogs:
        raise ReadError(
            f"store {store.name!r} has no changelog, so only the application has its rows. Enable "
            "logging of the store"
        )
    return _ChangelogStore(store, key, value, plan.changelogs[store.name])


def _serdes_of(topology: Topology, topic: str, config: StreamsConfig) -> tuple[AnySerde, AnySerde]:
    from headrace.spark_bridge.dataframes.topic_rows import nearest

    key, value = config.default_key_serde, config.default_value_serde
    bound = bound_to_topics(
        topology, application_id=config.application_id, default_key=key, default_value=value
    )
    names: list[str] = []
    for node in bound.nodes:
        topics = _topics_of(node)
        names += topics
        if topic in topics:
            own = node.topic_serdes
            return _inner(own[0], key), own[1] or value
    raise ReadError(
        f"the topology neither reads nor writes a topic {topic!r}" + nearest(topic, names)
    )


def _topics_of(node: Node) -> tuple[str, ...]:
    """Return the external topics that a node reads or writes."""
    written = () if node.writes_topic is None else (node.writes_topic,)
    return () if node.internal else (*node.reads_topics, *written)


def _inner(serde: AnySerde | None, default: AnySerde) -> AnySerde:
    fill = getattr(serde, "with_inner_default", None)
    filled: AnySerde = serde or default
    return filled if fill is None else fill(default)


def _key_columns(spark: SparkSession, serde: AnySerde, kind: str | None) -> KeyColumns:
    from headrace.spark_bridge.dataframes.topic_rows import KeyColumns

    windowed = serde.windowed if isinstance(serde, WindowStoreSerde) else serde
    if kind != "binary" and isinstance(windowed, TimeWindowedSerde | SessionWindowedSerde):
        assert windowed.inner is not None, "defaults are filled in"
        return KeyColumns(_column(spark, windowed.inner, kind), serde)
    return KeyColumns(_column(spark, serde, kind))


def _column(spark: SparkSession, serde: AnySerde, kind: str | None) -> Any:
    from headrace.spark_bridge.dataframes.columns import column_of, declared_column

    return column_of(serde) if kind is None else declared_column(serde, _arrow_type(spark, kind))


def _arrow_type(spark: SparkSession, kind: str) -> Any:
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import DataType

    assert spark is not None, "types are read by a session"
    return to_arrow_type(DataType.fromDDL(kind))


class _ToTableRows:
    """Function that converts records of a source topic to rows of the table read from it."""

    def __init__(self, rows: SourceRows) -> None:
        self._rows = rows

    def __call__(self, records: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        from headrace.spark_bridge.records.outputs import SyntheticRecord

        return [
            SyntheticRecord((TopicPartition(r.topic(), r.partition()), r.offset(), *row, None))
            for r in records
            for row in self._rows.changes([r])
        ]


def _frame(
    spark: SparkSession,
    ranges: tuple[PartitionRange, ...],
    form: RowFormat,
    config: StreamsConfig,
    changed: Change | None = None,
) -> DataFrame:
    from headrace.spark_bridge.dataframes.topic_rows import TopicRows
    from headrace.spark_bridge.plan.by_value import ByValue

    count = len(ranges)
    numbers = spark.range(0, count, 1, count)
    rows = TopicRows(ranges, form, config, changed)
    return numbers.mapInArrow(ByValue(rows), form.ddl)
