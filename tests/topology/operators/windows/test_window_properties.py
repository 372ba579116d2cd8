"""Windows against a slow model, with commits, aborts and crashes between any two records.

The model keeps all records of a partition and looks through all of them, for each window, each
time. Under exactly-once what a reader of committed records sees is what the model says, whatever
happened in between.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.state.codec import partition_for_key
from headrace.streams.testing.driver import CrashPoint, TopologyTestDriver
from headrace.topology import SlidingWindows, TimeWindows
from tests.support.operators import NO_CACHE
from tests.support.windows import Got, driver_of, got, joined, ms, send

pytestmark = pytest.mark.slow

EXACTLY_ONCE = {"processing.guarantee": "exactly_once_v2"}
KEYS = ["a", "b", "aa", "c"]


@dataclass(frozen=True)
class Shape:
    """Windows in milliseconds; without an advance they slide."""

    size: int
    advance: int | None
    grace: int

    def windows(self) -> Any:
        if self.advance is None:
            return SlidingWindows(time_difference=ms(self.size), grace=ms(self.grace))
        return TimeWindows(size=ms(self.size), advance=ms(self.advance), grace=ms(self.grace))

    def is_closed(self, start: int, time: int) -> bool:
        end = start + self.size
        return end < time - self.grace if self.advance is None else end <= time - self.grace

    def holds(self, start: int, time: int) -> bool:
        last = start + self.size if self.advance is None else start + self.size - 1
        return start <= time <= last

    def starts(self, times: Sequence[int]) -> set[int]:
        """The starts of a key's windows, from the times of all its records."""
        if self.advance is not None:
            grid = range(0, max(times) + 1, self.advance)
            return {s for s in grid for time in times if self.holds(s, time)}
        left = {max(time - self.size, 0) for time in times}
        behind = {time + 1 for time in times}
        return left | {s for s in behind if any(self.holds(s, time) for time in times)}


@dataclass
class Partition:
    """What one partition has seen: which records of which key each window may hold."""

    shape: Shape
    time: int = -1
    seen: list[tuple[str, str, int, int]] = field(default_factory=list)
    """Key, value, time, and the stream time when the record came."""
    updates: list[Got] = field(default_factory=list)
    emitted: list[Got] = field(default_factory=list)

    def take(self, key: str, value: str, time: int) -> None:
        before, self.time = self.time, max(self.time, time)
        rows = self.rows()
        is_closed = self.shape.is_closed
        newly = [
            g for g in rows if is_closed(g.start, self.time) and not is_closed(g.start, before)
        ]
        self.emitted += sorted(newly, key=lambda g: (g.end, g.key))
        self.seen.append((key, value, time, self.time))
        changed = [g for g in self.rows() if g.key == key and g not in rows]
        self.updates += sorted(changed, key=lambda g: g.start)

    def rows(self) -> list[Got]:
        """Every window that ever was, with all that it took in while it was open."""
        rows = []
        for key in {key for key, *_ in self.seen}:
            mine = [record for record in self.seen if record[0] == key]
            for start in self.shape.starts([time for _, _, time, _ in mine]):
                held = [
                    (value, time)
                    for _, value, time, now in mine
                    if self.shape.holds(start, time) and not self.shape.is_closed(start, now)
                ]
                if held:
                    text = "".join(value for value, _ in held)
                    latest = max(time for _, time in held)
                    rows.append(Got(key, start, start + self.shape.size, text, latest))
        return rows


Event = tuple[str, int] | Literal["commit", "abort", "restart"] | tuple[Literal["crash"], Any, bool]


def events(times: st.SearchStrategy[int]) -> st.SearchStrategy[list[Any]]:
    record = st.tuples(st.sampled_from(KEYS), times)
    crash = st.tuples(
        st.just("crash"), st.sampled_from([None, *get_args(CrashPoint)]), st.booleans()
    )
    what = st.sampled_from(["commit", "abort", "restart"])
    return st.lists(st.one_of(record, record, record, record, what, crash), max_size=24)


def drifting(script: Sequence[Any], step: int) -> list[Any]:
    """The same script with each record so much later, so that windows are closed on the way."""
    count = 0
    moved = []
    for event in script:
        if isinstance(event, tuple) and event[0] in KEYS:
            moved.append((event[0], event[1] + count * step))
            count += 1
        else:
            moved.append(event)
    return moved


def values() -> Iterator[str]:
    return (chr(ord("A") + i) for i in range(100))


def model_of(shape: Shape, script: Sequence[Any], partitions: int) -> dict[int, Partition]:
    letters = values()
    model: dict[int, Partition] = defaultdict(lambda: Partition(shape))
    for event in script:
        if isinstance(event, tuple) and event[0] != "crash":
            key, time = event
            partition = partition_for_key(key.encode(), partitions)
            model[partition].take(key, next(letters), time)
    return model


