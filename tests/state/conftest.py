from __future__ import annotations

from pathlib import Path

import pytest

from headrace.state.rocks import RocksMemory


@pytest.fixture(scope="module")
def memory() -> RocksMemory:
    return RocksMemory(block_cache_bytes=8 << 20, write_buffer_bytes=16 << 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"
