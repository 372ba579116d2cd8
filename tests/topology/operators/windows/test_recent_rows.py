"""What a side of a join has in memory: what is read is what a scan of its store would give."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.state import timed
from headrace.state.buffer import Buffer, Coding
from headrace.state.buffers import bound_caches
from headrace.state.codec import KEPT
from headrace.state.memory import MemoryTaskState
from headrace.state.segments import layout_of
from headrace.state.spec import StoreSpec
from headrace.state.store import Position
from headrace.state.timed import RecentRows, TimedBuffer
from headrace.topology import serdes
from headrace.topology.context.number import Number
from headrace.topology.operators.joins.stream_join import KeyEncoder, SideRows
from tests.support.examples import examples

KEYS = ("a", "b", "a" + "\0" * 11 + "\x05", "a" + "\0" * 12)
"""Some begin as others do, and with what a time and a number may look like."""

RETENTION_MS = 12
ENTRY_BYTES = 170
"""About what a row takes."""
Hold = Literal["objects", "bytes"]


@dataclass
class Side:
    """One side of a join, its task ended and begun anew at will."""

    hold: Hold
    segment_ms: int | None = None
    state: MemoryTaskState = field(init=False)
    committed_numbers: tuple[int, int] = (-1, -1)

    def __post_init__(self) -> None:
        self.spec = StoreSpec("s", kind="memory", layout="window")
        self.state = MemoryTaskState([self.spec])
        self.begin()

    def begin(self) -> None:
        """As after an abort or a restart: nothing is known but what is committed."""
        coding = Coding(
            encode=serdes.json.serialize, decode=serdes.json.deserialize, stored_form=self.hold
        )
        layout = layout_of("window", self.segment_ms)
        self.buffer = TimedBuffer("s", self.state.store("s"), coding, layout=layout)
        self.buffer.detect_empty_store()
        self.numbers = [Number(number) for number in self.committed_numbers]
        self.rows = SideRows(self.buffer, KeyEncoder(str.encode), RETENTION_MS, *self.numbers)

    def commit(self) -> None:
        rows = self.buffer.local_rows(self.buffer.delta())
        self.state.write({"s": rows}, {"s": Position("", 0, 0, 0)})
        self.buffer.committed()
        self.committed_numbers = (self.numbers[0].value, self.numbers[1].value)

    def scanned(self, key: str, start_ms: int, end_ms: int) -> list[tuple[int, Any]]:
        """The oracle: what is in the store."""
        data = key.encode()
        low, high = (data + KEPT.pack(time, 0) for time in (max(start_ms, 0), end_ms + 1))
        rows = TimedBuffer.scan(self.buffer, low, high)
        return [(time, value) for row, value, time in rows if len(row) == len(low)]


def test_the_oracle_scans_the_buffer() -> None:
    side = Side("objects")
    for key in KEYS:
        side.rows.add(key, key, 5)
    assert [side.scanned(key, 5, 5) for key in KEYS] == [[(5, key)] for key in KEYS]


def recent(side: Side) -> RecentRows:
    return side.buffer._recent or side.buffer._load_recent()


TIMES = st.one_of(st.integers(0, 30), st.sampled_from([8, 9]))
ADDS = st.tuples(st.just("add"), st.sampled_from(KEYS), TIMES)
READS = st.tuples(st.just("read"), st.sampled_from(KEYS), TIMES, st.integers(0, 12))
REMOVALS = st.tuples(st.just("remove"), st.sampled_from(KEYS), TIMES, st.integers(1, 2))
WRITES = st.tuples(st.just("write"), st.sampled_from(KEYS), TIMES, st.booleans())
TASKS = st.sampled_from([("commit",), ("abort",), ("restart",)])
STEPS = st.lists(st.one_of(ADDS, ADDS, ADDS, READS, READS, REMOVALS, WRITES, TASKS), max_size=40)


@pytest.mark.parametrize("hold", ["objects", "bytes"])
@pytest.mark.parametrize("segment_ms", [None, 4])
@given(entries=st.sampled_from([0, 1, 3, 8, 1000]), steps=STEPS, numbers=st.booleans())
# The rows of a key are evicted, and one of it comes again before it is read.
@example(
    entries=3,
    steps=[("add", "a", 1), ("add", "b", 1), ("add", "b", 2), ("add", "a", 2), ("read", "a", 0, 9)],
    numbers=False,
)
# After an abort the row in the store is read, and one that is late is behind what is known.
@example(
    entries=8,
    steps=[
        ("add", "a", 9), ("commit",), ("add", "a", 10), ("abort",), ("read", "a", 8, 2),
        ("add", "a", 5), ("read", "a", 4, 9),
    ],
    numbers=False,
)  # fmt: skip
@example(entries=8, steps=[*[("add", "a", 9)] * 3, ("remove", "a", 9, 2)], numbers=True)
@settings(max_examples=examples(100), deadline=None)
def test_reads_find_what_a_scan_finds(
    hold: Hold, segment_ms: int | None, entries: int, steps: list[Any], numbers: bool
) -> None:
    side = Side(hold, segment_ms)
    if numbers:  # they begin anew: what comes later stands before what came at the same time
        side.committed_numbers = (-1, 2**31 - 3)
        side.begin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timed, "_SWEEP_MIN", 2)
        for number, step in enumerate(steps):
            take(side, number, *step)
            bound_caches([side.buffer], entries * ENTRY_BYTES)
    for key in KEYS:
        assert side.rows.between(key, 0, 40) == side.scanned(key, 0, 40)


def test_a_row_that_was_read_alone_is_read_again_when_it_has_changed() -> None:
    side = Side("objects")
    side.rows.add("a", [1], 5)
    side.commit()
    row_key = b"a" + KEPT.pack(5, 0)
    assert side.buffer.get(row_key) == ([1], 5)
    side.buffer.put(row_key, [2], 6)
    side.commit()
    assert side.buffer.get(row_key) == ([2], 6)


def take(side: Side, number: int, what: str, *given: Any) -> None:
    if what == "add":
        key, time = given
        side.rows.add(key, [number], time)
    elif what == "read":
        key, time, reach = given
        assert side.rows.between(key, time, time + reach) == side.scanned(key, time, time + reach)
    elif what == "remove":
        key, time, count = given
        before = side.scanned(key, time, time)
        side.rows.remove_last(key.encode(), time, count)
        assert side.scanned(key, time, time) == before[:-count]
    elif what == "write":  # as a processor does that is connected with the store
        key, time, is_there = given
        row_key = key.encode() + KEPT.pack(time, 2**31)
        kept = time >= side.buffer.horizon
        side.buffer.put(row_key, [number] if is_there else None, time)
        assert side.buffer.get(row_key)[0] == ([number] if is_there and kept else None)
    elif what == "abort":
        side.begin()
    else:
        side.commit()
        if what == "restart":
            side.begin()


def test_no_cursor_is_made_for_what_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side("objects")
    side.rows.add("a", 0, 0)  # the number of the last record is found by a scan
    scans = 0
    rows_of = TimedBuffer._committed_rows_of

    def counted(self: TimedBuffer, key: bytes, start: bytes, end: bytes) -> Any:
        nonlocal scans
        scans += 1
        return rows_of(self, key, start, end)

    monkeypatch.setattr(TimedBuffer, "_committed_rows_of", counted)
    monkeypatch.setattr(Buffer, "scan", None)
    for number in range(1, 1_000):
        side.rows.add("a", number, number)
        assert len(side.rows.between("a", number - 5, number)) == min(number + 1, 6)
        assert side.rows.between("b", number - 5, number) == []
        if number % 10 == 0:
            side.commit()
    assert scans == 0
    side.commit()
    side.begin()
    for number in range(1_000, 1_100):
        assert len(side.rows.between("a", number - 5, number)) == 5
        side.rows.add("a", number, number)
    # What was there before the restart is read once.
    assert scans == 1


def test_memory_stays_within_its_bound() -> None:
    side = Side("objects")
    rows = SideRows(side.buffer, KeyEncoder(str.encode), 10_000, Number(), Number())
    for number in range(2_000):
        rows.add(f"k{number % 500}", number, number)
        assert len(rows.between(f"k{number % 7}", number - 5_000, number)) <= 300
        bound_caches([side.buffer], 50 * ENTRY_BYTES)
        held = recent(side)
        known = sum(1 + len(found) for found in held._keys.values())
        assert held.count == known + len(held._evicted)
        assert held.count <= 55
        assert side.buffer.cached_bytes() <= 50 * ENTRY_BYTES
        if number % 100 == 0:
            side.commit()
            assert not side.buffer.clean


def test_the_eviction_of_a_key_causes_no_reads_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side("objects")
    rows = SideRows(side.buffer, KeyEncoder(str.encode), 10_000, Number(), Number())
    for number in range(60):
        rows.add("evicted", number, number)
    rows.add("other", 0, 60)
    side.commit()
    bound_caches([side.buffer], side.buffer.cached_bytes() - 1)
    read: list[bytes] = []
    rows_of = TimedBuffer._committed_rows_of

    def recorded(self: TimedBuffer, key: bytes, start: bytes, end: bytes) -> Any:
        read.append(key)
        return rows_of(self, key, start, end)

    monkeypatch.setattr(TimedBuffer, "_committed_rows_of", recorded)
    assert len(rows.between("other", 0, 60)) == 1
    assert rows.between("new", 0, 60) == []
    rows.add("new", 1, 61)
    assert len(rows.between("new", 0, 61)) == 1
    assert read == []
    # Without its only row in memory, the key has rows on disk nevertheless.
    rows.add("evicted", 1, 61)
    rows.remove_last(b"evicted", 61, 1)
    side.buffer.shrink_cache(50 * ENTRY_BYTES)
    assert read == []
    assert len(rows.between("evicted", 0, 60)) == 60
    assert read == [b"evicted"]


@pytest.mark.parametrize("keys", [10, 1_000, 20_000])
@pytest.mark.parametrize("hold", ["objects", "bytes"])
def test_the_estimated_memory_of_rows_is_what_they_take(hold: Hold, keys: int) -> None:
    side = Side(hold)
    held = recent(side)
    tracemalloc.start()
    try:
        for number in range(20_000):
            value = number * 1_000 if hold == "objects" else b"%05d" % number * 20
            held.add(b"key-%d" % (number % keys), 10**12 + number, number, 10**12 + number, value)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.8 * taken < side.buffer.cached_bytes() < 1.25 * taken


def test_what_has_expired_is_not_kept_in_memory() -> None:
    side = Side("objects")
    for number in range(20_000):
        side.rows.add(f"k{number % 50}", number, number)
        if number % 1_000 == 0:
            side.commit()
    assert side.buffer.cached_bytes() < 4_000 * ENTRY_BYTES
