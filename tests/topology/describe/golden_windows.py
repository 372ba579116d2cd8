"""The calls behind the golden files of windows of time (see golden_cases)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from headrace.topology import SlidingWindows, StreamsBuilder, TimeWindows, UnlimitedWindows, serdes
from tests.topology.describe.golden_cases import Build, one

_FIVE = timedelta(milliseconds=5)
TUMBLING = TimeWindows(size=_FIVE)
SLIDING = SlidingWindows(time_difference=_FIVE)


def by_value(_key: Any, value: Any) -> Any:
    return value


def keep(_key: Any, _value: Any, total: Any) -> Any:
    return total


def first(one: Any, _other: Any) -> Any:
    return one


def out(table: Any, topic: str = "out") -> None:
    table.to_stream().to(topic)


def kept(b: StreamsBuilder, windows: Any = TUMBLING, **options: Any) -> Any:
    return b.stream("in").group_by_key().windowed_by(windows, **options)


def moved(b: StreamsBuilder, windows: Any = TUMBLING, *, name: str | None = None) -> Any:
    return b.stream("in").group_by(by_value, name=name).windowed_by(windows)


def two_folds(b: StreamsBuilder) -> None:
    windowed = moved(b)
    out(windowed.count(), "a")
    out(windowed.reduce(first), "b")


STRINGS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
LONGS: dict[str, Any] = {"key": serdes.string, "value": serdes.long}

_BUILDS: dict[str, Build] = {
    "window-count": lambda b: out(kept(b).count()),
    "window-count-named": lambda b: out(kept(b).count(name="counter")),
    "window-count-materialized-as": lambda b: out(kept(b).count(store="counts")),
    "window-count-materialized-with": lambda b: out(kept(b).count(**LONGS)),
    "window-count-repartitioned": lambda b: out(moved(b).count()),
    "window-count-all-named": lambda b: out(
        moved(b, name="g").count(name="counter", store="counts")
    ),
    "window-count-on-close": lambda b: out(kept(b, emit="on_window_close").count()),
    "window-reduce": lambda b: out(kept(b).reduce(first)),
    "window-reduce-materialized-with": lambda b: out(kept(b).reduce(first, **STRINGS)),
    "window-reduce-repartitioned": lambda b: out(
        moved(b).reduce(first, name="reducer", store="last")
    ),
    "window-aggregate": lambda b: out(kept(b).aggregate(str, keep)),
    "window-aggregate-materialized-with": lambda b: out(kept(b).aggregate(str, keep, **STRINGS)),
    "window-aggregate-repartitioned": lambda b: out(moved(b).aggregate(str, keep)),
    "window-unlimited-count": lambda b: out(kept(b, UnlimitedWindows()).count()),
    "window-two-folds-off-one-group": two_folds,
    "sliding-count": lambda b: out(kept(b, SLIDING).count()),
    "sliding-count-materialized-as": lambda b: out(kept(b, SLIDING).count(store="counts")),
    "sliding-count-materialized-with": lambda b: out(kept(b, SLIDING).count(**LONGS)),
    "sliding-count-repartitioned": lambda b: out(moved(b, SLIDING).count()),
    "sliding-reduce": lambda b: out(kept(b, SLIDING).reduce(first)),
    "sliding-reduce-materialized-with": lambda b: out(kept(b, SLIDING).reduce(first, **STRINGS)),
    "sliding-aggregate": lambda b: out(kept(b, SLIDING).aggregate(str, keep)),
    "sliding-aggregate-on-close": lambda b: out(
        kept(b, SLIDING, emit="on_window_close").aggregate(str, keep)
    ),
}

for _name, _build in _BUILDS.items():
    one(_name, _build)
