"""Tools for tests: the test driver, a check of custom sinks, and a real broker."""

from __future__ import annotations

from headrace.streams.devbroker import DevBroker, DevBrokerError
from headrace.streams.testing.check_sink import SinkCheckError, check_sink
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.driver_store import StoreView
from headrace.streams.testing.driver_topics import OutputRecord, TestInput, TestOutput

__all__ = [
    "DevBroker",
    "DevBrokerError",
    "OutputRecord",
    "SinkCheckError",
    "StoreView",
    "TestInput",
    "TestOutput",
    "TopologyTestDriver",
    "check_sink",
]
