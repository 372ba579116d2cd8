"""Runs records through one step of a topology."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.streams.testing.driver import OutputRecord, TopologyTestDriver
from headrace.topology import KStream, StreamsBuilder, serdes

Stream = KStream[Any, Any]
Pair = tuple[Any, Any]

NO_CACHE = {"statestore.cache.max.bytes": 0}


def driver_of(
    step: Callable[[Stream], Any],
    *,
    settings: Mapping[str, object] | None = None,
    **options: Any,
) -> TopologyTestDriver:
    """A driver of ``in -> step -> out``; keys are strings, values JSON.

    A step that returns a table has its changes written, one that returns None writes itself.
    """
    builder = StreamsBuilder()
    result = step(builder.stream("in", key=serdes.string))
    if result is not None:
        stream = result.to_stream() if hasattr(result, "to_stream") else result
        stream.to("out")
    chosen = {"default.key.serde": "string", **(settings or {})}
    return TopologyTestDriver(builder.build(), chosen, **options)


def results(step: Callable[[Stream], Any], records: Iterable[Pair], **options: Any) -> list[Pair]:
    """What comes out of a step for these keys and values."""
    driver = driver_of(step, **options)
    driver.input("in").send_many(records)
    return pairs(driver)


def pairs(driver: TopologyTestDriver, topic: str = "out") -> list[Pair]:
    """Keys and values of a topic."""
    return [(record.key, record.value) for record in driver.output(topic).read_all()]


def one(step: Callable[[Stream], Any], key: Any, value: Any, **sent: Any) -> OutputRecord[Any, Any]:
    """The only record that comes out of a step for one record."""
    driver = driver_of(step)
    driver.input("in").send(key, value, **sent)
    (record,) = driver.output("out").read_all()
    return record


HEADERS = [("h", b"1"), ("h", b"2"), ("empty", None)]
"""Headers as a record may have them: a name twice, and a null."""
