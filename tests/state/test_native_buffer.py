"""Rows in Rust against rows in Python: the same calls return the same."""

from __future__ import annotations

import gc
import json
import math
import struct
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.state.buffer import ABSENT, Buffer, Coding
from headrace.state.errors import ValueEncodingError
from headrace.state.native_buffer import NativeBuffer, PendingUpdates
from headrace.topology import serdes
from headrace.topology.serdes.normalise import integer_form
from tests.state.test_buffer import Rows

module = pytest.importorskip("headrace_native", reason="headrace-native is not installed")


class Number(int):
    """A subclass, which JSON encodes as its base and decodes as an int."""


KEYS = st.sampled_from([b"", b"a", b"aa", b"b", b"c\xff", b"\xff", b"k" * 22, b"k" * 23, b"k" * 80])
VALUES = st.one_of(
    st.none(),
    st.integers(),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, -0.0, True, False, Number(7), ""]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)
FORMS = ("objects", "bytes")


def encode(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def coding_of(form: Any) -> Coding:
    return Coding(encode=encode, decode=json.loads, stored_form=form, integers="decimal")


def in_rust(rows: Rows, coding: Coding) -> NativeBuffer:
    return NativeBuffer("s", rows, coding, module=module)


def typed(value: Any) -> Any:
    """Tell 1, 1.0 and True apart, and 0.0 and -0.0."""
    if isinstance(value, (list, tuple)):
        return [typed(one) for one in value]
    return type(value), math.copysign(1, value) if isinstance(value, float) else None, value


class BothBuffers(RuleBasedStateMachine):
    """Each call on a buffer in Python and on one in Rust, for both stored forms."""

    def __init__(self) -> None:
        super().__init__()
        self.stores = {form: (Rows(), Rows()) for form in FORMS}
        self.restart()

    def restart(self) -> None:
        self.pairs = {
            form: (Buffer("s", python, coding_of(form)), in_rust(rust, coding_of(form)))
            for form, (python, rust) in self.stores.items()
        }
        self.is_evicted = False
        for pair in self.pairs.values():
            for buffer in pair:
                buffer.detect_empty_store()

    def both(self, call: Callable[[Buffer], Any]) -> None:
        for python, rust in self.pairs.values():
            assert typed([call(rust)]) == typed([call(python)])

    @rule(key=KEYS, value=VALUES, timestamp=st.integers(-1, 9))
    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        self.both(lambda buffer: buffer.put(key, value, timestamp))

    @rule(key=KEYS, value=VALUES)
    def read_and_put(self, key: bytes, value: Any) -> None:
        self.both(lambda buffer: (buffer.get(key), buffer.put(key, value, 3), buffer.get(key)))

    @rule(key=KEYS, number=st.sampled_from([1, -3, 2**62, -(2**63)]), timestamp=st.integers(0, 9))
    def add(self, key: bytes, number: int, timestamp: int) -> None:
        python, rust = self.pairs["objects"]
        old, row_time = python.get(key)
        if old is None or old.__class__ is int:
            later = timestamp if old is None else max(timestamp, row_time)
            total = number if old is None else old + number
            python.put(key, total, later)
            assert typed(rust.rows.add(key, number, timestamp)) == typed((total, later))
        else:
            rust.get(key)

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        self.both(lambda buffer: (buffer.get(key), buffer.exists(key), buffer.is_written(key)))

    @rule(key=KEYS)
    def remove_as_a_join_does(self, key: bytes) -> None:
        def remove(buffer: Buffer) -> Any:
            if not buffer.exists(key):
                return None
            if is_new := buffer.is_new(key):
                buffer.drop_write(key)
            else:
                buffer.put(key, None, 5)
            return is_new, buffer.get(key)

        if not self.is_evicted:  # the other rows are evicted, so other rows are known to be new
            self.both(remove)

    @rule(
        start=st.none() | KEYS,
        end=st.none() | KEYS,
        reverse=st.booleans(),
    )
    def scan(self, start: bytes | None, end: bytes | None, reverse: bool) -> None:
        self.both(lambda buffer: list(buffer.scan(start, end, reverse=reverse)))

    @rule()
    def commit(self) -> None:
        for form, pair in self.pairs.items():
            deltas = [buffer.delta() for buffer in pair]
            assert deltas[1] == deltas[0]
            rows = [list(buffer.local_rows(deltas[0])) for buffer in pair]
            assert rows[1] == rows[0]
            for store, buffer in zip(self.stores[form], pair, strict=True):
                store.apply(rows[0])
                buffer.committed()

    @rule()
    def abort(self) -> None:
        self.both(lambda buffer: buffer.discard())

    @rule()
    def restart_the_task(self) -> None:
        self.restart()

    @rule(limit=st.integers(0, 900))
    def shrink(self, limit: int) -> None:
        self.is_evicted = True
        for pair in self.pairs.values():
            for buffer in pair:
                if buffer.cached_bytes() > limit:
                    buffer.shrink_cache(limit)
                    assert buffer.cached_bytes() <= limit + 200

    @invariant()
    def counts_and_uncommitted_bytes_are_equal(self) -> None:
        self.both(lambda buffer: (buffer.has_writes, buffer.uncommitted_bytes(2)))
        self.both(lambda buffer: buffer.approximate_count())

    @precondition(lambda self: not self.is_evicted)
    @invariant()
    def reads_of_the_store_and_cached_rows_are_equal(self) -> None:
        self.both(lambda buffer: (buffer.misses, buffer.hits))
        for python, rust in self.pairs.values():
            assert rust.rows.cached() == len(python.clean)


TestBothBuffers = BothBuffers.TestCase


def test_a_failing_value_in_the_middle_of_a_commit_names_its_key_and_changes_nothing() -> None:
    buffer = in_rust(Rows(), Coding(encode=encode, decode=json.loads))
    buffer.put(b"good", 1, 0)
    buffer.put(b"bad", float("nan"), 0)
    buffer.put(b"later", 2, 0)
    with pytest.raises(ValueEncodingError, match=r"store 's' .* key b'bad'"):
        buffer.delta()
    buffer.put(b"bad", 3, 0)
    assert buffer.delta() == [(b"good", b"1", 0), (b"bad", b"3", 0), (b"later", b"2", 0)]


def test_a_row_that_its_own_decoder_reads_is_read_once() -> None:
    """A user's serde runs while the rows are used, and may use them itself."""
    rows = Rows()
    rows.apply([(b"k", struct.pack(">q", 4) + b"1"), (b"other", struct.pack(">q", 5) + b"2")])
    seen = []

    def decode(data: bytes) -> Any:
        if data == b"1":
            seen.append(buffer.get(b"other"))
        return json.loads(data)

    buffer = in_rust(rows, Coding(encode=encode, decode=decode))
    assert buffer.get(b"k") == (1, 4)
    assert buffer.get(b"k") == (1, 4)
    assert seen == [(2, 5)]


def test_a_value_whose_finalizer_reads_the_same_rows_is_dropped() -> None:
    class Reading:
        def __del__(self) -> None:
            found.append(buffer.get(b"other"))

    found: list[Any] = []
    coding = Coding(encode=lambda _: b"x", decode=bytes, exact=frozenset({Reading, bytes}))
    buffer = in_rust(Rows(), coding)
    buffer.put(b"other", b"y", 1)
    for replace in (
        lambda: buffer.put(b"k", b"new", 1),
        lambda: (buffer.committed(), buffer.shrink_cache(0)),
        lambda: buffer.drop_write(b"k"),
    ):
        buffer.put(b"k", Reading(), 1)
        replace()
        gc.collect()
    assert [value for value, _ in found[:1]] == [b"y"]
    assert len(found) == 3


@pytest.mark.parametrize("keeps_old", [False, True])
def test_updates_are_the_first_old_values_and_the_last_headers_in_order(keeps_old: bool) -> None:
    buffer = in_rust(Rows(), coding_of("objects"))
    rows = buffer.rows
    if keeps_old:
        rows.keep_old_values()
    buffer.put(b"b", 1, 1)
    rows.get(b"a")
    rows.update(b"b", 2, 2, "B", None)
    rows.update_later(b"a", 3, 3, "A", ["first"])
    rows.update_later(b"b", 4, 1, "B", ["last"])
    rows.add_update(b"a", 5, 2, "A", None)
    assert len(PendingUpdates(buffer)) == 2
    updates = rows.take()
    assert len(PendingUpdates(buffer)) == 0
    rows.update(b"a", None, 9, "A", None)  # while the others are forwarded
    assert list(updates) == [
        (b"b", "B", 4, 1 if keeps_old else None, 2, ["last"]),
        (b"a", "A", None, None, 9, None),
    ]
    assert list(rows.take()) == [(b"a", "A", None, 8 if keeps_old else None, 9, None)]


@pytest.mark.parametrize("number", [0, 7, -7, 2**63 - 1, -(2**63), 1234567890])
def test_integers_are_encoded_as_their_serdes_do(number: int) -> None:
    for serde in (serdes.json, serdes.long, serdes.integer):
        if serde is serdes.integer and abs(number) >= 2**31:
            continue
        form = integer_form(serde)
        coding = Coding(encode=serde.serialize, decode=serde.deserialize, integers=form)
        buffer = in_rust(Rows(), coding)
        buffer.put(b"k", number, 0)
        assert buffer.delta() == [(b"k", serde.serialize(number), 0)]


def test_values_are_released_with_the_buffer() -> None:
    class Document:
        pass

    document = Document()
    released = weakref.ref(document)
    coding = Coding(encode=lambda _: b"x", decode=bytes, exact=frozenset({Document}))
    buffer = in_rust(Rows(), coding)
    buffer.put(b"k", document, 1)
    del document, buffer
    assert released() is None


def test_a_stored_row_that_is_too_short_is_an_error_not_a_panic() -> None:
    rows = Rows()
    rows.apply([(b"k", b"short")])
    with pytest.raises(AssertionError):
        in_rust(rows, coding_of("objects")).get(b"k")


def test_wrong_arguments_are_errors() -> None:
    rows = module.Rows(Rows().get, None, None)
    for call in (
        lambda: rows.get("text"),
        lambda: rows.write(b"k", 1, 2**63),
        lambda: rows.write(b"k", 1, None),
    ):
        with pytest.raises((TypeError, OverflowError)):
            call()
    assert rows.read(b"k") == ABSENT
