"""Rows with times in Rust and in Python: the same calls have the same results."""

from __future__ import annotations

import ast
import importlib
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.state.buffer import Coding
from headrace.state.buffers import make_buffer
from headrace.state.codec import KEPT, murmur2
from headrace.state.errors import ValueEncodingError
from headrace.state.memory import MemoryTaskState
from headrace.state.spec import StoreSpec
from headrace.state.timed import TimedBuffer
from tests.support.examples import examples
from tests.support.rows import LANGUAGES, is_rust_installed, rows_in

pytestmark = pytest.mark.skipif(not is_rust_installed(), reason="headrace-native is not installed")

SPEC = StoreSpec("w", kind="memory", layout="window")
KEYS = (b"", b"a", b"b", b"a" + bytes(12), b"long" * 20)
UNENCODABLE = object()


def encoded(value: Any) -> bytes:
    if value is UNENCODABLE:
        raise TypeError("cannot be encoded")
    return repr(value).encode()


@dataclass
class Machine:
    """A store with rows in one language."""

    language: str
    stored_form: Any
    state: MemoryTaskState = field(default_factory=lambda: MemoryTaskState([SPEC]))
    buffer: TimedBuffer = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        coding = Coding(
            encode=encoded,
            decode=lambda data: ast.literal_eval(data.decode()),
            stored_form=self.stored_form,
        )
        with rows_in(self.language):
            buffer = make_buffer(SPEC, self.state.store("w"), coding)
        assert isinstance(buffer, TimedBuffer)
        self.buffer = buffer
        buffer.detect_empty_store()

    def take(self, step: tuple[Any, ...]) -> Any:
        """Take a step; return what a program would see of it."""
        what, *given = step
        return getattr(self, f"take_{what}")(*given)

    def take_add(self, key: bytes, time: int, number: int, value: Any) -> Any:
        if time < self.buffer.horizon or (value is None and number > 0):
            return None
        return self.buffer.add(key, time, number, value, time + number)

    def take_put(self, key: bytes, time: int, number: int, value: Any) -> None:
        self.buffer.put(key + KEPT.pack(time, number), value, time)

    def take_forget(self, key: bytes, time: int, number: int) -> None:
        row_key = key + KEPT.pack(time, number)
        if row_key in self.buffer.dirty and not self.is_stored(row_key):
            self.buffer.drop_write(row_key)

    def is_stored(self, row_key: bytes) -> bool:
        return SPEC.rows.view(self.state.store("w")).get(row_key) is not None

    def take_get(self, key: bytes, time: int, number: int) -> Any:
        value, timestamp = self.buffer.get(key + KEPT.pack(time, number))
        return None if value is None else (value, timestamp)

    def take_between(self, key: bytes, start: int, reach: int) -> Any:
        start = max(start, self.buffer.horizon)
        rows = self.buffer.between(key, start, start + reach)
        return [(timestamp, self.buffer.from_stored_form(value)) for timestamp, value in rows]

    def take_latest(self, key: bytes, start: int, reach: int) -> Any:
        start = max(start, self.buffer.horizon)
        rows = self.buffer.latest_first(key, start, start + reach)
        # A value that was read from disk may be bytes where one that was written is not.
        return [(*times, self.buffer.from_stored_form(value)) for *times, value in rows]

    def take_remove(self, key: bytes, time: int, count: int) -> None:
        if time >= self.buffer.horizon:
            self.buffer.remove_last(key, time, count)

    def take_expire(self, time: int) -> None:
        self.buffer.expire(time)

    def take_shrink(self, limit_bytes: int) -> None:
        self.buffer.cached_bytes()
        self.buffer.shrink_cache(limit_bytes)

    def take_commit(self) -> Any:
        delta = self.buffer.delta()
        local = self.buffer.local_rows(delta)
        self.state.write({"w": local}, {})
        self.buffer.committed()
        return delta, dict(local)

    def take_abort(self) -> None:
        self.begin()

    def take_discard(self) -> None:
        self.buffer.discard()

    def seen(self) -> Any:
        """Everything that can be read without a change."""
        buffer = self.buffer
        return (
            list(buffer.dirty.items()),
            buffer.oldest_written(),
            list(buffer.scan()),
            list(buffer.scan(b"a", b"b", reverse=True)),
            list(buffer.by_time(2, 9)),
            (buffer.earliest(), buffer.earliest(4), buffer.latest()),
            (len(buffer.dirty), bool(buffer.dirty), list(reversed(buffer.dirty))),
            buffer.uncommitted_bytes(),
        )


