"""Definition of a topology: DSL, graph, optimizer and compiler. No Kafka, no RocksDB."""

from __future__ import annotations

from headrace.topology import serdes
from headrace.topology.context.calls import Call, Retry
from headrace.topology.dsl.branched import BranchedKStream
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.dsl.cogrouped import (
    CogroupedKStream,
    SessionWindowedCogroupedKStream,
    TimeWindowedCogroupedKStream,
)
from headrace.topology.dsl.global_table import GlobalKTable
from headrace.topology.dsl.grouped import KGroupedStream
from headrace.topology.dsl.grouped_table import KGroupedTable
from headrace.topology.dsl.kstream import KStream
from headrace.topology.dsl.ktable import KTable
from headrace.topology.dsl.session_windowed import SessionWindowedKStream
from headrace.topology.dsl.suppressed import BufferConfig, Suppressed
from headrace.topology.dsl.time_windowed import TimeWindowedKStream
from headrace.topology.errors import KeySerdeWarning, SerdeError, TopologyError
from headrace.topology.external_sink import (
    ExternalSink,
    SinkBatch,
    SinkBatching,
    SinkConnection,
    SinkFencedError,
    SinkRefusedError,
    SinkRow,
    SinkUnavailableError,
    SinkUnusableError,
)
from headrace.topology.graph.materialized import Materialized
from headrace.topology.operators.outbox import MemorySink
from headrace.topology.operators.transform_values import ValueTransformerWithKey
from headrace.topology.payload_time import event_time
from headrace.topology.processors.processors import (
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    Processor,
    ProcessorContext,
    Record,
)
from headrace.topology.processors.store_wrappers import (
    KeyValueStore,
    ReadOnlyStore,
    TimestampedKeyValueStore,
    ValueAndTimestamp,
)
from headrace.topology.processors.stores import StoreBuilder, Stores
from headrace.topology.processors.timed_store_wrappers import (
    SessionStore,
    TimestampedWindowStore,
    WindowStore,
)
from headrace.topology.processors.versioned_store import VersionedStore
from headrace.topology.serdes import Serde
from headrace.topology.timestamps import InputRecord, TimestampExtractor
from headrace.topology.topology import Topology
from headrace.topology.windows import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    Window,
    Windowed,
)

__all__ = [
    "BranchedKStream",
    "BufferConfig",
    "Call",
    "CogroupedKStream",
    "ExternalSink",
    "FixedKeyProcessor",
    "FixedKeyProcessorContext",
    "FixedKeyRecord",
    "GlobalKTable",
    "InputRecord",
    "JoinWindows",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "KeySerdeWarning",
    "KeyValueStore",
    "Materialized",
    "MemorySink",
    "Processor",
    "ProcessorContext",
    "ReadOnlyStore",
    "Record",
    "Retry",
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
    "StoreBuilder",
    "Stores",
    "StreamsBuilder",
    "Suppressed",
    "TimeWindowedCogroupedKStream",
    "TimeWindowedKStream",
    "TimeWindows",
    "TimestampExtractor",
    "TimestampedKeyValueStore",
    "TimestampedWindowStore",
    "Topology",
    "TopologyError",
    "UnlimitedWindows",
    "ValueAndTimestamp",
    "ValueTransformerWithKey",
    "VersionedStore",
    "Window",
    "WindowStore",
    "Windowed",
    "event_time",
    "serdes",
]
