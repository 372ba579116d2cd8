"""What to compute: the DSL, the graph, the optimiser, the compiler. No Kafka, no RocksDB."""

from __future__ import annotations

from headrace.topology import serdes
from headrace.topology.branched import BranchedKStream
from headrace.topology.builder import StreamsBuilder
from headrace.topology.cogrouped import (
    CogroupedKStream,
    SessionWindowedCogroupedKStream,
    TimeWindowedCogroupedKStream,
)
from headrace.topology.errors import KeySerdeWarning, SerdeError, TopologyError
from headrace.topology.global_table import GlobalKTable
from headrace.topology.graph import Topology
from headrace.topology.grouped import KGroupedStream
from headrace.topology.grouped_table import KGroupedTable
from headrace.topology.kstream import KStream
from headrace.topology.ktable import KTable
from headrace.topology.materialized import Materialized
from headrace.topology.operators.transform_values import ValueTransformerWithKey
from headrace.topology.processors import (
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    Processor,
    ProcessorContext,
    Record,
)
from headrace.topology.read_only_store import ReadOnlyStore
from headrace.topology.serdes import Serde
from headrace.topology.session_windowed import SessionWindowedKStream
from headrace.topology.store_faces import KeyValueStore, TimestampedKeyValueStore, ValueAndTimestamp
from headrace.topology.stores import StoreBuilder, Stores
from headrace.topology.suppressed import BufferConfig, Suppressed
from headrace.topology.time_windowed import TimeWindowedKStream
from headrace.topology.timed_store_faces import SessionStore, TimestampedWindowStore, WindowStore
from headrace.topology.timestamps import InputRecord, TimestampExtractor
from headrace.topology.versioned_store import VersionedStore
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

if __name__ != "headrace.topology":
    # Under its bare name every module would be loaded a second time.
    raise ImportError("import it as headrace.topology")