TIMES, NUMBERS = st.integers(0, 12), st.integers(0, 2)
PLAIN = [None, 0, -1, 2**63 - 1, -(2**63), 2**63, 2**200, 0.0, -0.0, 1.5, True, "text", ""]
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(PLAIN), st.builds(list, st.lists(st.integers(0, 9), max_size=2))
)
ROWS = (st.sampled_from(KEYS), TIMES, NUMBERS)
STEPS = st.one_of(
    st.tuples(st.just("add"), *ROWS, VALUES),
    st.tuples(st.just("add"), *ROWS, VALUES),
    st.tuples(st.just("put"), *ROWS, VALUES),
    st.tuples(st.just("forget"), *ROWS),
    st.tuples(st.just("get"), *ROWS),
    st.tuples(st.just("between"), st.sampled_from(KEYS), TIMES, TIMES),
    st.tuples(st.just("latest"), st.sampled_from(KEYS), TIMES, TIMES),
    st.tuples(st.just("remove"), st.sampled_from(KEYS), TIMES, st.integers(1, 3)),
    st.tuples(st.just("expire"), TIMES),
    st.tuples(st.just("shrink"), st.sampled_from([0, 200, 1_000, 10_000])),
    st.sampled_from([("commit",), ("commit",), ("abort",), ("discard",)]),
)


@pytest.mark.parametrize("stored_form", ["objects", "bytes"])
@given(steps=st.lists(STEPS, max_size=30))
@settings(max_examples=examples(200), deadline=None)
def test_rows_in_rust_are_as_rows_in_python(stored_form: str, steps: list[Any]) -> None:
    machines = [Machine(language, stored_form) for language in LANGUAGES]
    for step in steps:
        python, rust = (machine.take(step) for machine in machines)
        assert repr(rust) == repr(python), step  # -0.0 == 0.0, and True == 1
        python, rust = (machine.seen() for machine in machines)
        assert repr(rust) == repr(python), step


def test_a_value_that_cannot_be_encoded_is_reported_with_its_key() -> None:
    keys = []
    for language in LANGUAGES:
        machine = Machine(language, "objects")
        machine.buffer.dirty[b"k" + KEPT.pack(1, 0)] = (1, 1)
        machine.buffer.dirty[b"k" + KEPT.pack(2, 0)] = (UNENCODABLE, 2)
        with pytest.raises(ValueEncodingError) as raised:
            machine.buffer.delta()
        keys.append(raised.value.key)
        assert len(machine.buffer.dirty) == 2
    assert keys == [b"k" + KEPT.pack(2, 0)] * 2


def test_rows_that_are_dropped_can_run_code_that_uses_the_store() -> None:
    machine = Machine("rust", "objects")
    lengths = []

    class Noticing:
        def __del__(self) -> None:
            lengths.append(len(machine.buffer.dirty))

    row_key = b"k" + KEPT.pack(1, 0)
    for end in ("replace", "forget", "clear"):
        machine.buffer.dirty[row_key] = (Noticing(), 1)
        if end == "replace":
            machine.buffer.dirty[row_key] = (1, 1)
        elif end == "forget":
            machine.buffer.drop_write(row_key)
        else:
            machine.buffer.discard()
    assert lengths == [1, 0, 0]


@given(st.binary(max_size=80))
def test_keys_are_hashed_as_in_python(key: bytes) -> None:
    assert importlib.import_module("headrace_native").murmur2(key) == murmur2(key)


def test_a_row_key_without_times_is_refused() -> None:
    machine = Machine("rust", "objects")
    with pytest.raises(ValueError, match="must have times"):
        machine.buffer.dirty[b"short"] = (1, 1)
    with pytest.raises(KeyError):
        machine.buffer.dirty[b"k" + KEPT.pack(1, 0)]
