"""The uncommitted buffer over a committed store, against a plain dictionary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.state.buffer import ABSENT, Buffer, Coding
from headrace.state.buffers import bound_caches
from headrace.state.codec import encode_timestamped, timestamped_rows
from headrace.state.errors import ValueEncodingError


class Rows:
    """A committed store in a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.reads = 0

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return self.rows.get(key)

    def get_many(self, keys: Any) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(self.rows, reverse=reverse):
            if (start is None or key >= start) and (end is None or key < end):
                yield key, self.rows[key]

    def approximate_count(self) -> int:
        return len(self.rows)

    def approximate_bytes(self) -> int:
        return 0

    def apply(self, rows: list[tuple[bytes, bytes | None]]) -> None:
        for key, row in rows:
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row


def encode(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def make(rows: Rows, hold: Any = "objects") -> Buffer:
    return Buffer("s", rows, Coding(encode=encode, decode=json.loads, stored_form=hold))


KEYS = st.sampled_from([b"", b"a", b"aa", b"b", b"c\xff", b"\xff"])
VALUES = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.lists(st.integers()))


class BufferAgainstADictionary(RuleBasedStateMachine):
    """Puts, scans, commits, aborts and restarts in any order; both ways to hold values at once."""

    def __init__(self) -> None:
        super().__init__()
        self.stores = {hold: Rows() for hold in ("objects", "bytes")}
        self.restart()
        self.committed: dict[bytes, tuple[Any, int]] = {}
        self.model: dict[bytes, tuple[Any, int]] = {}

    def restart(self) -> None:
        self.buffers = {hold: make(rows, hold) for hold, rows in self.stores.items()}
        for buffer in self.buffers.values():
            buffer.detect_empty_store()

    @rule(key=KEYS, value=VALUES, timestamp=st.integers(0, 9))
    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        for buffer in self.buffers.values():
            buffer.put(key, value, timestamp)
        if value is None:
            self.model.pop(key, None)
        else:
            self.model[key] = (value, timestamp)

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        for buffer in self.buffers.values():
            value, timestamp = buffer.get(key)
            assert (value, timestamp) == self.model.get(key, (None, timestamp))

    @rule(key=KEYS)
    @precondition(lambda self: self.model)
    def changing_what_a_get_of_held_bytes_returned_changes_nothing(self, key: bytes) -> None:
        value, _ = self.buffers["bytes"].get(key)
        if isinstance(value, list):
            value.append(99)
            assert self.buffers["bytes"].get(key)[0] == self.model[key][0]

    @rule(limit=st.integers(0, 900))
    def bound_the_caches(self, limit: int) -> None:
        bound_caches(self.buffers.values(), limit)

    @rule(start=st.none() | KEYS, end=st.none() | KEYS, reverse=st.booleans())
    def scan(self, start: bytes | None, end: bytes | None, reverse: bool) -> None:
        expected = [
            (key, *self.model[key])
            for key in sorted(self.model, reverse=reverse)
            if (start is None or key >= start) and (end is None or key < end)
        ]
        for buffer in self.buffers.values():
            assert list(buffer.scan(start, end, reverse=reverse)) == expected

    @rule()
    def commit(self) -> None:
        for hold, buffer in self.buffers.items():
            self.stores[hold].apply(timestamped_rows(buffer.delta()))
            buffer.committed()
            assert not buffer.dirty
        self.committed = dict(self.model)

    @rule()
    def abort(self) -> None:
        for buffer in self.buffers.values():
            buffer.discard()
        self.model = dict(self.committed)

    @rule()
    def crash(self) -> None:
        self.restart()
        self.model = dict(self.committed)

    @invariant()
    def the_committed_store_knows_nothing_uncommitted(self) -> None:
        expected = {
            key: encode_timestamped(timestamp, encode(value))
            for key, (value, timestamp) in self.committed.items()
        }
        for rows in self.stores.values():
            assert rows.rows == expected

    @invariant()
    def the_cache_stays_within_its_bound(self) -> None:
        for buffer in self.buffers.values():
            assert len(buffer.clean) <= 3 + len(KEYS.elements)  # type: ignore[attr-defined]


TestBufferAgainstADictionary = BufferAgainstADictionary.TestCase


def test_a_key_that_changes_often_is_encoded_once() -> None:
    encoded = []

    def counting(value: Any) -> bytes:
        encoded.append(value)
        return encode(value)

    buffer = Buffer("s", Rows(), Coding(encode=counting, decode=json.loads))
    for number in range(100):
        buffer.put(b"k", number, number)
    assert buffer.delta() == [(b"k", b"99", 99)]
    assert encoded == [99]