def play(driver: TopologyTestDriver, script: Sequence[Any]) -> None:
    letters = values()
    for event in script:
        if event == "commit":
            driver.commit()
        elif event == "abort":
            driver.abort()
        elif event == "restart":
            driver.restart()
        elif event[0] == "crash":
            driver.crash(at=event[1], keep=event[2])
        else:
            send(driver, [(event[0], next(letters), event[1])])
    driver.commit()


def parts(found: Sequence[Got], partitions: int) -> dict[int, list[Got]]:
    split: dict[int, list[Got]] = defaultdict(list)
    for one in found:
        split[partition_for_key(one.key.encode(), partitions)].append(one)
    return split


def last(found: Sequence[Got]) -> dict[tuple[str, int, int], Got]:
    return {one[:3]: one for one in found}


def live(shape: Shape, partition: Partition) -> set[Got]:
    """The rows that are kept: in time windows those that are not closed."""
    return {g for g in partition.rows() if not shape.is_closed(g.start, partition.time)}


ALIGNED = st.builds(
    lambda size, advance, grace: Shape(size, min(advance, size), grace),
    st.integers(1, 12), st.integers(1, 12), st.sampled_from([0, 0, 3, 10, 100]),
)  # fmt: skip
SLIDING = st.builds(lambda size: Shape(size, None, 40), st.integers(0, 12))
"""Records lie no further apart than the grace period, so that none is late for any window."""
NEAR = events(st.integers(0, 40))
FAR_APART = st.one_of(st.integers(0, 40), st.integers(0, 40), st.integers(0, 400))
DRIFT = st.sampled_from([0, 7, 30])
PARTITIONS = st.sampled_from([1, 3])


@given(ALIGNED, events(FAR_APART), PARTITIONS, st.booleans())
@settings(deadline=None, max_examples=80)
def test_time_windows_are_folded_as_the_model_says(
    shape: Shape, script: list[Any], partitions: int, cached: bool
) -> None:
    """Traps 1, 5, 6, 11 and 29."""
    options = EXACTLY_ONCE if cached else {**EXACTLY_ONCE, **NO_CACHE}
    model = model_of(shape, script, partitions)
    step = joined(shape.windows())
    with driver_of(step, commit="manual", partitions=partitions, settings=options) as driver:
        play(driver, script)
        found = parts(got(driver), partitions)
        for number, partition in model.items():
            if cached:
                assert last(found[number]) == last(partition.updates)
            else:
                assert found[number] == partition.updates
        rows = {(key.key, *key.window, value, t) for key, value, t in driver.store("s").rows()}
        assert rows == set().union(*(live(shape, partition) for partition in model.values()))


@given(SLIDING, NEAR, DRIFT, PARTITIONS, st.booleans())
@settings(deadline=None, max_examples=80)
def test_sliding_windows_are_folded_as_the_model_says(
    shape: Shape, script: list[Any], drift: int, partitions: int, cached: bool
) -> None:
    """Traps 1, 6 and 29."""
    script = drifting(script, drift)
    options = EXACTLY_ONCE if cached else {**EXACTLY_ONCE, **NO_CACHE}
    model = model_of(shape, script, partitions)
    step = joined(shape.windows())
    with driver_of(step, commit="manual", partitions=partitions, settings=options) as driver:
        play(driver, script)
        found = parts(got(driver), partitions)
        for number, partition in model.items():
            assert last(found[number]) == last(partition.rows())
            if not cached:
                assert sorted(found[number]) == sorted(partition.updates)


def emitted_as_the_model_says(
    shape: Shape, script: list[Any], partitions: int, **options: Any
) -> None:
    script = [*script, ("a", 100_000), ("b", 200_000)]
    model = model_of(shape, script, partitions)
    step = joined(shape.windows(), emit="on_window_close")
    with driver_of(
        step, commit="manual", partitions=partitions, settings=EXACTLY_ONCE, **options
    ) as driver:
        play(driver, script)
        found = parts(got(driver), partitions)
        for number, partition in model.items():
            assert found[number] == partition.emitted


@given(ALIGNED, events(FAR_APART), PARTITIONS)
@settings(deadline=None, max_examples=80)
def test_every_closed_time_window_is_emitted_once_in_order(
    shape: Shape, script: list[Any], partitions: int
) -> None:
    """Traps 13 and 36."""
    emitted_as_the_model_says(shape, script, partitions)


@given(SLIDING, NEAR, DRIFT, PARTITIONS)
@settings(deadline=None, max_examples=80)
def test_every_closed_sliding_window_is_emitted_once_in_order(
    shape: Shape, script: list[Any], drift: int, partitions: int
) -> None:
    """Traps 13 and 36."""
    emitted_as_the_model_says(shape, drifting(script, drift), partitions)


@given(st.one_of(ALIGNED, SLIDING), NEAR, DRIFT)
@settings(deadline=None, max_examples=12)
def test_rows_on_disk_are_emitted_once_in_order(
    shape: Shape, script: list[Any], drift: int
) -> None:
    """Traps 13 and 36, in RocksDB."""
    with tempfile.TemporaryDirectory() as directory:
        emitted_as_the_model_says(shape, drifting(script, drift), 1, state_dir=directory)
