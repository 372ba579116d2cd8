"""Opening local state while another process of the host may still have it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from headrace.state.directory import StateDirectory
from headrace.state.errors import DiskFullError
from headrace.state.rocks import RocksMemory
from headrace.state.store import Position
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.home import PATIENCE_S, LocalHome, LocalHomes
from headrace.streams.testing.memory_worker import EventLog, ManualClock
from tests.support.topologies import key_count

TASK = TaskId(0, 1)


def homes(path: Path, clock: ManualClock, log: EventLog) -> LocalHomes:
    memory = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
    return LocalHomes(StateDirectory(path, "app"), memory, clock=clock, log=log)


def opened(home: LocalHome | None) -> LocalHome:
    assert home is not None
    return home


def test_the_holder_of_a_tasks_directory_is_waited_for_without_standing_still(
    tmp_path: Path,
) -> None:
    clock, log = ManualClock(0), EventLog()
    stores = key_count().sub_topologies[0].stores
    leaving, coming = homes(tmp_path, clock, log), homes(tmp_path, clock, log)
    held = opened(leaving.open(TASK, stores))
    held.state.write({"counts": [(b"k", b"v")]}, {"counts": Position("id", 1, 1, 0)})
    assert coming.open(TASK, stores) is None
    clock.sleep(PATIENCE_S / 2)
    assert coming.open(TASK, stores) is None
    held.close()
    taken = opened(coming.open(TASK, stores))
    assert taken.state.store("counts").get(b"k") == b"v"
    taken.close()


def test_a_holder_that_hangs_is_passed_by_with_a_fresh_directory(tmp_path: Path) -> None:
    clock, log = ManualClock(0), EventLog()
    stores = key_count().sub_topologies[0].stores
    hanging, coming = homes(tmp_path, clock, log), homes(tmp_path, clock, log)
    held = opened(hanging.open(TASK, stores))
    assert coming.open(TASK, stores) is None
    clock.sleep(PATIENCE_S)
    fresh = opened(coming.open(TASK, stores))
    assert fresh.directory.generation == 1
    assert fresh.state.position("counts") is None
    (event,) = log.events
    assert (event["event"], event["task"], event["generation"]) == (
        "locked_state_ignored",
        "0_1",
        1,
    )
    assert event["advice"].startswith("nothing is lost: another process of this host")
    fresh.close()
    held.close()


def test_a_disk_that_is_full_is_no_state_that_a_person_has_to_put_right(tmp_path: Path) -> None:
    """There may be room at the next start, so the worker is to be started again."""
    stores = key_count().sub_topologies[0].stores
    there = homes(tmp_path, ManualClock(0), EventLog())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, limits[1]))
    try:
        with pytest.raises(DiskFullError, match="nothing is lost: free space on the disk"):
            there.open(TASK, stores)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    opened(there.open(TASK, stores)).close()
