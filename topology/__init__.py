"""What to compute: the DSL, the graph, the optimiser, the compiler. No Kafka, no RocksDB."""

from __future__ import annotations

from topology import serdes
from topology.branched import BranchedKStream
from topology.builder import StreamsBuilder
from topology.cogrouped import (
    CogroupedKStream,
    SessionWindowedCogroupedKStream,
    TimeWindowedCogroupedKStream,
)
from topology.errors import KeySerdeWarning, SerdeError, TopologyError
from topology.global_table import GlobalKTable
from topology.graph import Topology
from topology.grouped import KGroupedStream
from topology.grouped_table import KGroupedTable
from topology.kstream import KStream
from topology.ktable import KTable
from topology.materialized import Materialized
from topology.operators.transform_values import ValueTransformerWithKey
from topology.processors import (
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    Processor,
    ProcessorContext,
    Record,
)
from topology.read_only_store import ReadOnlyStore
from topology.serdes import Serde
from topology.session_windowed import SessionWindowedKStream
from topology.store_faces import KeyValueStore, TimestampedKeyValueStore, ValueAndTimestamp
from topology.stores import StoreBuilder, Stores
from topology.suppressed import BufferConfig, Suppressed
from topology.time_windowed import TimeWindowedKStream
from topology.timed_store_faces import SessionStore, TimestampedWindowStore, WindowStore
from topology.timestamps import InputRecord, TimestampExtractor
from topology.versioned_store import VersionedStore
from topology.windows import (
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
    "CogroupedKStream",
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
    "Processor",
    "ProcessorContext",
    "ReadOnlyStore",
    "Record",
    "Serde",
    "SerdeError",
    "SessionStore",
    "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream",
    "SessionWindows",
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
    "serdes",
]
