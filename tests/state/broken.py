"""States whose files are broken."""

from __future__ import annotations

import random
from pathlib import Path

from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.spec import StoreSpec
from headrace.state.store import Position

HERE = Position("topic-a", 7, 3, 1_700_000_000_000)


def filled(path: Path, memory: RocksMemory, *, count: int = 2_000) -> None:
    """Make a state whose rows of store `a` are in a file."""
    state = RocksTaskState(path, [StoreSpec("a"), StoreSpec("b")], memory=memory)
    some = random.Random(1)
    state.write({"a": [(b"%06d" % n, some.randbytes(100)) for n in range(count)]}, {"a": HERE})
    state.close()


def break_tables(path: Path) -> None:
    """Overwrite the middle of the largest table file, where there are blocks of rows."""
    table = max(path.glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(table.read_bytes())
    assert len(data) > 100_000
    middle = len(data) // 2
    data[middle : middle + 64] = b"\xa5" * 64
    table.write_bytes(bytes(data))
