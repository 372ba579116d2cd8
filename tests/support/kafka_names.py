"""Kafka Streams' names of our methods, for the tables in docs/api.

python -m tests.support.kafka_names streams prints the table of docs/api/streams.md.

`Class#method` is a method of an object, and `Class.method` is static.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "api"


def _same(owner: str, *names: str, java: str | None = None) -> dict[str, str]:
    """Return methods whose names differ from Java's in the spelling alone."""
    return {f"{owner}.{name}": f"{java or owner}#{camel(name)}" for name in names}


def camel(name: str) -> str:
    """Return Java's spelling of a name.

    >>> camel("flat_map_values")
    'flatMapValues'
    """
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


_AGGREGATIONS = ("count", "reduce", "aggregate")
_JOINS = ("join", "left_join", "outer_join")
_CONTEXT = "ProcessingContext"

COUNTERPARTS: Mapping[str, Mapping[str, str]] = {
    "streams": {
        **_same("StreamsBuilder", "stream", "table", "global_table", "add_state_store", "build"),
        **_same("KStream", "filter", "filter_not", "map", "map_values", "flat_map"),
        **_same("KStream", "flat_map_values", "select_key", "peek"),
        "KStream.for_each": "KStream#foreach",
        **_same("KStream", "print", "merge", "split", "repartition", "to", "to_table"),
        **_same("KStream", "group_by_key", "group_by", *_JOINS, "process", "process_values"),
        **_same("BranchedKStream", "branch", "default_branch", "no_default_branch"),
        **_same("KGroupedStream", *_AGGREGATIONS, "windowed_by", "cogroup"),
        **_same("CogroupedKStream", "cogroup", "aggregate", "windowed_by"),
    },
    "tables": {
        **_same("KTable", "filter", "filter_not", "map_values", "transform_values", "group_by"),
        **_same("KTable", "suppress", "to_stream", *_JOINS),
        **_same("KGroupedTable", *_AGGREGATIONS),
        **_same("ValueTransformerWithKey", "transform"),
    },
    "windows": {
        "TimeWindows.size": "TimeWindows.ofSizeWithNoGrace",
        "TimeWindows.grace": "TimeWindows.ofSizeAndGrace",
        "TimeWindows.advance": "TimeWindows#advanceBy",
        "TimeWindows.size_ms": "TimeWindows#size",
        "TimeWindows.advance_ms": "TimeWindows#advanceMs",
        "TimeWindows.grace_ms": "TimeWindows#gracePeriodMs",
        "SlidingWindows.time_difference": "SlidingWindows.ofTimeDifferenceWithNoGrace",
        "SlidingWindows.grace": "SlidingWindows.ofTimeDifferenceAndGrace",
        "SlidingWindows.time_difference_ms": "SlidingWindows#timeDifferenceMs",
        "SlidingWindows.grace_ms": "SlidingWindows#gracePeriodMs",
        "SessionWindows.inactivity_gap": "SessionWindows.ofInactivityGapWithNoGrace",
        "SessionWindows.grace": "SessionWindows.ofInactivityGapAndGrace",
        "SessionWindows.gap_ms": "SessionWindows#inactivityGap",
        "SessionWindows.grace_ms": "SessionWindows#gracePeriodMs",
        "UnlimitedWindows.start_ms": "UnlimitedWindows#startOn",
        "JoinWindows.time_difference": "JoinWindows.ofTimeDifferenceWithNoGrace",
        "JoinWindows.grace": "JoinWindows.ofTimeDifferenceAndGrace",
        **_same("JoinWindows", "before", "after", "before_ms", "after_ms"),
        "JoinWindows.grace_ms": "JoinWindows#gracePeriodMs",
        "Window.start": "Window#startTime",
        "Window.start_ms": "Window#start",
        "Window.end": "Window#endTime",
        "Window.end_ms": "Window#end",
        **_same("Windowed", "key", "window"),
        **_same("TimeWindowedKStream", *_AGGREGATIONS),
        **_same("SessionWindowedKStream", *_AGGREGATIONS),
        **_same("TimeWindowedCogroupedKStream", "aggregate"),
        **_same("SessionWindowedCogroupedKStream", "aggregate"),
    },
    "materialized": {
        "Materialized.store": "Materialized.as",
        "Materialized.kind": "Materialized#withStoreType",
        "Materialized.cached": "Materialized#withCachingEnabled, Materialized#withCachingDisabled",
        "Materialized.logged": "Materialized#withLoggingDisabled",
        "Materialized.topic_config": "Materialized#withLoggingEnabled",
        "Materialized.retention": "Materialized#withRetention",
        "Materialized.history": "Stores.persistentVersionedKeyValueStore",
        "Suppressed.until_window_closes": "Suppressed.untilWindowCloses",
        "Suppressed.until_time_limit": "Suppressed.untilTimeLimit",
        "BufferConfig.max_records": "BufferConfig.maxRecords, BufferConfig#withMaxRecords",
        "BufferConfig.max_bytes": "BufferConfig.maxBytes, BufferConfig#withMaxBytes",
        "BufferConfig.when_full": "BufferConfig#emitEarlyWhenFull, BufferConfig#shutDownWhenFull",
        "BufferConfig.logged": "BufferConfig#withLoggingDisabled",
        "BufferConfig.topic_config": "BufferConfig#withLoggingEnabled",
    },
    "processors": {
        **_same("Processor", "init", "process", "close"),
        **_same("FixedKeyProcessor", "init", "process", "close"),
        **_same("ProcessorContext", "forward"),
        **_same("FixedKeyProcessorContext", "forward"),
        **_same("ProcessorContext", "application_id", "task_id", "record_metadata", java=_CONTEXT),
        "ProcessorContext.partition": "TaskId#partition",
        "ProcessorContext.settings": f"{_CONTEXT}#appConfigs",
        "ProcessorContext.current_stream_time": f"{_CONTEXT}#currentStreamTimeMs",
        "ProcessorContext.current_time": f"{_CONTEXT}#currentSystemTimeMs",
        "ProcessorContext.store": f"{_CONTEXT}#getStateStore",
        **_same("ProcessorContext", "schedule", "commit", java=_CONTEXT),
        **_same("Record", "with_key", "with_value", "with_timestamp", "with_headers"),
        **_same("FixedKeyRecord", "with_value", "with_timestamp", "with_headers"),
        "Stores.key_value": "Stores.keyValueStoreBuilder",
        "Stores.timestamped_key_value": "Stores.timestampedKeyValueStoreBuilder",
        "Stores.window": "Stores.windowStoreBuilder",
        "Stores.timestamped_window": "Stores.timestampedWindowStoreBuilder",
        "Stores.session": "Stores.sessionStoreBuilder",
        "Stores.versioned": "Stores.versionedKeyValueStoreBuilder",
        **_same("StoreBuilder", "name"),
        **_same("KeyValueStore", "name", "get", "put", "put_if_absent", "put_all", "delete"),
        **_same("KeyValueStore", "range", "reverse_range", "all", "reverse_all", "prefix_scan"),
        **_same("KeyValueStore", "approximate_num_entries"),
        **_same("TimestampedKeyValueStore", "get", "put"),
        **_same("WindowStore", "name", "put"),
        "WindowStore.get": "WindowStore#fetch",
        **_same("WindowStore", "fetch", "backward_fetch"),
        "WindowStore.fetch_range": "WindowStore#fetch",
        "WindowStore.backward_fetch_range": "WindowStore#backwardFetch",
        **_same("WindowStore", "fetch_all", "backward_fetch_all", "all", "backward_all"),
        **_same("SessionStore", "put", "remove", "fetch_session", "fetch", "backward_fetch"),
        **_same("SessionStore", "find_sessions", "backward_find_sessions"),
        "SessionStore.find_sessions_of_range": "SessionStore#findSessions",
        "SessionStore.find_sessions_by_end": "SessionStore#findSessions",
        **_same("VersionedStore", "name", "put", "get", "delete", java="VersionedKeyValueStore"),
        **_same("ReadOnlyStore", "get", "range", "all", java="ReadOnlyKeyValueStore"),
    },
    "application": {
        **_same("KafkaStreams", "state", "start", "close", "pause", "resume", "metrics", "store"),
        **_same("KafkaStreams", "clean_up"),
        "KafkaStreams.queries": "KafkaStreams#query",
        "KafkaStreams.tasks": "KafkaStreams#metadataForLocalThreads",
        "KafkaStreams.add_worker": "KafkaStreams#addStreamThread",
        "KafkaStreams.remove_worker": "KafkaStreams#removeStreamThread",
        **_same("Topology", "add_source", "add_processor", "add_sink", "add_state_store"),
        **_same("Topology", "add_read_only_state_store", "connect_processor_and_state_stores"),
        **_same("Topology", "describe"),
        "RestoreListener.on_restore_start": "StateRestoreListener#onRestoreStart",
        "RestoreListener.on_batch_restored": "StateRestoreListener#onBatchRestored",
        "RestoreListener.on_restore_end": "StateRestoreListener#onRestoreEnd",
    },
}
"""By page: our method, or an argument that replaces one, and Kafka Streams' method."""

