from __future__ import annotations

from pathlib import Path

import pytest

from headrace.state.disk.options import RocksMemory
from headrace.state.rocks import RocksTaskState
from headrace.state.spec import StoreSpec
from headrace.state.store import Position

SPECS = [StoreSpec("rows")]


def opened(path: Path) -> RocksTaskState:
    memory = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
    return RocksTaskState(path, SPECS, memory=memory)


def test_closed_state_can_be_opened_again_while_someone_still_holds_its_store(
    tmp_path: Path,
) -> None:
    """The traceback of an error holds the store; that must not keep RocksDB's lock."""
    state = opened(tmp_path)
    store = state.store("rows")
    state.write({"rows": [(b"k", b"v")]}, {"rows": Position("id", 1, 1, 1)})
    state.close()
    again = opened(tmp_path)
    assert again.store("rows").get(b"k") == b"v"
    with pytest.raises(ValueError, match="closed"):
        store.get(b"k")
    again.close()
