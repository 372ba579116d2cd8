"""What the options of `headrace backfill` stand for: files, offsets and times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.streams.seams.clients import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark_bridge.history.archive_cuts import Cutover
    from headrace.spark_bridge.history.planning import Until

FORMATS = ("parquet", "csv", "delta", "orc", "json")


class FileSource:
    """A topic's history in files: ``topic=path`` or ``topic=format:path``."""

    def __init__(self, topic: str, kind: str | None, path: str) -> None:
        self.topic = topic
        self.path = path
        self.kind = kind or _kind_of(path)


def _kind_of(path: str) -> str:
    if Path(path, "_delta_log").is_dir():
        return "delta"
    name = path.rstrip("/").removesuffix(".gz")
    if name.endswith(".csv") or any(Path(path).glob("*.csv*")):
        return "csv"
    if name.endswith((".json", ".jsonl", ".ndjson")):
        return "json"
    return "orc" if name.endswith(".orc") else "parquet"


def parse_sources(
    _: click.Context, __: click.Parameter, given: tuple[str, ...]
) -> tuple[FileSource, ...]:
    """Read ``--source``.

    >>> (one,) = parse_sources(None, None, ("orders=csv:s3a://b/orders",))
    >>> one.topic, one.kind, one.path
    ('orders', 'csv', 's3a://b/orders')
    >>> (one,) = parse_sources(None, None, ("orders=s3a://b/orders",))
    >>> one.kind, one.path
    ('parquet', 's3a://b/orders')
    """
    found = []
    for text in given:
        topic, equals, path = text.partition("=")
        if not (topic and equals and path):
            raise click.BadParameter(f"{text!r} is not TOPIC=PATH, such as orders=orders.parquet")
        kind, colon, rest = path.partition(":")
        known = colon and kind in FORMATS
        found.append(FileSource(topic, kind, rest) if known else FileSource(topic, None, path))
    twice = {one.topic for one in found if sum(one.topic == o.topic for o in found) > 1}
    if twice:
        raise click.BadParameter(f"{', '.join(sorted(twice))} is there twice; give a directory")
    return tuple(found)


def open_source(spark: SparkSession, source: FileSource) -> DataFrame:
    """Open files as the columns that `backfill` takes.

    CSV and JSON are read by `headrace.spark_bridge.history.text_files`, all others as Spark reads
    them.
    """
    from headrace.spark_bridge.history.text_files import read_csv, read_json

    if source.kind == "csv":
        return read_csv(spark, source.path)
    if source.kind == "json":
        return read_json(spark, source.path)
    return spark.read.format(source.kind).load(source.path)


def parse_place(text: str) -> tuple[TopicPartition, int]:
    """Read ``topic-partition=offset``.

    >>> parse_place("my-orders-3=17")
    (TopicPartition(topic='my-orders', partition=3), 17)
    """
    place, _, offset = text.strip().rpartition("=")
    topic, _, partition = place.rpartition("-")
    if not (topic and partition.isdecimal() and offset.isdecimal()):
        raise click.BadParameter(f"{text!r} is not TOPIC-PARTITION=OFFSET, such as orders-0=1200")
    return TopicPartition(topic, int(partition)), int(offset)


def parse_until(_: click.Context, __: click.Parameter, text: str | None) -> Until | None:
    """Read ``--until``: latest, a time, or offsets.

    >>> parse_until(None, None, "2026-01-31T09:00:00Z")
    datetime.datetime(2026, 1, 31, 9, 0, tzinfo=datetime.timezone.utc)
    >>> parse_until(None, None, "orders-0=5,orders-1=7")[TopicPartition("orders", 1)]
    7
    """
    if text is None:
        return None
    if text == "latest":
        return "latest"
    if "=" in text:
        places: Mapping[TopicPartition, int] = dict(map(parse_place, text.split(",")))
        return places
    try:
        given = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is neither 'latest' nor a time (2026-01-31T09:00:00Z) nor offsets "
            "(orders-0=5,orders-1=7)"
        ) from error
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def parse_cutover(context: click.Context, option: click.Parameter, text: str | None) -> Any:
    """Read ``--cutover``: a time, or offsets.

    >>> parse_cutover(None, None, "orders-0=5")
    {TopicPartition(topic='orders', partition=0): 5}
    """
    if text == "latest":
        raise click.BadParameter(
            "'latest' does not say where Kafka goes on behind the files; give a time "
            "(2026-01-31T09:00:00Z) or offsets (orders-0=5,orders-1=7)"
        )
    found: Until | Cutover | None = parse_until(context, option, text)
    return found
