from __future__ import annotations

import pytest

from headrace.state.errors import UnknownStoreError
from headrace.state.memory import MemoryTaskState
from headrace.state.spec import StoreSpec
from headrace.state.store import Position

HERE = Position("topic-a", 7, 3, 1_700_000_000_000)


@pytest.fixture
def state() -> MemoryTaskState:
    return MemoryTaskState([StoreSpec("a", kind="memory"), StoreSpec("b", kind="memory")])


def test_a_missing_key_reads_as_none(state: MemoryTaskState) -> None:
    assert state.store("a").get(b"k") is None
    assert state.store("a").get_many([b"k"]) == [None]


def test_a_key_that_is_deleted_and_comes_back_is_scanned_once(state: MemoryTaskState) -> None:
    state.write({"a": [(b"k", b"1"), (b"l", b"1")]}, {})
    list(state.store("a").scan())
    state.write({"a": [(b"k", None)]}, {})
    state.write({"a": [(b"k", b"2")]}, {})
    assert list(state.store("a").scan()) == [(b"k", b"2"), (b"l", b"1")]


def test_a_scan_shows_the_rows_of_the_moment_it_began(state: MemoryTaskState) -> None:
    state.write({"a": [(b"1", b"old"), (b"2", b"old")]}, {})
    scan = state.store("a").scan()
    state.write({"a": [(b"1", b"new"), (b"2", None), (b"3", b"new")]}, {})
    assert list(scan) == [(b"1", b"old"), (b"2", b"old")]


def test_a_write_that_names_an_unknown_store_changes_nothing(state: MemoryTaskState) -> None:
    with pytest.raises(UnknownStoreError, match="nope"):
        state.write({"a": [(b"k", b"1")], "nope": []}, {"a": HERE})
    with pytest.raises(UnknownStoreError, match="nope"):
        state.write({"a": [(b"k", b"1")]}, {"nope": HERE})
    assert (list(state.store("a").scan()), state.position("a")) == ([], None)


def test_a_dropped_store_is_empty_has_no_position_and_takes_rows(state: MemoryTaskState) -> None:
    state.write({"a": [(b"k", b"1")], "b": [(b"k", b"2")]}, {"a": HERE, "b": HERE})
    state.drop_store("a")
    state.write({"a": [(b"l", b"3")]}, {})
    assert list(state.store("a").scan()) == [(b"l", b"3")]
    assert (state.position("a"), state.position("b")) == (None, HERE)


def test_a_bulk_restore_goes_the_way_of_one_on_disk(state: MemoryTaskState) -> None:
    state.write({"a": [(b"old", b"1")]}, {})
    state.begin_restore()
    with pytest.raises(ValueError, match="end it"):
        state.write({}, {})
    state.restore({"a": [(b"k", b"1"), (b"k", b"2")]})
    with pytest.raises(ValueError, match="'a'"):
        state.end_restore({"b": HERE})
    state.end_restore({"a": HERE})
    assert (list(state.store("a").scan()), state.position("a")) == ([(b"k", b"2")], HERE)
    with pytest.raises(ValueError, match="begin one"):
        state.restore({})
