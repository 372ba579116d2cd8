from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.state.errors import StateError, StoreCorruptedError
from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.spec import StoreSpec
from headrace.state.store import Position
from tests.state.broken import break_tables, filled

SPECS = [StoreSpec("rows"), StoreSpec("a")]
MEMORY = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)


def opened(path: Path) -> RocksTaskState:
    return RocksTaskState(path, SPECS, memory=MEMORY)


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


@pytest.mark.parametrize("reverse", [False, True])
def test_closed_state_can_be_opened_again_while_the_error_of_a_scan_is_held(
    tmp_path: Path, reverse: bool
) -> None:
    """Its traceback holds the frame that had the cursor; a rebuild begins while it is handled."""
    filled(tmp_path, MEMORY)
    break_tables(tmp_path)
    state = opened(tmp_path)
    with pytest.raises(StoreCorruptedError) as caught:
        list(state.store("a").scan(reverse=reverse))
    state.close()
    opened(tmp_path).close()
    assert caught.traceback


def test_closed_state_can_be_opened_again_while_the_error_of_a_flush_is_held(
    tmp_path: Path,
) -> None:
    state = opened(tmp_path)
    state.begin_restore()
    state.restore({"rows": [(b"%06d" % n, b"v" * 100) for n in range(1_000)]})
    with no_room(), pytest.raises(StateError) as caught:
        state.end_restore({"rows": Position("id", 1, 1, 1)})
    state.close()
    opened(tmp_path).close()
    assert caught.traceback


@contextmanager
def no_room() -> Iterator[None]:
    """No file of this process grows, as on a full disk."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
