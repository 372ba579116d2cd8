"""An application that writes to tables outside of Kafka, and can kill itself at a step.

python -m tests.support.sink_app '{"settings": {...}, "input": "in", "target": "/tmp/x.db", ...}'
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

from headrace import (
    DeltaSink,
    DuckDbSink,
    ExternalSink,
    IcebergSink,
    KafkaStreams,
    ParquetSink,
    SqliteSink,
    StreamsBuilder,
    Topology,
    serdes,
)
from headrace.streams import logs
from tests.support.count_app import Plan

ROWS = {"id": str, "value": str}
COUNTS = {"id": str, "count": int}


def sinks(target: str) -> tuple[ExternalSink, ExternalSink]:
    """What appends a row for each record, and what keeps the count of each key.

    Files of Parquet have the counts of keys in a database beside them.
    """
    if target.endswith(".duckdb"):
        every = timedelta(milliseconds=300)
        return (
            DuckDbSink(target, "events", ROWS, row=_event, create=True, every=every, max_rows=200),
            DuckDbSink(target, "counts", COUNTS, key="id", create=True, every=every),
        )
    if target.endswith(".delta"):
        every = timedelta(milliseconds=300)
        return (
            DeltaSink(f"{target}/events", ROWS, row=_event, create=True, every=every, max_rows=200),
            DeltaSink(f"{target}/counts", COUNTS, key="id", create=True, every=every),
        )
    if target.endswith(".iceberg"):
        every, catalog = timedelta(milliseconds=500), iceberg_of(target)
        return (
            IcebergSink(catalog, "shop.events", ROWS, row=_event, create=True, every=every),
            IcebergSink(catalog, "shop.counts", COUNTS, key="id", create=True, every=every),
        )
    if target.endswith(".parquet"):
        is_held = target.endswith(".held.parquet")
        every, max_rows = (timedelta(hours=1), 100_000) if is_held else (timedelta(seconds=1), 200)
        return (
            ParquetSink(target, ROWS, row=_event, every=every, max_rows=max_rows),
            SqliteSink(f"{target}.db", "counts", COUNTS, key="id", create=True),
        )
    return (
        SqliteSink(target, "events", ROWS, row=_event, create=True),
        SqliteSink(target, "counts", COUNTS, key="id", create=True),
    )


def iceberg_of(target: str) -> dict[str, str]:
    """A catalog in a file, beside its tables."""
    return {"type": "sql", "uri": f"sqlite:///{target}.db", "warehouse": f"file://{target}"}


def _event(key: Any, value: Any) -> dict[str, Any]:
    return {"id": key, "value": value}


def topology(source: str, target: str) -> Topology:
    builder = StreamsBuilder()
    appended, counted = sinks(target)
    stream = builder.stream(source, key=serdes.string, value=serdes.string)
    if target.endswith(".direct.db"):
        twice = stream.flat_map_values(lambda value: [value, f"{value} again"])
        twice.to_sink(appended, name="keep-events", direct=True)
        return builder.build()
    stream.to_sink(appended, name="keep-events")
    stream.group_by_key().count(store="counts").to_sink(counted, name="keep-counts")
    return builder.build()


def main() -> None:
    logs.configure(colors=False)
    given = json.loads(sys.argv[1])
    target = given.pop("target")
    plan = Plan(**given, output="")
    app = KafkaStreams(topology(plan.input, target), plan.settings, probe=plan.probe)
    app.run()


if __name__ == "__main__":
    main()
