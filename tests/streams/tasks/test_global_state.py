"""The local state of global tables: what a kill at any moment leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.state.directory import StateDirectory
from headrace.state.errors import StateLockedError
from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.spec import StoreSpec
from headrace.state.store import TaskState
from headrace.streams.errors import LocalStateError
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.tasks.global_state import GlobalState, TableProgress, stores_of_tables
from headrace.streams.tasks.home import open_global_home
from headrace.streams.testing.memory_worker import EventLog
from headrace.topology import serdes

MEMORY = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=8 << 20)
PLAN = GlobalPlan(
    0, "source", "table", "t", StoreSpec("rows", logged=False), serdes.string, serdes.string
)
PLACE = TopicPartition("t", 0)


@dataclass
class Home:
    """Files that a kill leaves as they are."""

    path: Path
    state: TaskState = field(init=False)

    def __post_init__(self) -> None:
        specs = [store.spec for store in stores_of_tables([PLAN])]
        self.state = RocksTaskState(self.path, specs, memory=MEMORY)

    def wipe(self) -> None:
        raise AssertionError("nothing is broken")

    def close(self) -> None:
        self.state.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "rocksdb")
    yield home
    home.close()


def follows(offset: int, wall_ms: int = 0) -> TableProgress:
    return TableProgress("id", {PLACE: offset}, wall_ms)


def test_rows_and_how_far_they_reach_are_written_together(home: Home) -> None:
    state = GlobalState(home)
    assert state.progress(PLAN) is None
    state.write(PLAN, [(b"a", b"1"), (b"b", b"2")], follows(2, 50))
    state.write(PLAN, [(b"a", None)], follows(3, 60))
    assert list(state.rows(PLAN).scan()) == [(b"b", b"2")]
    assert state.progress(PLAN) == follows(3, 60)


def test_nothing_is_built_on_a_load_that_did_not_end(home: Home) -> None:
    state = GlobalState(home)
    state.begin_load()
    state.load(PLAN, [(b"a", b"1")])
    again = reopened(home)
    assert again.progress(PLAN) is None


def test_a_load_behind_kept_rows_that_did_not_end_goes_on_from_them(home: Home) -> None:
    state = GlobalState(home)
    state.begin_load()
    state.load(PLAN, [(b"a", b"1")])
    state.end_load([(PLAN, follows(1))])
    state.begin_load()
    state.load(PLAN, [(b"a", b"2")])
    again = reopened(home)
    assert again.progress(PLAN) == follows(1)
    assert list(again.rows(PLAN).scan()) in ([(b"a", b"1")], [(b"a", b"2")])


def test_a_kill_between_durable_rows_and_their_offsets_begins_anew(home: Home) -> None:
    """What is between the two writes of `end_load`: rows with a position, offsets without."""
    state = GlobalState(home)
    state.begin_load()
    state.load(PLAN, [(b"a", b"1")])
    written = state.write
    state.write = lambda *_: None  # type: ignore[method-assign]
    state.end_load([(PLAN, follows(1))])
    state.write = written  # type: ignore[method-assign]
    assert reopened(home).progress(PLAN) is None


def test_a_dropped_table_has_neither_rows_nor_offsets(home: Home) -> None:
    state = GlobalState(home)
    state.write(PLAN, [(b"a", b"1")], follows(1))
    state.drop(PLAN)
    assert reopened(home).progress(PLAN) is None
    assert list(GlobalState(home).rows(PLAN).scan()) == []


def reopened(home: Home) -> GlobalState:
    """The state as another process finds it."""
    home.state.close()
    home.__post_init__()
    return GlobalState(home)


def test_each_identity_has_a_directory_that_nobody_else_opens(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "app")
    stores = stores_of_tables([PLAN])
    one = open_global_home(directory, "one", stores, MEMORY, EventLog())
    two = open_global_home(directory, "two", stores, MEMORY, EventLog())
    with pytest.raises(LocalStateError, match="in use by process"):
        open_global_home(directory, "one", stores, MEMORY, EventLog())
    assert [path.name for path in directory.global_paths()] == ["one", "two"]
    with pytest.raises(StateLockedError, match="global state one is locked"):
        directory.claim_all()
    one.close()
    two.close()
    claimed = directory.claim_all()
    assert [held.path.name for held in claimed] == ["one", "two"]
    for held in claimed:
        held.remove()
        held.release()
    assert not any(path.exists() for path in directory.global_paths())
