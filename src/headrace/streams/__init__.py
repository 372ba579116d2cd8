"""Runtime of a topology on Kafka: settings, workers, tasks, commits, restore, the test driver.

Names are loaded on first use, so the test driver needs no Kafka client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.streams.states import rare_collections

if TYPE_CHECKING:
    from headrace.streams.app import KafkaStreams, State
    from headrace.streams.config.config import StreamsConfig
    from headrace.streams.errors import StreamsError
    from headrace.streams.testing.driver import TopologyTestDriver
    from headrace.topology import serdes

__all__ = [
    "KafkaStreams",
    "State",
    "StreamsConfig",
    "StreamsError",
    "TopologyTestDriver",
    "serdes",
]

_HOMES = {
    "KafkaStreams": "headrace.streams.app",
    "State": "headrace.streams.app",
    "StreamsConfig": "headrace.streams.config.config",
    "StreamsError": "headrace.streams.errors",
    "TopologyTestDriver": "headrace.streams.testing.driver",
}


def __getattr__(name: str) -> Any:
    if name == "serdes":
        return import_module("headrace.topology.serdes")
    if name in _HOMES:
        with rare_collections():
            return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'headrace.streams' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
