"""How a topology runs on Kafka: settings, workers, tasks, the commit, restore, the test driver.

Names are loaded when they are first used, so the test driver needs no Kafka client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streams.app import KafkaStreams, State
    from streams.config import StreamsConfig
    from streams.errors import StreamsError
    from streams.testing import TopologyTestDriver
    from topology import serdes

__all__ = [
    "KafkaStreams",
    "State",
    "StreamsConfig",
    "StreamsError",
    "TopologyTestDriver",
    "serdes",
]

_HOMES = {
    "KafkaStreams": "streams.app",
    "State": "streams.app",
    "StreamsConfig": "streams.config",
    "StreamsError": "streams.errors",
    "TopologyTestDriver": "streams.testing",
}


def __getattr__(name: str) -> Any:
    if name == "serdes":
        return import_module("topology.serdes")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'streams' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