def test_a_missing_row_is_asked_for_once() -> None:
    rows = Rows()
    buffer = make(rows)
    assert buffer.get(b"k") == ABSENT
    assert buffer.get(b"k") == ABSENT
    assert rows.reads == 1


def test_a_store_that_was_empty_at_the_start_is_not_read_until_a_row_is_evicted() -> None:
    rows = Rows()
    buffer = make(rows)
    buffer.detect_empty_store()
    for key in (b"a", b"b"):
        assert buffer.get(key) == ABSENT
        buffer.put(key, 1, 1)
    rows.apply(timestamped_rows(buffer.delta()))
    buffer.committed()
    assert buffer.get(b"a") == (1, 1)
    assert buffer.get(b"c") == ABSENT
    assert (rows.reads, buffer.misses) == (0, 0)
    buffer.shrink_cache(0)
    assert buffer.get(b"a") == (1, 1)
    assert (rows.reads, buffer.misses) == (1, 1)


def test_caches_of_committed_rows_are_bounded_together() -> None:
    small, large = make(Rows()), make(Rows())
    for number in range(5_000):
        large.put(b"%d" % number, "x" * 100, 0)
        if number < 50:
            small.put(b"%d" % number, "x" * 100, 0)
        if number % 500 == 0:
            for buffer in (small, large):
                buffer.committed()
            bound_caches((small, large), 100_000)
    assert 200 < len(large.clean) < 100_000 // 300
    assert set(large.clean) == {b"%d" % n for n in range(4_501 - len(large.clean), 4_501)}
    assert len(small.clean) == 50, "a small one is not what takes the room"


def test_each_of_several_large_caches_gives_way() -> None:
    buffers = [make(Rows()), make(Rows())]
    for buffer in buffers:
        for number in range(200):
            buffer.put(b"%d" % number, "x" * 100, 0)
        buffer.committed()
    bound_caches(buffers, 100_000)
    assert [100 < len(buffer.clean) < 160 for buffer in buffers] == [True, True]


@pytest.mark.parametrize("hold", ["objects", "bytes"])
def test_the_size_of_rows_that_are_only_read_counts(hold: Any) -> None:
    rows = Rows()
    rows.apply([(b"%d" % n, bytes(8) + encode("x" * 10_000)) for n in range(200)])
    buffer = make(rows, hold)
    for number in range(200):
        buffer.get(b"%d" % number)
        bound_caches([buffer], 500_000)
    assert 20 < len(buffer.clean) < 50


def test_the_size_of_rows_that_grow_counts_though_keys_stay_the_same() -> None:
    buffer = make(Rows())
    for size in (10, 10_000):
        for number in range(200):
            buffer.put(b"%d" % number, "x" * size, 0)
        buffer.committed()
        bound_caches([buffer], 500_000)
        assert len(buffer.clean) == 200 if size == 10 else 20 < len(buffer.clean) < 50


def test_documents_count_with_what_their_objects_take() -> None:
    """Five times their bytes for lists of numbers; a buffer of bytes has their bytes alone."""
    held = {hold: make(Rows(), hold) for hold in ("objects", "bytes")}
    for buffer in held.values():
        for number in range(200):
            buffer.put(b"%d" % number, [n + 0.5 for n in range(100)], 0)
        buffer.committed()
    one = len(encode([n + 0.5 for n in range(100)]))
    assert held["bytes"].cached_bytes() < 200 * (one + 250)
    assert held["objects"].cached_bytes() > 200 * 100 * (24 + 8)


def test_a_cache_without_room_keeps_nothing() -> None:
    rows = Rows()
    rows.apply([(b"k", bytes(8) + encode("x"))])
    buffer = make(rows)
    assert buffer.get(b"k") == ("x", 0)
    bound_caches([buffer], 0)
    assert not buffer.clean


def test_the_estimate_of_uncommitted_bytes_follows_values_that_grow() -> None:
    buffer = make(Rows())
    for number in range(64):
        buffer.put(b"%d" % number, "x", 0)
    small = buffer.uncommitted_bytes()
    for number in range(1_000):
        buffer.put(b"k%d" % number, "x" * 10_000, 0)
    assert small < 64 * 1_000
    assert buffer.uncommitted_bytes() > 5_000_000


def test_copies_of_uncommitted_rows_count_where_values_are_large() -> None:
    small, large = make(Rows()), make(Rows())
    assert small.uncommitted_bytes(3) == 0
    for number in range(64):
        small.put(b"%d" % number, 1, 0)
        large.put(b"%d" % number, "x" * 10_000, 0)
    assert small.uncommitted_bytes(3) < 1.2 * small.uncommitted_bytes()
    assert large.uncommitted_bytes(3) > 64 * 40_000


