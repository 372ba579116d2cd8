from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.errors import UnknownStoreError
from headrace.state.memory import MemoryStore, MemoryTaskState
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
    with pytest.raises(ValueError, match="call begin_restore first"):
        state.restore({})


def paged(store: MemoryStore, most: int, **options: Any) -> list[tuple[bytes, bytes]]:
    """All of a range, page by page."""
    found: list[tuple[bytes, bytes]] = []
    while True:
        page = store.page(most=most, **options)
        if page is None:
            continue
        assert len(page.rows) <= most
        found += page.rows
        if page.after is None:
            return found
        if options.get("reverse"):
            options["end"] = page.after
        else:
            options["start"] = page.after + b"\0"


KEY = st.binary(min_size=1, max_size=2)


@given(
    writes=st.lists(st.lists(st.tuples(KEY, st.none() | st.binary(max_size=1)), max_size=30)),
    bounds=st.tuples(st.none() | KEY, st.none() | KEY),
    reverse=st.booleans(),
    scans=st.booleans(),
    most=st.integers(1, 5),
)
def test_pages_are_what_a_scan_gives(
    writes: list[list[tuple[bytes, bytes | None]]],
    bounds: tuple[bytes | None, bytes | None],
    reverse: bool,
    scans: bool,
    most: int,
) -> None:
    store, asked = MemoryStore(), {"start": bounds[0], "end": bounds[1], "reverse": reverse}
    for delta in writes:
        store.apply(list(dict(delta).items()))
        expected = MemoryStore()
        expected.apply([(key, row) for key, row in store._rows.items()])
        assert paged(store, most, **asked) == list(expected.scan(*bounds, reverse=reverse))
        if scans:
            assert list(store.scan()) == list(expected.scan())


def test_a_page_puts_no_more_keys_into_order_than_it_has_time_for() -> None:
    store = MemoryStore()
    keys = [(n * 7919 % 100_003).to_bytes(4) for n in range(100_000)]
    store.apply([(key, b"row") for key in keys])
    asked = 1
    while (page := store.page(most=3)) is None:
        asked += 1
    assert asked == 7  # 16,384 keys each time
    assert [key for key, _ in page.rows] == sorted(keys)[:3]
    store.apply([(b"\0", b"new")])
    page = store.page(most=1)
    assert page is not None
    assert page.rows == [(b"\0", b"new")]


def test_a_page_passes_many_deleted_keys_some_at_a_time() -> None:
    store = MemoryStore()
    keys = [n.to_bytes(4) for n in range(10_000)]
    store.apply([(key, b"row") for key in keys])
    assert store.page(most=1) is not None
    store.apply([(key, None) for key in keys[:-1]])
    pages, start = [], b""
    while True:
        page = store.page(start)
        assert page is not None
        pages.append(len(page.rows))
        if page.after is None:
            break
        start = page.after + b"\0"
    assert pages == [0, 0, 1]


def test_a_page_holds_not_many_more_bytes_than_it_may() -> None:
    store = MemoryStore()
    store.apply([(b"%03d" % n, bytes(1000)) for n in range(20)])
    page = store.page(most_bytes=3_500)
    assert page is not None
    assert (len(page.rows), page.after) == (4, b"003")
