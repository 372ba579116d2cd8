"""The calls behind the golden files of sessions, suppressions and cogroups (see golden_cases)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from headrace.topology import (
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    serdes,
)
from tests.topology.describe.golden_cases import Build, one

_GAP = timedelta(milliseconds=5)
SESSIONS = SessionWindows(inactivity_gap=_GAP)
TIME = TimeWindows(size=_GAP)
SLIDING = SlidingWindows(time_difference=_GAP)
CLOSES = Suppressed.until_window_closes()
LIMIT = Suppressed.until_time_limit(_GAP)


def value(_key: Any, value: Any) -> Any:
    return value


def keep(_key: Any, _value: Any, total: Any) -> Any:
    return total


def first(one: Any, _other: Any) -> Any:
    return one


def yes(_key: Any, _value: Any) -> bool:
    return True


def out(table: Any) -> None:
    table.to_stream().to("out")


def by_key(b: StreamsBuilder, topic: str = "in") -> Any:
    return b.stream(topic).group_by_key()


def by_value(b: StreamsBuilder, topic: str = "in", name: str | None = None) -> Any:
    return b.stream(topic).group_by(value, name=name)


def sessions(b: StreamsBuilder) -> Any:
    return by_key(b).windowed_by(SESSIONS)


def both(b: StreamsBuilder) -> Any:
    return by_key(b, "a").cogroup(keep).cogroup(by_key(b, "b"), keep)


def same_group_twice(b: StreamsBuilder) -> None:
    group = by_value(b, "a", "g")
    out(group.cogroup(keep).cogroup(group, keep).aggregate(str))


def two_children(b: StreamsBuilder) -> None:
    table = both(b).aggregate(str)
    out(table)
    table.filter(yes).to_stream().to("out2")


def other_order(b: StreamsBuilder) -> None:
    second = b.stream("b")
    group = by_key(b, "a").cogroup(keep)
    out(group.cogroup(second.group_by_key(), keep).aggregate(str))
    b.stream("c").to("d")


def all_named(b: StreamsBuilder) -> None:
    group = by_value(b, "a", "x").cogroup(keep).cogroup(by_value(b, "b", "y"), keep)
    out(group.cogroup(by_key(b, "c"), keep).aggregate(str, name="n", store="sums"))


_BUILDS: dict[str, Build] = {
    "session-count": lambda b: out(sessions(b).count()),
    "session-count-repartitioned": lambda b: out(by_value(b).windowed_by(SESSIONS).count()),
    "session-count-named-materialized-repartitioned": lambda b: out(
        by_value(b, name="g").windowed_by(SESSIONS).count(name="counter", store="counts")
    ),
    "session-count-materialized-with": lambda b: out(
        sessions(b).count(key=serdes.string, value=serdes.long)
    ),
    "session-reduce": lambda b: out(sessions(b).reduce(first)),
    "session-reduce-materialized-as": lambda b: out(sessions(b).reduce(first, store="last")),
    "session-aggregate": lambda b: out(sessions(b).aggregate(str, keep, keep)),
    "session-aggregate-materialized-with": lambda b: out(
        sessions(b).aggregate(str, keep, keep, key=serdes.string, value=serdes.string)
    ),
    "suppress-session-count": lambda b: out(sessions(b).count().suppress(CLOSES)),
    "suppress-named": lambda b: out(sessions(b).count().suppress(CLOSES, name="final")),
    "suppress-table": lambda b: out(b.table("in").suppress(LIMIT)),
    "suppress-filtered-table": lambda b: out(
        b.table("in").filter(yes).suppress(LIMIT).map_values(str)
    ),
    "suppress-to-table": lambda b: out(b.stream("in").to_table().suppress(LIMIT)),
    "cogroup-one": lambda b: out(by_key(b).cogroup(keep).aggregate(str)),
    "cogroup-two": lambda b: out(both(b).aggregate(str)),
    "cogroup-two-materialized-as": lambda b: out(both(b).aggregate(str, store="sums")),
    "cogroup-two-named": lambda b: out(both(b).aggregate(str, name="n", store="sums")),
    "cogroup-two-named-alone": lambda b: out(both(b).aggregate(str, name="n")),
    "cogroup-repartitioned": lambda b: out(
        by_value(b, "a").cogroup(keep).cogroup(by_value(b, "b", "g"), keep).aggregate(str)
    ),
    "cogroup-repartitioned-all-named": all_named,
    "cogroup-repartitioned-materialized-as": lambda b: out(
        by_value(b, "a").cogroup(keep).cogroup(by_key(b, "b"), keep).aggregate(str, store="sums")
    ),
    "cogroup-same-group-twice": same_group_twice,
    "cogroup-materialized-with": lambda b: out(
        by_key(b).cogroup(keep).aggregate(str, key=serdes.string, value=serdes.string)
    ),
    "cogroup-time-windowed": lambda b: out(both(b).windowed_by(TIME).aggregate(str)),
    "cogroup-sliding-windowed-named": lambda b: out(
        both(b).windowed_by(SLIDING).aggregate(str, name="n", store="sums")
    ),
    "cogroup-session-windowed": lambda b: out(
        by_key(b, "a")
        .cogroup(keep)
        .cogroup(by_value(b, "b"), keep)
        .windowed_by(SESSIONS)
        .aggregate(str, keep)
    ),
    "cogroup-two-two-children": two_children,
    "cogroup-other-order": other_order,
}

for _name, _build in _BUILDS.items():
    one(_name, _build)
