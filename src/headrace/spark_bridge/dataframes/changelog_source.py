"""Data source ``changelog``: the last value of each key of any topic, as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headrace.spark_bridge.dataframes.columns import Column
from headrace.spark_bridge.dataframes.topic_rows import (
    KeyColumns,
    PartitionRange,
    RowFormat,
    RowKind,
    TopicRows,
    fixed_ranges,
)
from headrace.spark_bridge.read import consumer_opener
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import ConfigError

_OWN = ("topic", "compacted", "path")


class ChangelogSource(DataSource):
    """Data source of a topic, up to ends that are fixed when the DataFrame is created.

    Options: ``topic``, ``bootstrap.servers`` (or ``kafka.bootstrap.servers``), ``compacted``
    ("false" returns every record, with its headers), and any setting of Headrace's clients, such as
    ``security.protocol``, with or without the prefix ``kafka.``.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        given = {name.lower().removeprefix("kafka."): value for name, value in options.items()}
        topic = given.get("topic")
        if not topic:
            raise ConfigError('format("changelog") requires the option topic')
        compacted = given.get("compacted", "true").lower()
        if compacted not in ("true", "false"):
            raise ConfigError(f"the option compacted must be true or false, not {compacted!r}")
        settings = {name: value for name, value in given.items() if name not in _OWN}
        self._config = StreamsConfig.parse({"application.id": "changelog", **settings})
        self._what: RowKind = "rows" if compacted == "true" else "records"
        self._ranges = fixed_ranges(self._config, topic)

    @classmethod
    def name(cls) -> str:
        return "changelog"

    def schema(self) -> str:
        return _form(self._what).ddl

    def reader(self, schema: Any) -> _ChangelogReader:  # noqa: ARG002 - the columns are always the same
        return _ChangelogReader(self._ranges, self._what, self._config)


def _form(what: RowKind) -> RowFormat:
    import pyarrow as pa

    column = Column(pa.binary(), None)
    return RowFormat(what, KeyColumns(column), column, with_offset=True)


class _ChangelogPartition(InputPartition):
    def __init__(self, number: int, one: PartitionRange) -> None:
        super().__init__(number)
        self.one = one


class _ChangelogReader(DataSourceReader):
    def __init__(
        self, ranges: tuple[PartitionRange, ...], what: RowKind, config: StreamsConfig
    ) -> None:
        self._ranges = ranges
        self._what = what
        self._config = config

    def partitions(self) -> list[InputPartition]:
        return [_ChangelogPartition(number, one) for number, one in enumerate(self._ranges)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, _ChangelogPartition)
        rows = TopicRows((), _form(self._what), self._config)
        return rows.rows(partition.one, consumer_opener(self._config))
