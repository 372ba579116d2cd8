"""Reads the local state that workers have left behind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from headrace.state.codec import decode_timestamped
from headrace.state.errors import StateError
from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.spec import StoreSpec
from tests.chaos.application import STORES, application_id, build_topology
from tests.chaos.history import StoreDump

_TASK = re.compile(r"(\d+)_(\d+)(?:\.g(\d+))?")


def read_stores(prefix: str, state_dirs: Iterable[str | Path]) -> Iterator[StoreDump]:
    """Yield every store of the newest generation of every task; no worker may have them open.

    What cannot be read is yielded without rows and without a position.
    """
    for state_dir in state_dirs:
        tasks = Path(state_dir) / application_id(prefix) / "tasks"
        newest: dict[tuple[int, int], tuple[int, Path]] = {}
        for path in sorted(tasks.iterdir()) if tasks.exists() else ():
            match = _TASK.fullmatch(path.name)
            if match is None or not (path / "rocksdb").is_dir():
                continue
            sub, partition, generation = (int(number or 0) for number in match.groups())
            newest[sub, partition] = max(
                newest.get((sub, partition), (-1, path)), (generation, path)
            )
        for (sub, partition), (_, path) in sorted(newest.items()):
            yield from _read_task(path, sub, partition)


def _read_task(path: Path, sub: int, partition: int) -> Iterator[StoreDump]:
    names = [store for store, home in STORES.items() if home == sub]
    memory = RocksMemory(block_cache_bytes=8 << 20, write_buffer_bytes=8 << 20)
    try:
        state = RocksTaskState(path / "rocksdb", [_spec(n) for n in names], memory=memory)
    except StateError as error:
        yield from (StoreDump(n, partition, f"{path} ({error})", None, {}) for n in names)
        return
    try:
        for name in names:
            yield _read_store(state, name, partition, path)
    finally:
        state.close()


def _spec(store: str) -> StoreSpec:
    return _specs()[store]


@cache
def _specs() -> Mapping[str, StoreSpec]:
    subs = build_topology().sub_topologies
    return {store.name: store.spec for sub in subs for store in sub.stores}


def _read_store(state: RocksTaskState, name: str, partition: int, path: Path) -> StoreDump:
    position = state.position(name)
    offset = None if position is None else position.offset
    try:
        store = _spec(name).rows.view(state.store(name))
        rows = {key: decode_timestamped(row) for key, row in store.scan()}
    except StateError as error:
        return StoreDump(name, partition, f"{path} ({error})", None, {})
    return StoreDump(name, partition, str(path), offset, rows)
