"""Rows in segments of time: many segments, and files in another format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import pytest
from rocksdict import Options, Rdict

from headrace.state import segments
from headrace.state.buffer import Coding
from headrace.state.codec import TIMESTAMP
from headrace.state.layout import TimedRows
from headrace.state.memory import MemoryTaskState
from headrace.state.rocks import RocksMemory, RocksTaskState, family_of
from headrace.state.secondary import RocksSecondary
from headrace.state.segments import layout_of
from headrace.state.spec import StoreSpec
from headrace.state.store import Position, TaskState
from headrace.state.timed import TimedBuffer

INDEXED = StoreSpec("w", layout="window", retention_ms=600_000)
SEGMENTED = StoreSpec("w", layout="window", retention_ms=600_000, segmented=True)
LONGER = StoreSpec("w", layout="window", retention_ms=1_200_000, segmented=True)
FORMATS = {"indexed": INDEXED, "segmented": SEGMENTED, "longer segments": LONGER}
CHANGES = [(old, new) for old in FORMATS for new in FORMATS if old != new]

# The second key is the first one, followed by the times of another row.
KEYS = (b"a", b"a" + TIMESTAMP.pack(70_000) + bytes(4), b"b")


@pytest.fixture(scope="module")
def memory() -> RocksMemory:
    return RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=8 << 20)


def row_key(key: bytes, time: int) -> bytes:
    return key + TIMESTAMP.pack(time) + bytes(4)


def rows_of(keys: Iterable[bytes], times: Iterable[int]) -> dict[bytes, bytes]:
    times = list(times)
    return {row_key(key, t): TIMESTAMP.pack(t) + b"%d" % t for key in keys for t in times}


def at(wall_ms: int) -> Position:
    return Position("id", wall_ms, 1, wall_ms)


def changes(rows: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes, int]]:
    return [(key, row[8:], TIMESTAMP.unpack_from(row)[0]) for key, row in rows.items()]


def fill(
    state: TaskState, spec: StoreSpec, rows: Mapping[bytes, bytes], position: Position
) -> None:
    state.write({"w": spec.rows.rows(changes(rows))}, {"w": position})


def shown(state: TaskState, spec: StoreSpec) -> dict[bytes, bytes]:
    return dict(spec.rows.view(state.store("w")).scan())


def view(state: TaskState, segment_ms: int) -> TimedRows:
    return cast(TimedRows, layout_of("window", segment_ms).view(state.store("w")))


# More than a hundred segments, with empty segments between, and several at the same places.
TIMES = [*range(0, 40_000, 100), *range(900_000, 930_000, 100), 2**40, 2**40 + 1]
SEGMENT_MS = 250


@pytest.fixture(params=["memory", "rocksdb"])
def many(
    request: pytest.FixtureRequest, tmp_path: Path, memory: RocksMemory
) -> Iterable[tuple[TaskState, dict[bytes, bytes]]]:
    state: TaskState = (
        MemoryTaskState([INDEXED])
        if request.param == "memory"
        else RocksTaskState(tmp_path, [INDEXED], memory=memory)
    )
    rows = rows_of(KEYS, TIMES)
    local = layout_of("window", SEGMENT_MS).rows(changes(rows))
    state.write({"w": local}, {})
    yield state, rows
    state.close()


def test_all_rows_of_many_segments_are_scanned_in_order(
    many: tuple[TaskState, dict[bytes, bytes]],
) -> None:
    state, rows = many
    expected = sorted(rows.items())
    found = view(state, SEGMENT_MS)
    assert len({key[-12:-4] for key in rows}) > 100
    assert list(found.scan()) == expected
    assert list(found.scan(reverse=True)) == expected[::-1]
    start, end = row_key(b"a", 20_000), row_key(b"b", 910_000)
    assert list(found.scan(start, end)) == [row for row in expected if start <= row[0] < end]
    assert [found.get(key) for key, _ in expected] == found.get_many([key for key, _ in expected])
    assert found.get(row_key(b"a", 450_000)) is None


@pytest.mark.parametrize(
    ("start", "end"), [(0, 2**62), (19_950, 20_301), (39_900, 900_001), (50_000, 800_000)]
)
def test_a_key_is_read_from_the_segments_of_its_times(
    many: tuple[TaskState, dict[bytes, bytes]], start: int, end: int
) -> None:
    state, rows = many
    found = view(state, SEGMENT_MS)
    for key in KEYS:
        expected = [
            (row_key(key, time), rows[row_key(key, time)]) for time in TIMES if start <= time < end
        ]
        low, high = TIMESTAMP.pack(start), TIMESTAMP.pack(end)
        assert list(found.scan_key(key, low, high)) == expected
        assert list(found.scan_key(key, low, high, reverse=True)) == expected[::-1]


@pytest.mark.parametrize("sorted_rows", [1, 7, 100_000])
def test_rows_of_many_segments_are_read_by_time(
    many: tuple[TaskState, dict[bytes, bytes]], sorted_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SORTED_ROWS", sorted_rows)
    state, rows = many
    found = view(state, SEGMENT_MS)
    expected = sorted((TIMESTAMP.unpack(key[-12:-4])[0], key) for key in rows)
    assert list(found.by_time(0, 2**63)) == expected
    time, key = expected[100]
    after = [entry for entry in expected[101:] if entry[0] < 920_000]
    assert list(found.by_time(time, 920_000, key + b"\0")) == after
    assert found.latest() == 2**40 + 1


def test_a_deletion_leaves_the_segment_of_the_horizon(
    many: tuple[TaskState, dict[bytes, bytes]],
) -> None:
    state, rows = many
    for before, horizon in ((0, 20_249), (20_000, 20_250), (20_250, 900_300)):
        expired = view(state, SEGMENT_MS).expired(before, horizon, 1)
        assert expired.to_ms == horizon // SEGMENT_MS * SEGMENT_MS
        state.write({"w": expired.deletions}, {})
        left = [
            row for row in sorted(rows.items()) if row[0][-12:-4] >= TIMESTAMP.pack(expired.to_ms)
        ]
        assert list(view(state, SEGMENT_MS).scan()) == left
    assert view(state, SEGMENT_MS).expired(900_250, 900_499, 1).deletions == []


def test_the_latest_time_of_a_large_segment_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    state = MemoryTaskState([INDEXED])
    local = layout_of("window", 1_000).rows(changes(rows_of(KEYS, (5, 1_200))))
    state.write({"w": local}, {})
    for read_rows, latest in ((3, 1_200), (2, 1_999)):
        monkeypatch.setattr(segments, "_LATEST_READ_ROWS", read_rows)
        assert view(state, 1_000).latest() == latest


def test_the_latest_time_of_a_store_without_expiry_fits_into_a_row_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = MemoryTaskState([INDEXED])
    local = layout_of("window", segments.SINGLE_SEGMENT_MS).rows(changes(rows_of(KEYS, (5, 1_200))))
    state.write({"w": local}, {})
    monkeypatch.setattr(segments, "_LATEST_READ_ROWS", 2)
    latest = view(state, segments.SINGLE_SEGMENT_MS).latest()
    assert latest is not None
    assert TIMESTAMP.unpack(TIMESTAMP.pack(latest + 1)) > (1_200,)


# Files in another format.


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_rows_in_another_format_are_converted(
    old: str, new: str, tmp_path: Path, memory: RocksMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.state.rocks._CONVERTED_ROWS", 7)
    rows = rows_of(KEYS, range(0, 2_000_000, 40_000))
    before, after = FORMATS[old], FORMATS[new]
    state = RocksTaskState(tmp_path, [before], memory=memory)
    fill(state, before, rows, at(7))
    state.close()
    for _ in range(2):
        state = RocksTaskState(tmp_path, [after], memory=memory)
        assert shown(state, after) == rows
        assert state.position("w") == at(7)
        state.close()
    assert rows_in_family(tmp_path, before.disk_name) == 0


def rows_in_family(path: Path, disk_name: str) -> int:
    db = Rdict(str(path))
    try:
        return sum(1 for _ in db.get_column_family(family_of(disk_name)).items())
    finally:
        db.close()


def test_an_older_program_finds_no_rows_and_its_later_rows_are_used(
    tmp_path: Path, memory: RocksMemory
) -> None:
    """A downgrade restores the rows from the changelog; an upgrade converts them."""
    first, later = rows_of(KEYS, (1, 100_000)), rows_of((b"a", b"c"), (1, 400_000))
    state = RocksTaskState(tmp_path, [SEGMENTED], memory=memory)
    fill(state, SEGMENTED, first, at(5))
    state.close()
    # An older program knows only the names without segments.
    db = Rdict(str(tmp_path))
    assert [key for key, _ in db.items() if key.startswith(b"position/")] == [b"position/w@300000"]
    db.close()
    write_as_older_program(tmp_path, later, memory)
    state = RocksTaskState(tmp_path, [SEGMENTED], memory=memory)
    assert shown(state, SEGMENTED) == later
    assert state.position("w") == at(9)
    state.close()


def write_as_older_program(path: Path, rows: Mapping[bytes, bytes], memory: RocksMemory) -> None:
    """Write rows in the first format, and leave the other rows alone, as release 0.1.0 does."""
    other = path.with_name("older")
    state = RocksTaskState(other, [INDEXED], memory=memory)
    fill(state, INDEXED, rows, at(9))
    state.close()
    source, target = Rdict(str(other)), Rdict(str(path))
    family = target.create_column_family(family_of("w"), Options(raw_mode=True))
    for key, row in source.get_column_family(family_of("w")).items():
        family[key] = row
    for name in (b"position/w", b"layout/w"):
        target[name] = source[name]
    del family
    source.close()
    target.close()


def test_rows_without_a_position_are_not_converted(tmp_path: Path, memory: RocksMemory) -> None:
    state = RocksTaskState(tmp_path, [INDEXED], memory=memory)
    state.write({"w": INDEXED.rows.rows(changes(rows_of(KEYS, (1, 2))))}, {})
    state.close()
    state = RocksTaskState(tmp_path, [SEGMENTED], memory=memory)
    assert state.position("w") is None
    assert shown(state, SEGMENTED) == {}
    state.close()


def test_a_conversion_that_was_interrupted_starts_again(
    tmp_path: Path, memory: RocksMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(KEYS, range(0, 2_000_000, 40_000))
    state = RocksTaskState(tmp_path, [INDEXED], memory=memory)
    fill(state, INDEXED, rows, at(7))
    state.close()
    with monkeypatch.context() as patch:
        patch.setattr(RocksTaskState, "_flush", _interrupted)
        with pytest.raises(InterruptedError):
            RocksTaskState(tmp_path, [SEGMENTED], memory=memory)
    reader = RocksSecondary(tmp_path, [SEGMENTED.disk_name], memory=memory)
    assert reader.position(SEGMENTED.disk_name) is None
    reader.close()
    state = RocksTaskState(tmp_path, [SEGMENTED], memory=memory)
    assert shown(state, SEGMENTED) == rows
    assert state.position("w") == at(7)
    state.close()


def _interrupted(_: RocksTaskState) -> None:
    raise InterruptedError


def test_readers_see_a_deleted_segment_until_they_follow(
    tmp_path: Path, memory: RocksMemory
) -> None:
    state = RocksTaskState(tmp_path, [SEGMENTED], memory=memory)
    fill(state, SEGMENTED, rows_of(KEYS, (1, 700_000)), at(1))
    reader = RocksSecondary(tmp_path, [SEGMENTED.disk_name], memory=memory)
    coding = Coding(encode=bytes, decode=bytes)
    buffer = TimedBuffer("w", state.store("w"), coding, layout=SEGMENTED.rows)
    buffer.expire(650_000)
    state.write({"w": buffer.local_rows([])}, {"w": at(2)})
    rows = reader.store(SEGMENTED.disk_name)
    assert len(dict(SEGMENTED.rows.view(rows).scan())) == 2 * len(KEYS)
    assert reader.follow()
    assert dict(SEGMENTED.rows.view(rows).scan()) == rows_of(KEYS, (700_000,))
    reader.close()
    state.close()
