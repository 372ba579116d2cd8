"""Rows that are found, and expire, by time: as a dictionary that is searched from end to end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.state.buffer import ABSENT, Coding
from headrace.state.codec import TIMESTAMP, decode_timestamped
from headrace.state.layout import Layout, session_end
from headrace.state.memory import MemoryTaskState
from headrace.state.segments import SegmentedLayout, layout_of
from headrace.state.spec import StoreSpec
from headrace.state.timed import TimedBuffer
from tests.support.examples import examples

SPEC = StoreSpec("w", kind="memory", layout="session")
SEGMENT_MS = 4
LAYOUTS = {
    "indexed": SPEC.rows,
    "segments": layout_of("session", SEGMENT_MS),
    "one segment": layout_of("session", 2**63),
}
BOTH = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
TIMES = st.integers(0, 12)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(b"ab"), TIMES, TIMES, st.integers(0, 3)),
        st.tuples(st.just("delete"), st.sampled_from(b"ab"), TIMES, TIMES),
        st.tuples(st.just("forget"), st.sampled_from(b"ab"), TIMES, TIMES),
        st.tuples(st.just("scan")),
        st.tuples(st.just("expire"), TIMES),
        st.tuples(st.just("commit")),
        st.tuples(st.just("evict")),
    ),
    max_size=30,
)


def row_key(key: int, time: int, other: int) -> bytes:
    return bytes([key]) + TIMESTAMP.pack(time) + TIMESTAMP.pack(other)


def commit(buffer: TimedBuffer, state: MemoryTaskState) -> None:
    state.write({"w": buffer.local_rows(buffer.delta())}, {})
    buffer.committed()


@BOTH
@settings(max_examples=examples(400), deadline=None)
# The second row is new to the index, and the first one of the same time is not.
@example(
    actions=[("put", 97, 5, 5, 1), ("scan",), ("put", 98, 5, 5, 1), ("forget", 98, 5, 5)],
    start=0,
    end=12,
    looks=2,
)
# A row of a key whose dirty rows were read is dropped.
@example(
    actions=[("put", 97, 5, 5, 1), ("put", 98, 5, 5, 1), ("forget", 98, 5, 5), ("scan",)],
    start=0,
    end=12,
    looks=2,
)
@given(actions=ACTIONS, start=TIMES, end=TIMES, looks=st.sampled_from([1, 4, 30]))
def test_rows_are_found_by_time_until_they_expire(
    layout: Layout, actions: list[tuple[Any, ...]], start: int, end: int, looks: int
) -> None:
    state = MemoryTaskState([SPEC])
    buffer = opened(state, layout)
    buffer.detect_empty_store()
    model: dict[bytes, tuple[int, int]] = {}
    horizon = 0
    for number, action in enumerate(actions, 1):
        if action[0] == "commit":
            commit(buffer, state)
        elif action[0] == "expire":
            horizon = max(horizon, action[1])
            buffer.expire(action[1])
            model = {key: row for key, row in model.items() if row[0] >= horizon}
        elif action[0] == "evict":
            buffer.shrink_cache(0)
        elif action[0] == "scan":
            list(buffer.scan())
        elif action[0] == "forget":
            key = row_key(*action[1:])
            if key in buffer.dirty and layout.view(state.store("w")).get(key) is None:
                buffer.drop_write(key)
                model.pop(key, None)
        elif action[2] >= horizon:
            key = row_key(*action[1:4])
            buffer.put(key, action[4] if action[0] == "put" else None, 0)
            model.pop(key, None)
            if action[0] == "put":
                model[key] = (action[2], action[4])
        if action[0] == "commit":
            stored = [key for key, _ in layout.view(state.store("w")).scan()]
            assert stored == sorted(stored)
            assert [key for key in stored if session_end(key) >= horizon] == sorted(model)
            assert all(session_end(key) >= kept_from(layout, horizon) for key in stored)
            times = [(session_end(key), key) for key in stored]
            assert list(opened(state, layout).by_time(0, 2**63)) == sorted(times)
            latest = layout.view(state.store("w")).latest()
            assert latest == max((time for time, _ in times), default=None)
        written = [time for key in buffer.dirty if (time := session_end(key)) >= horizon]
        assert buffer.oldest_written() == min(written, default=None)
        if number % looks and number < len(actions):
            continue  # what is looked for less often has more rows that are new
        found = sorted((time, key) for key, (time, _) in model.items())
        assert list(buffer.by_time(start, end)) == [f for f in found if start <= f[0] < end]
        assert buffer.earliest() == min((time for time, _ in found), default=None)
        later = [time for time, _ in found if time >= start]
        assert buffer.earliest(start) == min(later, default=None)
        assert buffer.last_time(start) == max(later, default=None)
        assert [(k, v) for k, v, _ in buffer.scan()] == sorted(
            (key, value) for key, (_, value) in model.items()
        )
        assert [buffer.get(key)[0] for key in model] == [value for _, value in model.values()]
        of_keys = [
            (row_key, value)
            for key in sorted({row_key[:1] for row_key in model})
            for row_key, (_, value) in buffer.rows_of(key, bytes(16), b"\xff" * 16)
            if session_end(row_key) >= horizon
        ]
        assert of_keys == [(row_key, value) for row_key, (_, value) in sorted(model.items())]
        low, high = (TIMESTAMP.pack(time) for time in (start, end))
        for key in (b"a", b"b"):
            scanned = [(k, v) for k, v, _ in buffer.scan_key(key, low, high)]
            assert scanned == [
                (k, value)
                for k, (time, value) in sorted(model.items())
                if k[:1] == key and start <= time < end
            ]
            backward = buffer.scan_key(key, low, high, reverse=True)
            assert [(k, v) for k, v, _ in backward] == scanned[::-1]


def kept_from(layout: Layout, horizon: int) -> int:
    """Rows before this time are not on disk."""
    segment_ms = layout.segment_ms if isinstance(layout, SegmentedLayout) else 1
    return horizon - horizon % segment_ms


def opened(state: MemoryTaskState, layout: Layout = SPEC.rows) -> TimedBuffer:
    coding = Coding(encode=lambda v: bytes([v]), decode=ord)
    return TimedBuffer("w", state.store("w"), coding, layout=layout)


@BOTH
def test_a_row_that_has_expired_is_not_read_though_it_is_on_disk(layout: Layout) -> None:
    state = MemoryTaskState([SPEC])
    buffer = opened(state, layout)
    key = row_key(97, 5, 5)
    buffer.put(key, 1, 0)
    commit(buffer, state)
    assert buffer.get(key) == (1, 0)
    buffer.expire(5)
    assert buffer.get(key) == (1, 0)
    buffer.expire(6)
    assert buffer.get(key) == ABSENT


@BOTH
def test_a_row_that_expires_before_its_first_commit_is_not_left_on_disk(layout: Layout) -> None:
    state = MemoryTaskState([SPEC])
    buffer = opened(state, layout)
    for time in (1, 10):
        buffer.put(row_key(97, time, time), 1, 0)
    buffer.expire(9)
    commit(buffer, state)
    left = [key for key, _ in layout.view(state.store("w")).scan()]
    assert left == [row_key(97, time, time) for time in (1, 10) if time >= kept_from(layout, 9)]


def test_many_expired_rows_go_in_several_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.state.timed.EXPIRED_PER_COMMIT", 5)
    state = MemoryTaskState([SPEC])
    buffer = opened(state)
    for time in range(20):
        buffer.put(row_key(97, time, time), 1, 0)
    commit(buffer, state)
    buffer.expire(18)
    left = []
    for _ in range(6):
        commit(buffer, state)
        left.append(len(list(SPEC.rows.view(state.store("w")).scan())))
    assert left[0] == 15
    assert left[-1] == 2


def test_an_expired_row_is_up_to_date_until_it_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restore the deletion takes many commits, and readers of the files see the rows."""
    monkeypatch.setattr("headrace.state.timed.EXPIRED_PER_COMMIT", 5)
    state = MemoryTaskState([SPEC])
    before = opened(state)
    for time in range(20):
        before.put(row_key(97, time, time), 1, 0)
    commit(before, state)
    buffer = opened(state)  # after a restart
    for time, value in ((1, 2), (4, 2), (17, None), (19, 2), (21, 2)):
        buffer.put(row_key(97, time, time), value, 7)
    buffer.expire(50)
    commit(buffer, state)

    def left() -> dict[bytes, bytes]:
        return dict(SPEC.rows.view(state.store("w")).scan())

    found = {key: decode_timestamped(row) for key, row in left().items()}
    assert set(found) == {row_key(97, time, time) for time in (*range(5, 17), 18, 19, 21)}
    for time in (19, 21):
        assert found[row_key(97, time, time)] == (7, b"\x02")
    for _ in range(4):
        commit(buffer, state)
    assert left() == {}


def test_a_row_that_is_written_again_is_put_into_the_index_once() -> None:
    state = MemoryTaskState([SPEC])
    buffer = opened(state)
    key = row_key(97, 5, 5)
    written = []
    for value in (1, 2, None, 3):
        buffer.put(key, value, 0)
        written.append(len(buffer.local_rows(buffer.delta())))
        commit(buffer, state)
    buffer.shrink_cache(0)
    buffer.put(key, 4, 0)
    written.append(len(buffer.local_rows(buffer.delta())))
    assert written == [2, 1, 2, 2, 2]
