"""Stream processing on Kafka for Python: Kafka Streams' model with exactly-once processing.

An application imports its names from here. Each name is loaded on first use: a topology and its
test driver need no Kafka client. The Spark side is `headrace.spark_bridge`.

Examples:
    >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
    >>> builder = StreamsBuilder()
    >>> words = builder.stream("words", key=serdes.string, value=serdes.string)
    >>> words.map_values(str.upper).to("shouted", key=serdes.string, value=serdes.string)
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input("words").send("a", "hello")
    ...     driver.output("shouted").read().value
    'HELLO'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from headrace.streams.states import rare_collections

if TYPE_CHECKING:
    from headrace.streams import (
        KafkaStreams,
        State,
        StreamsConfig,
        StreamsError,
        TopologyTestDriver,
    )
    from headrace.streams.client.stores import connect
    from headrace.streams.client.stores_async import connect_async
    from headrace.streams.config.handlers import Continue, DeadLetter, Fail, Failure
    from headrace.streams.connectors.delta import DeltaSink
    from headrace.streams.connectors.duckdb import DuckDbSink
    from headrace.streams.connectors.iceberg import IcebergSink
    from headrace.streams.connectors.parquet import ParquetSink
    from headrace.streams.connectors.postgres import PostgresSink
    from headrace.streams.connectors.sqlite import SqliteSink
    from headrace.streams.kafka.schema_registry import SchemaRegistry
    from headrace.streams.tasks.restore import RestoreListener
    from headrace.streams.worker.protocols import WorkerListener
    from headrace.streams.worker.uncaught_errors import UncaughtErrorResponse
    from headrace.topology import (
        BranchedKStream,
        BufferConfig,
        Call,
        CogroupedKStream,
        ExternalSink,
        FixedKeyProcessor,
        FixedKeyProcessorContext,
        FixedKeyRecord,
        GlobalKTable,
        InputRecord,
        JoinWindows,
        KeySerdeWarning,
        KeyValueStore,
        KGroupedStream,
        KGroupedTable,
        KStream,
        KTable,
        Materialized,
        MemorySink,
        Processor,
        ProcessorContext,
        ReadOnlyStore,
        Record,
        Retry,
        Serde,
        SerdeError,
        SessionStore,
        SessionWindowedCogroupedKStream,
        SessionWindowedKStream,
        SessionWindows,
        SinkBatch,
        SinkBatching,
        SinkConnection,
        SinkFencedError,
        SinkRefusedError,
        SinkRow,
        SinkUnavailableError,
        SinkUnusableError,
        SlidingWindows,
        StoreBuilder,
        Stores,
        StreamsBuilder,
        Suppressed,
        TimestampedKeyValueStore,
        TimestampedWindowStore,
        TimestampExtractor,
        TimeWindowedCogroupedKStream,
        TimeWindowedKStream,
        TimeWindows,
        Topology,
        TopologyError,
        UnlimitedWindows,
        ValueAndTimestamp,
        ValueTransformerWithKey,
        VersionedStore,
        Window,
        Windowed,
        WindowStore,
        event_time,
        serdes,
    )
    from headrace.topology.processors.stores import in_memory
    from headrace.topology.serdes import avro as avro

__version__: Final = "0.1.0"

__all__ = [
    "BranchedKStream",
    "BufferConfig",
    "Call",
    "CogroupedKStream",
    "Continue",
    "DeadLetter",
    "DeltaSink",
    "DuckDbSink",
    "ExternalSink",
    "Fail",
    "Failure",
    "FixedKeyProcessor",
    "FixedKeyProcessorContext",
    "FixedKeyRecord",
    "GlobalKTable",
    "IcebergSink",
    "InputRecord",
    "JoinWindows",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "KafkaStreams",
    "KeySerdeWarning",
    "KeyValueStore",
    "Materialized",
    "MemorySink",
    "ParquetSink",
    "PostgresSink",
    "Processor",
    "ProcessorContext",
    "ReadOnlyStore",
    "Record",
    "RestoreListener",
    "Retry",
    "SchemaRegistry",
    "Serde",
    "SerdeError",
    "SessionStore",
    "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream",
    "SessionWindows",
    "SinkBatch",
    "SinkBatching",
    "SinkConnection",
    "SinkFencedError",
    "SinkRefusedError",
    "SinkRow",
    "SinkUnavailableError",
    "SinkUnusableError",
    "SlidingWindows",
    "SqliteSink",
    "State",
    "StoreBuilder",
    "Stores",
    "StreamsBuilder",
    "StreamsConfig",
    "StreamsError",
    "Suppressed",
    "TimeWindowedCogroupedKStream",
    "TimeWindowedKStream",
    "TimeWindows",
    "TimestampExtractor",
    "TimestampedKeyValueStore",
    "TimestampedWindowStore",
    "Topology",
    "TopologyError",
    "TopologyTestDriver",
    "UncaughtErrorResponse",
    "UnlimitedWindows",
    "ValueAndTimestamp",
    "ValueTransformerWithKey",
    "VersionedStore",
    "Window",
    "WindowStore",
    "Windowed",
    "WorkerListener",
    "__version__",
    "connect",
    "connect_async",
    "event_time",
    "in_memory",
    "serdes",
]

_OF_STREAMS: Final = (
    "KafkaStreams",
    "State",
    "StreamsConfig",
    "StreamsError",
    "TopologyTestDriver",
)
_ELSEWHERE: Final = {
    "Continue": "headrace.streams.config.handlers",
    "DeadLetter": "headrace.streams.config.handlers",
    "DeltaSink": "headrace.streams.connectors.delta",
    "DuckDbSink": "headrace.streams.connectors.duckdb",
    "Fail": "headrace.streams.config.handlers",
    "Failure": "headrace.streams.config.handlers",
    "IcebergSink": "headrace.streams.connectors.iceberg",
    "ParquetSink": "headrace.streams.connectors.parquet",
    "PostgresSink": "headrace.streams.connectors.postgres",
    "RestoreListener": "headrace.streams.tasks.restore",
    "SchemaRegistry": "headrace.streams.kafka.schema_registry",
    "SqliteSink": "headrace.streams.connectors.sqlite",
    "UncaughtErrorResponse": "headrace.streams.worker.uncaught_errors",
    "WorkerListener": "headrace.streams.worker.protocols",
    "connect": "headrace.streams.client.stores",
    "connect_async": "headrace.streams.client.stores_async",
    "in_memory": "headrace.topology.processors.stores",
}
_MODULES: Final = {"avro": "headrace.topology.serdes.avro", "serdes": "headrace.topology.serdes"}
"""Public modules. `avro` requires an extra, so a star import must not load it."""


def __getattr__(name: str) -> Any:
    if name not in __all__ and name not in _MODULES:
        from headrace.topology.java_names import OF_PACKAGE

        if name in OF_PACKAGE:  # an AttributeError of `from headrace import` loses its message
            raise ImportError(f"headrace has no {name}; {OF_PACKAGE[name]}", name=name)
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    with rare_collections():
        if name in _MODULES:
            return import_module(_MODULES[name])
        room = "headrace.streams" if name in _OF_STREAMS else "headrace.topology"
        return getattr(import_module(_ELSEWHERE.get(name, room)), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
