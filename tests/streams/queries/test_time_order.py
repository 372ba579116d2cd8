"""Pages of all rows by time, from a store whose rows are in segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from headrace.state import segments
from headrace.state.codec import TIMESTAMP
from headrace.state.memory import MemoryTaskState
from headrace.state.segments import layout_of
from headrace.state.spec import StoreSpec
from headrace.state.store import CommittedStore
from headrace.streams.queries import scan
from headrace.streams.queries.answers import PartitionPosition
from headrace.streams.queries.scan import Cursor, Scan, TimeOrder

LAYOUT = layout_of("window", 1_000)
COUNT = 2_000
ALL = Scan(times=(0, 2**63 - 1))


class CountedRows:
    """Rows of a store, with the number of rows that were read in scans."""

    def __init__(self, rows: CommittedStore) -> None:
        self._rows = rows
        self.count = 0

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._rows.get_many(keys)

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for row in self._rows.scan(start, end, reverse=reverse):
            self.count += 1
            yield row

    def approximate_count(self) -> int:
        return self._rows.approximate_count()

    def approximate_bytes(self) -> int:
        return self._rows.approximate_bytes()


def row_key(number: int) -> bytes:
    # The order of the keys is not that of their times.
    return b"%05d" % (number * 7_919 % COUNT) + TIMESTAMP.pack(number * 3) + bytes(4)


@pytest.fixture
def state() -> MemoryTaskState:
    state = MemoryTaskState([StoreSpec("w")])
    rows = [(row_key(number), b"", number) for number in range(COUNT)]
    state.write({"w": LAYOUT.rows(rows)}, {})
    return state


def page(rows: CommittedStore, order: TimeOrder, after: bytes | None) -> list[bytes]:
    """Return a page of 50 row keys, as a request that continues at a cursor."""
    wanted = ALL if after is None else ALL.rest(Cursor(after, 0), 0)
    steps, _ = wanted.piece(LAYOUT.view(rows), 0, order)
    return [step.sort for step in steps[:50]]


def pages(rows: CommittedStore, order: TimeOrder) -> list[bytes]:
    found: list[bytes] = []
    while part := page(rows, order, found[-1] if found else None):
        found += part
    return [sort[TIMESTAMP.size :] for sort in found]


@pytest.mark.parametrize(("sorted_rows", "reads"), [(100_000, 2), (1_000, 6)])
def test_pages_read_the_rows_a_few_times(
    state: MemoryTaskState, sorted_rows: int, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (segments, scan):
        monkeypatch.setattr(module, "SORTED_ROWS", sorted_rows)
    rows = CountedRows(state.store("w"))
    assert pages(rows, TimeOrder()) == [row_key(number) for number in range(COUNT)]
    assert rows.count < reads * COUNT


def test_a_first_page_reads_the_present_rows(state: MemoryTaskState) -> None:
    order, rows = TimeOrder(), state.store("w")
    first = page(rows, order, None)
    early = b"early" + bytes(8) + bytes(4)
    state.write({"w": LAYOUT.rows([(early, b"", 1)])}, {})
    assert page(rows, order, first[0])[:49] == first[1:]
    assert page(rows, order, None)[1] == bytes(8) + early


def test_a_later_page_has_the_position_of_the_rows_that_it_shows(state: MemoryTaskState) -> None:
    order, rows = TimeOrder(), state.store("w")
    first = page(rows, order, None)
    assert order.position(position(5, 100), now_ms=1_000) == position(5, 100)
    page(rows, order, first[-1])
    later = order.position(position(8, 100), now_ms=3_000)
    assert (later.offset, later.age_ms, later.max_offset) == (5, 2_100, 8)
    order.drop_before(1_001)
    page(rows, order, first[-1])
    assert order.position(position(8, 100), now_ms=3_000) == position(8, 100)


def position(offset: int, age_ms: int) -> PartitionPosition:
    return PartitionPosition(
        partition=0,
        offset=offset,
        max_offset=offset,
        commit_id=1,
        committed_ms=1,
        age_ms=age_ms,
        state=None,
        inputs={},
        host=None,
    )