NONE: Mapping[str, tuple[str, ...]] = {
    "streams": (
        *("KStream.deduplicate", "KStream.sample", "KStream.map_async", "KStream.map_batches"),
        *("KStream.to_sink", "KStream.to_dead_letters"),
        *("Call.key", "Retry.pause_ms"),
    ),
    "tables": ("KTable.to_sink",),
    "windows": (),
    "materialized": ("Materialized.history_ms", "BufferConfig.is_strict"),
    "processors": (
        *("ProcessorContext.count", "ProcessorContext.node", "Stores.custom"),
        *("VersionedStore.replace", "ReadOnlyStore.get_with_timestamp"),
    ),
    "application": (
        *("KafkaStreams.run", "KafkaStreams.serve", "KafkaStreams.lags", "KafkaStreams.topology"),
        *("KafkaStreams.settings", "KafkaStreams.records_processed"),
        *("Topology.to_mermaid", "Topology.to_svg"),
        *("Topology.sources", "Topology.sinks"),
        *("WorkerListener.on_assignment", "WorkerListener.on_running", "WorkerListener.on_commit"),
    ),
}
"""By page: our methods that Kafka Streams does not have."""


def table(page: str) -> str:
    """Return the table of a page's methods as Markdown."""
    lines = ["| Method or argument | Kafka Streams |", "|---|---|"]
    for ours, java in COUNTERPARTS[page].items():
        names = ", ".join(f"`{name}`" for name in java.split(", "))
        lines.append(f"| `{ours}` | {names} |")
    lines += [f"| `{ours}` | not in Kafka Streams |" for ours in NONE[page]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(sys.argv[1]))
