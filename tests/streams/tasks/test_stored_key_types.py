"""A row's key goes on as its bytes give it back, whichever step and whichever moment sends it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
)
from tests.support.topologies import EXACTLY_ONCE, NO_CACHE

MS = timedelta(milliseconds=1)


class Colour(StrEnum):
    RED = "red"


COLOURS = serdes.serde_from(
    name="colours",
    serialize=lambda colour: colour.encode(),
    deserialize=lambda data: Colour(data.decode()),
    immutable=True,
)

Keys = list[Any]
Build = Callable[[Any, Any, Any], Any]
"""Makes a table or stream of a stream, of another one, and of the serde of the keys."""


def _windowed(windows: Any, emit: Any) -> Build:
    def build(stream: Any, _: Any, key: Any) -> Any:
        windowed = stream.group_by_key(key=key).windowed_by(windows, emit=emit)
        return windowed.aggregate(*_folds(windows), store="s").to_stream()

    return build


def _folds(windows: Any) -> tuple[Any, ...]:
    fold = (list, lambda _, value, values: [*values, value])
    merge = (lambda _, one, other: one + other,)
    return (*fold, *(merge if isinstance(windows, SessionWindows) else ()))


def _cogrouped(stream: Any, _: Any, key: Any) -> Any:
    grouped = stream.group_by_key(key=key)
    return grouped.cogroup(lambda _, v, vs: [*vs, v]).aggregate(list, store="s").to_stream()


def _joined(stream: Any, other: Any, key: Any) -> Any:
    windows = JoinWindows(time_difference=MS)
    return stream.outer_join(other, lambda one, two: [one, two], windows, key=key)


TUMBLING = TimeWindows(size=10 * MS)
PLACES: dict[str, Build] = {
    "count": lambda s, _, key: s.group_by_key(key=key).count(store="s").to_stream(),
    "aggregate": lambda s, _, key: (
        s.group_by_key(key=key).aggregate(*_folds(None), store="s").to_stream()
    ),
    "table": lambda s, _, key: s.to_table(store="s", key=key).to_stream(),
    "cogroup": _cogrouped,
    "tumbling": _windowed(TUMBLING, "on_window_update"),
    "tumbling on close": _windowed(TUMBLING, "on_window_close"),
    "sliding": _windowed(SlidingWindows(time_difference=MS), "on_window_update"),
    "sessions": _windowed(SessionWindows(inactivity_gap=MS), "on_window_update"),
    "sessions on close": _windowed(SessionWindows(inactivity_gap=MS), "on_window_close"),
    "join": _joined,
}


def _keys_seen(build: Build, read: Any, key: Any, keys: Keys, settings: Any) -> set[str]:
    seen: Keys = []
    builder = StreamsBuilder()
    streams = [builder.stream(topic, key=read, value=serdes.json) for topic in ("in", "other")]
    build(*streams, key).for_each(lambda k, _: seen.append(k[0] if isinstance(k, tuple) else k))
    topology: Topology = builder.build()
    with TopologyTestDriver(topology, settings, commit="manual", partitions=1) as driver:
        for number, one in enumerate([*keys, *keys, *keys]):
            driver.input("in").send(one, number, timestamp=number * 100)
            driver.commit()
        driver.input("other").send(keys[0], 0, timestamp=10_000)
        driver.commit()
    return {repr(one) for one in seen}


@pytest.mark.parametrize("settings", [NO_CACHE, EXACTLY_ONCE], ids=["no-cache", "cache"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("read", "key", "keys", "expected"),
    [
        (serdes.json, serdes.double, [1, 1.0], {"1.0"}),
        (COLOURS, serdes.string, [Colour.RED], {"'red'"}),
    ],
    ids=["double", "string"],
)
def test_a_key_goes_on_as_its_bytes_give_it_back(
    place: str, read: Any, key: Any, keys: Keys, expected: set[str], settings: Any
) -> None:
    assert _keys_seen(PLACES[place], read, key, keys, settings) == expected