@given(st.lists(st.tuples(KEYS, st.integers(), st.integers(0, 9)), min_size=1))
def test_a_delta_has_each_key_once_in_the_order_of_first_writes(writes: Any) -> None:
    buffer = make(Rows())
    for key, value, timestamp in writes:
        buffer.put(key, value, timestamp)
    assert [key for key, _, _ in buffer.delta()] == list(dict.fromkeys(k for k, _, _ in writes))


def test_a_value_that_cannot_be_encoded_names_its_store_and_key() -> None:
    buffer = make(Rows())
    buffer.put(b"good", 1, 0)
    buffer.put(b"bad", float("nan"), 0)
    with pytest.raises(ValueEncodingError, match=r"store 's' .* key b'bad'"):
        buffer.delta()


def test_a_value_of_another_type_is_what_its_bytes_give_back_or_refused() -> None:
    for hold in ("objects", "bytes"):
        buffer = make(Rows(), hold)
        buffer.put(b"k", (1, [2]), 0)
        assert buffer.get(b"k") == ([1, [2]], 0)
        with pytest.raises(TypeError):
            buffer.put(b"k", object(), 1)


@given(st.lists(st.one_of(st.lists(st.binary(max_size=2), max_size=40), st.none()), max_size=6))
def test_scans_between_few_and_many_writes_see_each_key_once_in_order(steps: Any) -> None:
    rows, expected = Rows(), dict[bytes, int]()
    buffer = make(rows)
    for number, keys in enumerate(steps):
        if keys is None:
            rows.apply(timestamped_rows(buffer.delta()))
            buffer.committed()
            continue
        for key in keys:
            buffer.put(key, number, 0)
            expected[key] = number
        assert [row[:2] for row in buffer.scan()] == sorted(expected.items())
        middle = [(k, v) for k, v in sorted(expected.items(), reverse=True) if b"\x40" <= k < b"z"]
        assert [row[:2] for row in buffer.scan(b"\x40", b"z", reverse=True)] == middle


def test_a_scan_behind_many_new_keys_has_them_in_order() -> None:
    """So many that they are sorted with the others, not put in one by one."""
    buffer = make(Rows())
    buffer.put(b"key-50", 0, 0)
    assert [key for key, _, _ in buffer.scan()] == [b"key-50"]
    for number in range(99, -1, -1):
        buffer.put(b"key-%02d" % number, number, 0)
    assert [value for _, value, _ in buffer.scan()] == list(range(100))
    assert [value for _, value, _ in buffer.scan(b"key-48", b"key-52")] == [48, 49, 50, 51]


def test_an_abort_forgets_what_a_user_may_have_changed_in_place() -> None:
    rows = Rows()
    buffer = make(rows)
    buffer.put(b"k", [1], 0)
    rows.apply(timestamped_rows(buffer.delta()))
    buffer.committed()
    buffer.get(b"k")[0].append(2)
    buffer.discard()
    assert buffer.get(b"k") == ([1], 0)


def test_a_row_that_came_and_went_is_in_no_later_scan() -> None:
    buffer = make(Rows())
    for key in (b"a", b"b", b"c"):
        buffer.put(key, 1, 0)
    assert len(list(buffer.scan())) == 3
    buffer.drop_write(b"b")
    assert [key for key, _, _ in buffer.scan()] == [b"a", b"c"]
    buffer.put(b"d", 1, 0)
    assert [key for key, _, _ in buffer.scan()] == [b"a", b"c", b"d"]
    assert [key for key, _, _ in buffer.delta()] == [b"a", b"c", b"d"]


def test_rows_that_commits_change_without_reading_the_store_are_counted() -> None:
    rows = Rows()
    buffer = make(rows)

    def change(*keys: bytes) -> tuple[int, int]:
        for key in keys:
            buffer.put(key, (buffer.get(key)[0] or 0) + 1, 0)
        rows.apply(timestamped_rows(buffer.delta()))
        buffer.committed()
        return buffer.hits, buffer.misses

    assert change(b"a", b"b") == (0, 2)
    assert change(b"a", b"a", b"c") == (1, 3)
    for key in (b"x", b"y"):
        buffer.get(key)  # a look that changes nothing is taken off
    assert change(b"a", b"b", b"c") == (2, 5)
    assert change() == (2, 5)
    buffer.get(b"z")
    buffer.discard()
    assert change(b"a", b"b", b"c") == (2, 9)
