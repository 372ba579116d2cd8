"""Each step whose rows have keys, given keys that are windowed themselves.

The same steps are given the same records twice: once by windowed keys, and once by strings that say
the window. Both come to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import Materialized, Stores, StreamsBuilder, Suppressed, serdes
from headrace.topology.serdes import Serde
from headrace.topology.windows import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    Window,
    Windowed,
)

MS = timedelta(milliseconds=1)
WITHIN = JoinWindows(time_difference=9 * MS, grace=5 * MS)
WINDOWS: dict[str, Any] = {
    "time_windows": TimeWindows(size=10 * MS, advance=5 * MS, grace=30 * MS),
    "sessions": SessionWindows(inactivity_gap=6 * MS, grace=30 * MS),
}
PAST = Materialized("rows", history=timedelta(hours=1))
Step = Callable[[Any, Any, Serde[Any]], Any]


def add(_: Any, value: int, total: int) -> int:
    return (total * 3 + value) % 97


def merge(_: Any, one: int, other: int) -> int:
    return (one + other) % 97


def pair(one: Any, other: Any) -> list[Any]:
    return [one, other]


def processed(one: Any, _: Any, key: Serde[Any]) -> Any:
    serdes_of: dict[str, Any] = {"key": key, "value": serdes.json}
    stores: list[Any] = [
        Stores.key_value("plain", **serdes_of),
        Stores.window("window", size=10 * MS, retention=timedelta(hours=1), **serdes_of),
        Stores.session("session", retention=timedelta(hours=1), **serdes_of),
        Stores.versioned("versions", history=timedelta(hours=1), **serdes_of),
    ]

    def process(record: Any, context: Any) -> None:
        key, time = record.key, record.timestamp
        counts, rows = context.store("plain"), context.store("window")
        counts.put(key, (counts.get(key) or 0) + 1)
        rows.put(key, record.value, time)
        sessions, past = context.store("session"), context.store("versions")
        sessions.put(Windowed(key, Window(time, time + 3)), counts.get(key))
        past.put(key, record.value, time)
        before = past.get(key, as_of=time - 5)
        found = [len(list(rows.fetch(key, 0, time))), len(list(sessions.fetch(key)))]
        context.forward(record.with_value([counts.get(key), before and before.value, *found]))

    return one.process_values(process, stores=stores)


def grouped(one: Any, key: Serde[Any]) -> Any:
    return one.group_by_key(key=key)


STEPS: dict[str, Step] = {
    "to_table": lambda one, _, key: one.to_table(store="rows", key=key).to_stream(),
    "versioned": lambda one, _, key: one.to_table(store=PAST, key=key).to_stream(),
    "count": lambda one, _, key: grouped(one, key).count(store="rows").to_stream(),
    "reduce": lambda one, _, key: (
        grouped(one, key).reduce(lambda a, b: (a * 3 + b) % 97).to_stream()
    ),
    "aggregate": lambda one, _, key: grouped(one, key).aggregate(int, add).to_stream(),
    "cogroup": lambda one, two, key: (
        grouped(one, key).cogroup(add).cogroup(grouped(two, key), merge).aggregate(int).to_stream()
    ),
    "cogroup_in_windows": lambda one, two, key: (
        grouped(one, key)
        .cogroup(add)
        .cogroup(grouped(two, key), merge)
        .windowed_by(TimeWindows(size=20 * MS))
        .aggregate(int)
        .to_stream()
    ),
    "cogroup_in_sessions": lambda one, two, key: (
        grouped(one, key)
        .cogroup(add)
        .cogroup(grouped(two, key), merge)
        .windowed_by(SessionWindows(inactivity_gap=4 * MS))
        .aggregate(int, merge)
        .to_stream()
    ),
    "time_windows": lambda one, _, key: (
        grouped(one, key).windowed_by(TimeWindows(size=20 * MS)).aggregate(int, add).to_stream()
    ),
    "closed_windows": lambda one, _, key: (
        grouped(one, key)
        .windowed_by(TimeWindows(size=5 * MS), emit="on_window_close")
        .aggregate(int, add)
        .to_stream()
    ),
    "sliding_windows": lambda one, _, key: (
        grouped(one, key)
        .windowed_by(SlidingWindows(time_difference=7 * MS, grace=5 * MS))
        .aggregate(int, add)
        .to_stream()
    ),
    "sessions": lambda one, _, key: (
        grouped(one, key)
        .windowed_by(SessionWindows(inactivity_gap=4 * MS))
        .aggregate(int, add, merge)
        .to_stream()
    ),
    "suppress": lambda one, _, key: (
        grouped(one, key)
        .count(store="rows")
        .suppress(Suppressed.until_time_limit(8 * MS), name="calm")
        .to_stream()
    ),
    "final_results": lambda one, _, key: (
        grouped(one, key)
        .windowed_by(TimeWindows(size=5 * MS))
        .count(store="rows")
        .suppress(Suppressed.until_window_closes(), name="calm")
        .to_stream()
    ),
    "deduplicate": lambda one, _, key: one.deduplicate(within=5 * MS, key_serde=key),
    "join": lambda one, two, key: one.join(two, pair, WITHIN, key=key, name="join"),
    "left_join": lambda one, two, key: one.left_join(two, pair, WITHIN, key=key, name="join"),
    "outer_join": lambda one, two, key: one.outer_join(two, pair, WITHIN, key=key, name="join"),
    "join_with_a_table": lambda one, two, key: one.left_join(
        two.to_table(store="rows", key=key), pair, name="join"
    ),
    "join_with_versions": lambda one, two, key: one.left_join(
        two.to_table(store=PAST, key=key), pair, grace=7 * MS, name="join", key=key
    ),
    "join_of_tables": lambda one, two, key: (
        one.to_table(store="one", key=key)
        .outer_join(two.to_table(store="two", key=key), pair, store="joined")
        .to_stream()
    ),
    "join_of_tables_by_a_foreign_key": lambda one, two, key: (
        one.to_table(store="one", key=key)
        .left_join(
            two.select_key(lambda k, v: f"{v}", name="by-value").to_table(
                store="two", key=serdes.string, name="others"
            ),
            pair,
            foreign_key=str,
            name="join",
            store="joined",
        )
        .to_stream()
    ),
    "table_group": lambda one, _, key: (
        one.to_table(store="one", key=key)
        .group_by(lambda k, v: (k, v + 1), key=key, name="again")
        .aggregate(int, add, lambda k, v, total: (total - v) % 97, store="rows")
        .to_stream()
    ),
    "table_mappings": lambda one, _, key: (
        one.to_table(store="one", key=key)
        .map_values(lambda v: v + 1, store="two", key=key)
        .filter(lambda k, v: v % 3 > 0, store="three", key=key)
        .to_stream()
    ),
    "transform_values": lambda one, _, key: (
        one.to_table(store="one", key=key).transform_values(Doubled, store="rows").to_stream()
    ),
    "processor": processed,
}


NAMING = (STEPS["table_group"], STEPS["processor"])


class Doubled:
    def transform(self, _: Any, value: int | None) -> int | None:
        return None if value is None else value * 2


def text(key: Any) -> Any:
    """A key as a string that says all its windows."""
    if not isinstance(key, Windowed):
        return key
    return f"{text(key.key)}/{key.window.start_ms:03}-{key.window.end_ms:03}"


def records() -> Iterator[tuple[str, int, int]]:
    for number in range(36):
        key = "abc"[number * number % 3]
        late = number * 7 % 5 if number % 4 == 3 else 0
        yield key, number % 7 + 1, 100 + number * 2 - late


def run(
    step: Step, windows: Any, *, by_text: bool, caching: bool = False, is_named: bool = True
) -> dict[str | None, Any]:
    builder = StreamsBuilder()
    inner: Any = serdes.string if is_named else None
    sides = []
    for number in range(2):
        source = builder.stream(f"in-{number}", key=inner, value=serdes.json)
        folded = source.group_by_key().windowed_by(windows)
        options: dict[str, Any] = {"store": Materialized(f"first-{number}", cached=False)}
        if isinstance(windows, SessionWindows):
            table = folded.aggregate(int, add, merge, **options)
        else:
            table = folded.aggregate(int, add, **options)
        stream = table.to_stream()
        if by_text:
            stream = stream.map(lambda k, v: (text(k), v), name=f"as-text-{number}")
            stream = stream.repartition(key=inner, name=f"text-{number}")
        stream = stream.filter(lambda k, v: v is not None, name=f"there-{number}")
        sides.append(stream)
    key = (
        inner
        if inner is None
        else (
            inner
            if by_text
            else serdes.session_windowed(inner)
            if isinstance(windows, SessionWindows)
            else serdes.time_windowed(inner, size=10 * MS)
        )
    )
    step(*sides, key).map(lambda k, v: (text(k), v), name="shown").to("out", key=serdes.string)
    settings: dict[str, Any] = {"default.key.serde": "string"}
    if not caching:
        settings["statestore.cache.max.bytes"] = 0
    commit: Any = "manual" if caching else "each_record"
    with TopologyTestDriver(builder.build(), settings, partitions=1, commit=commit) as driver:
        for number, (k, value, time) in enumerate(records()):
            driver.input("in-0").send(k, value, timestamp=time)
            driver.input("in-1").send(k, value + number % 2, timestamp=time)
            if number == 20:
                driver.commit()
                driver.crash(keep=False)
        driver.run()
        driver.commit()
        found = driver.output("out", key=serdes.string).read_all()
    by_key: dict[str | None, Any] = {}
    for record in found:
        by_key.setdefault(record.key, []).append((record.value, record.timestamp))
    return {k: sent[-1:] for k, sent in by_key.items()} if caching else by_key


@pytest.mark.parametrize(
    "options",
    [{}, {"caching": True}, {"is_named": False}],
    ids=["uncached", "cached", "default serde"],
)
@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_windowed_keys_are_keys_like_any_others(
    step: Step, windows: Any, options: dict[str, Any]
) -> None:
    if options == {"is_named": False} and step in NAMING:
        pytest.skip("its keys are new, or its stores are the user's own, and need a serde")
    by_windows = run(step, windows, by_text=False, **options)
    assert by_windows
    assert by_windows == run(step, windows, by_text=True, **options)
