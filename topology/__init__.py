"""What to compute: the DSL, the graph, the optimiser, the compiler. No Kafka, no RocksDB."""

from __future__ import annotations

from topology import serdes
from topology.branched import BranchedKStream
from topology.builder import StreamsBuilder
from topology.errors import SerdeError, TopologyError
from topology.global_table import GlobalKTable
from topology.graph import Topology
from topology.grouped import KGroupedStream
from topology.kstream import KStream
from topology.ktable import KTable
from topology.materialized import Materialized
from topology.serdes import Serde

__all__ = [
    "BranchedKStream",
    "GlobalKTable",
    "KGroupedStream",
    "KStream",
    "KTable",
    "Materialized",
    "Serde",
    "SerdeError",
    "StreamsBuilder",
    "Topology",
    "TopologyError",
    "serdes",
]
