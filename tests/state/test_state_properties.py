"""Memory, RocksDB and both together against dictionaries, over random histories."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.state.rocks import RocksMemory
from headrace.state.spec import StoreSpec
from headrace.state.store import Position, RangeDelta, TaskState
from headrace.state.task_state import open_task_state
from tests.support.examples import examples

pytestmark = pytest.mark.slow

SPECS = [StoreSpec("disk"), StoreSpec("other"), StoreSpec("ram", kind="memory")]
NAMES = [spec.name for spec in SPECS]

# Few different bytes, so that keys meet, are prefixes of one another, and touch the bounds.
keys = st.binary(max_size=4).map(lambda key: bytes(b"\x00\x01\x7f\x80\xff"[c % 5] for c in key))
values = st.none() | st.binary(max_size=6)
delta = st.lists(st.tuples(keys, values), max_size=12, unique_by=lambda row: row[0])
log = st.lists(st.tuples(keys, values), max_size=12)
bounds = st.none() | keys
positions = st.builds(
    Position,
    topic_id=st.text(max_size=5),
    offset=st.integers(0, 2**63 - 1),
    commit_id=st.integers(0, 2**63 - 1),
    wall_ms=st.integers(0, 2**53),
)


class Histories(RuleBasedStateMachine):
    """One state, opened again at any moment, and what it must show."""

    durable = frozenset({"disk", "other"})

    @initialize()
    def begin(self) -> None:
        self.rows: dict[str, dict[bytes, bytes]] = {name: {} for name in NAMES}
        self.places: dict[str, Position] = {}
        self.folder = tempfile.TemporaryDirectory(prefix="state-")
        self.memory = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=8 << 20)
        self.state = self.open()

    def open(self) -> TaskState:
        return open_task_state(Path(self.folder.name), SPECS, memory=self.memory)

    def apply(self, deltas: Mapping[str, list[tuple[bytes, bytes | None]]]) -> None:
        for name, rows in deltas.items():
            for key, value in rows:
                if value is None:
                    self.rows[name].pop(key, None)
                else:
                    self.rows[name][key] = value

    @rule(
        deltas=st.dictionaries(st.sampled_from(NAMES), delta),
        places=st.dictionaries(st.sampled_from(NAMES), positions),
    )
    def write(
        self,
        deltas: dict[str, list[tuple[bytes, bytes | None]]],
        places: dict[str, Position],
    ) -> None:
        self.state.write(deltas, places)
        self.apply(deltas)
        self.places.update(places)

    @rule(name=st.sampled_from(NAMES), start=keys, end=keys, rows=delta)
    def write_after_a_range_is_deleted(
        self, name: str, start: bytes, end: bytes, rows: list[tuple[bytes, bytes | None]]
    ) -> None:
        start, end = min(start, end), max(start, end)
        self.state.write({name: RangeDelta(start, end, rows)}, {})
        for key in [key for key in self.rows[name] if start <= key < end]:
            del self.rows[name][key]
        self.apply({name: rows})

    @rule(
        slices=st.lists(st.dictionaries(st.sampled_from(NAMES), log), max_size=4),
        place=positions,
    )
    def restore(
        self, slices: list[dict[str, list[tuple[bytes, bytes | None]]]], place: Position
    ) -> None:
        self.state.begin_restore()
        for name in NAMES:
            if name not in self.places:
                self.rows[name].clear()
        for deltas in slices:
            self.state.restore(deltas)
            self.apply(deltas)
        places = {name: place for deltas in slices for name in deltas}
        self.state.end_restore(places)
        self.places.update(places)

    @rule(name=st.sampled_from(NAMES))
    def drop(self, name: str) -> None:
        self.state.drop_store(name)
        self.rows[name].clear()
        self.places.pop(name, None)

    @rule()
    def restart(self) -> None:
        self.state.close()
        self.state = self.open()
        for name in NAMES:
            if name not in self.durable:
                self.rows[name].clear()
                self.places.pop(name, None)

    @rule(name=st.sampled_from(NAMES), start=bounds, end=bounds, reverse=st.booleans())
    def scan(self, name: str, start: bytes | None, end: bytes | None, reverse: bool) -> None:
        expected = sorted(
            (
                row
                for row in self.rows[name].items()
                if (start is None or row[0] >= start) and (end is None or row[0] < end)
            ),
            reverse=reverse,
        )
        assert list(self.state.store(name).scan(start, end, reverse=reverse)) == expected

    @rule(name=st.sampled_from(NAMES), wanted=st.lists(keys, max_size=6))
    def read(self, name: str, wanted: list[bytes]) -> None:
        store = self.state.store(name)
        expected = [self.rows[name].get(key) for key in wanted]
        assert store.get_many(wanted) == expected
        assert [store.get(key) for key in wanted] == expected

    @invariant()
    def places_are_as_written(self) -> None:
        for name in NAMES:
            assert self.state.position(name) == self.places.get(name)

    def teardown(self) -> None:
        for name in NAMES:
            self.scan(name, None, None, False)
        self.state.close()
        self.folder.cleanup()


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=examples(20),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskState]:
    memory = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=8 << 20)
    specs = [StoreSpec("disk"), StoreSpec("ram", kind="memory")]
    state = open_task_state(tmp_path_factory.mktemp("both"), specs, memory=memory)
    yield state
    state.close()


short = st.binary(max_size=2).map(lambda key: bytes(b"\x00\x7f\x80\xff"[c % 4] for c in key))


@pytest.mark.parametrize("name", ["disk", "ram"])
@given(
    kept=st.dictionaries(short, st.binary(max_size=2)),
    gone=st.lists(short),
    start=st.none() | short,
    end=st.none() | short,
)
@settings(max_examples=examples(150), deadline=None)
def test_scans_are_in_unsigned_byte_order_within_their_bounds(
    both: TaskState,
    name: str,
    kept: dict[bytes, bytes],
    gone: list[bytes],
    start: bytes | None,
    end: bytes | None,
) -> None:
    both.drop_store(name)
    both.write({name: [(key, b"old") for key in dict.fromkeys(gone)]}, {})
    list(both.store(name).scan())
    both.write({name: [(key, None) for key in dict.fromkeys(gone)]}, {})
    both.write({name: list(kept.items())}, {})
    expected = sorted(
        (list(key), value)
        for key, value in kept.items()
        if (start is None or key >= start) and (end is None or key < end)
    )
    store = both.store(name)
    assert [(list(key), value) for key, value in store.scan(start, end)] == expected
    backwards = [(list(key), value) for key, value in store.scan(start, end, reverse=True)]
    assert backwards == expected[::-1]
