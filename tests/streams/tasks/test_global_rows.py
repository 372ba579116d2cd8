"""The rows of a global table that stay decoded, and their bound."""

from __future__ import annotations

from headrace.state.codec import encode_timestamped
from headrace.state.memory import MemoryTaskState
from headrace.state.spec import StoreSpec
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.tasks.global_state import GlobalRows
from headrace.topology import serdes

KEYS = [f"{n:03}" for n in range(100)]
SIZE = 1_000
"""Of a value; a row takes a little more."""


class Rows(GlobalRows):
    """A table of some large rows that counts how often one is read from the store."""

    __slots__ = ("loads",)

    def __init__(self, limit_bytes: int) -> None:
        spec = StoreSpec("rows", kind="memory", logged=False)
        plan = GlobalPlan(0, "source", "table", "t", spec, serdes.string, serdes.string)
        super().__init__(plan, limit_bytes)
        self.loads = 0
        state = MemoryTaskState([spec])
        row = encode_timestamped(1, b"x" * SIZE)
        state.write({"rows": [(key.encode(), row) for key in KEYS]}, {})
        self.use(state.store("rows"))

    def _load(self, key: bytes) -> tuple[str | None, int]:
        self.loads += 1
        return super()._load(key)

    def looked_up(self, keys: list[str]) -> int:
        """Look these up; returns how many of them were not decoded."""
        self.loads = 0
        for key in keys:
            assert self.get(key) == ("x" * SIZE, 1)
        return self.loads


def test_rows_stay_decoded_until_they_change() -> None:
    rows = Rows(1_000_000)
    assert rows.looked_up(KEYS) == 100
    assert rows.looked_up(KEYS) == 0
    rows.evict([(b"007", None)])
    assert rows.looked_up(KEYS) == 1


def test_those_that_were_decoded_first_give_way() -> None:
    rows = Rows(50 * SIZE)
    rows.looked_up(KEYS)
    assert 35 * SIZE < rows.cached_bytes() <= 50 * SIZE
    assert rows.looked_up(KEYS[-30:]) == 0
    assert rows.looked_up(KEYS[:1]) == 1


def test_a_bound_for_all_stores_goes_over_its_own() -> None:
    rows = Rows(1_000_000)
    rows.looked_up(KEYS)
    assert rows.cached_bytes() > 100 * SIZE
    rows.shrink_cache(20 * SIZE)
    assert 15 * SIZE < rows.cached_bytes() <= 20 * SIZE
    rows.shrink_cache(0)
    assert rows.cached_bytes() == 0


def test_a_row_that_has_no_room_is_not_kept() -> None:
    rows = Rows(SIZE)
    assert rows.looked_up(KEYS) == 100
    assert rows.looked_up(KEYS[-1:]) == 1
    assert rows.cached_bytes() == 0


def test_rows_that_changed_do_not_count_any_more() -> None:
    """Else a table whose rows change often would be taken for a full one."""
    rows = Rows(200 * SIZE)
    for _ in range(20):
        rows.looked_up(KEYS)
        rows.evict([(key.encode(), None) for key in KEYS[50:]])
    assert rows.looked_up(KEYS[:50]) == 0
