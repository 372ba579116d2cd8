"""Reads partitions of topics in Spark's Python workers, as decoded Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import pyarrow as pa

from headrace.spark_bridge.dataframes.columns import TIMESTAMP, Column, ddl_of, times
from headrace.spark_bridge.dataframes.latest import Row, Version, latest, not_expired, versions
from headrace.spark_bridge.read import OpenConsumer, consumer_opener, read_range
from headrace.spark_bridge.records.executor_errors import sealed
from headrace.spark_bridge.records.packs import HEADERS
from headrace.state.spec import StoreSpec
from headrace.streams.config.config import StreamsConfig
from headrace.streams.seams.clients import ReceivedMessage, TopicPartition
from headrace.topology.graph.graph import AnySerde

BATCH_ROWS = 10_000

Change = Callable[[Sequence[ReceivedMessage]], Any]
What = Literal["rows", "versions", "records"]


@dataclass(frozen=True, slots=True)
class Range:
    """A partition from its first record to an end that was fixed."""

    place: TopicPartition
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """The columns that keys become.

    Args:
        windowed: takes the window off; None for keys without one.
    """

    key: Column
    windowed: AnySerde | None = None

    @property
    def fields(self) -> list[tuple[str, Any]]:
        """Names and types."""
        window = [("window_start", TIMESTAMP), ("window_end", TIMESTAMP)]
        return [("key", self.key.type), *(window if self.windowed else [])]

    def arrays(self, keys: Sequence[bytes | None]) -> list[Any]:
        """Decode keys."""
        if self.windowed is None:
            return [self.key.array(keys)]
        found = [None if key is None else self.windowed.deserialize(key) for key in keys]
        windows = [None if one is None else one.window for one in found]
        plain = self.key.plain
        inner = [None if one is None else one.key for one in found]
        if plain is not None:
            inner = [None if key is None else plain(key) for key in inner]
        return [
            pa.array(inner, self.key.type),
            times([None if window is None else window.start_ms for window in windows]),
            times([None if window is None else window.end_ms for window in windows]),
        ]


@dataclass(frozen=True, slots=True)
class Form:
    """What is made of a topic's records.

    Args:
        what: the last rows of the keys, all versions of them, or the records as they are.
        spec: of the store that the rows are of, if they are.
        with_offset: whether there is a column of offsets.
    """

    what: What
    key: KeyColumns
    value: Column
    spec: StoreSpec | None = None
    with_offset: bool = False

    @property
    def fields(self) -> list[tuple[str, Any]]:
        """Names and types of the columns."""
        fields = [*self.key.fields, ("value", self.value.type), ("timestamp", TIMESTAMP)]
        if self.what == "versions":
            fields += [("valid_from", TIMESTAMP), ("valid_to", TIMESTAMP)]
        fields.append(("partition", pa.int32()))
        if self.with_offset:
            fields.append(("offset", pa.int64()))
        if self.what == "records":
            fields.append(("headers", HEADERS))
        return fields

    @property
    def schema(self) -> Any:
        """The columns, for Arrow."""
        return pa.schema(self.fields)

    @property
    def ddl(self) -> str:
        """The columns, for Spark."""
        return ", ".join(f"`{name}` {ddl_of(kind)}" for name, kind in self.fields)

    def batches(
        self, place: TopicPartition, records: Iterator[Sequence[ReceivedMessage]]
    ) -> Iterator[Any]:
        """Yield what a partition's records become."""
        rows: Iterator[Any]
        if self.what == "records":
            rows = (record for batch in records for record in batch)
        elif self.what == "versions":
            rows = versions(records, None if self.spec is None else self.spec.retention_ms)
        else:
            rows = iter(self._kept(latest(records)))
        while some := list(islice(rows, BATCH_ROWS)):
            yield self._batch(place, some)

    def _kept(self, rows: list[Row]) -> list[Row]:
        time_of = None if self.spec is None else self.spec.rows.time_of
        if time_of is None or self.spec is None:
            return rows
        return not_expired(rows, time_of, self.spec.retention_ms)

    def _batch(self, place: TopicPartition, rows: list[Any]) -> Any:
        more: list[Any] = []
        if self.what == "records":
            keys, values = [r.key() for r in rows], [r.value() for r in rows]
            stamps, offsets = [r.timestamp()[1] for r in rows], [r.offset() for r in rows]
        elif self.what == "versions":
            found: list[Version] = rows
            keys, values = [r.key for r in found], [r.value for r in found]
            stamps, offsets = [r.valid_from for r in found], [r.offset for r in found]
            more = [times(stamps), times([r.valid_to for r in found])]
        else:
            keys, values, stamps, offsets = (list(column) for column in zip(*rows, strict=True))
        arrays = [*self.key.arrays(keys), self.value.array(values), times(stamps), *more]
        arrays.append(pa.array([place.partition] * len(rows), pa.int32()))
        if self.with_offset:
            arrays.append(pa.array(offsets, pa.int64()))
        if self.what == "records":
            arrays.append(pa.array([_headers(record) for record in rows], HEADERS))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _headers(record: ReceivedMessage) -> list[dict[str, Any]] | None:
    found = record.headers()
    return None if not found else [{"name": _text(name), "value": value} for name, value in found]


def _text(name: str) -> str:
    """Replace bytes that are not UTF-8, as Spark's own Kafka source does."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


class TopicRows:
    """What Spark calls in its workers: numbers of ranges come in, rows go out.

    Args:
        ranges: what is read, one by each task.
        form: what is made of it.
        changed: makes records of others first (see `headrace.spark_bridge.dataframes.changelog`).
    """

    def __init__(
        self,
        ranges: Sequence[Range],
        form: Form,
        config: StreamsConfig,
        changed: Change | None = None,
    ) -> None:
        self._ranges = ranges
        self._form = form
        self._config = config
        self._changed = changed

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Read the ranges whose numbers come."""
        opener = consumer_opener(self._config)
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from self.rows(self._ranges[number], opener)

    def rows(self, one: Range, open_consumer: OpenConsumer) -> Iterator[Any]:
        """Read one range."""
        timeout_s = self._config.task_timeout_ms / 1000
        with sealed(full=self._config.log_errors == "full"):
            found: Iterator[Any] = read_range(
                open_consumer, one.place, one.start, one.end, timeout_s=timeout_s
            )
            if self._changed is not None:
                found = map(self._changed, found)
            yield from self._form.batches(one.place, found)
