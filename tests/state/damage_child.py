"""What `test_damages` starts: a state that is built and left by a kill, or what looks at one."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

from headrace.state.errors import StateError
from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.spec import StoreSpec
from headrace.state.store import Position

STORES = ("a", "b")
Rows = dict[str, str]
History = dict[str, list[Rows]]
"""The rows of a store behind each commit."""


def opened(path: Path) -> RocksTaskState:
    memory = RocksMemory(block_cache_bytes=8 << 20, write_buffer_bytes=16 << 20)
    return RocksTaskState(path, [StoreSpec(name) for name in STORES], memory=memory)


def build(path: Path, choose: random.Random) -> tuple[RocksTaskState, History]:
    """Commit, flush, restore and open again at random; return the open state and its history.

    A state that Python releases is flushed, its column families in an order that depends on the
    version of Python, so the caller must hold it until the process ends.
    """
    state, history = opened(path), {name: [Rows()] for name in STORES}
    for _ in range(choose.randrange(1, 14)):
        what, name = choose.random(), choose.choice(STORES)
        if what < 0.65:
            commit(state, history, choose)
        elif what < 0.8:
            state._columns[name].flush(True)
            # What was flushed since the last commit is known by its files alone, for a moment.
            state.write({}, {})
        elif what < 0.9:
            state.close()
            state = opened(path)
        else:  # all of it once more, over what is there
            rows = history[name][-1]
            state.begin_restore()
            state.restore({name: [(k.encode(), v.encode()) for k, v in rows.items()]})
            state.end_restore({name: at(len(history[name]) - 1)})
    return state, history


def commit(state: RocksTaskState, history: History, choose: random.Random) -> None:
    number, deltas = len(history["a"]), {}
    for name in STORES:
        rows = dict(history[name][-1])
        changes: dict[str, str | None] = {
            f"k{choose.randrange(6)}": choose.choice((None, *[f"{number}-{name}"] * 5))
            for _ in range(choose.randrange(1, 4))
        }
        for key, value in changes.items():
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        history[name].append(rows)
        deltas[name] = [(k.encode(), v and v.encode()) for k, v in changes.items()]
    state.write(deltas, dict.fromkeys(STORES, at(number)))


def at(number: int) -> Position:
    return Position("topic", number, number, number)


def wrong_rows(path: Path, history: History) -> list[str]:
    """Rows that a restore from the position on would not put right; none where all are refused."""
    try:
        state = opened(path)
    except StateError:
        return []
    found = []
    for name in STORES:
        position = state.position(name)
        if position is None:
            continue
        try:
            rows = {k.decode(): v.decode() for k, v in state.store(name).scan()}
        except StateError:
            continue
        later = history[name][position.offset :]
        for key in sorted(rows.keys() | set().union(*later)):
            if rows.get(key) not in [one.get(key) for one in later]:
                found.append(f"{name} at {position.offset}: {key}={rows.get(key)}")
    return found


if __name__ == "__main__":
    what, directory, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if what == "build":
        held, history = build(directory / "db", random.Random(seed))
        (directory / "history").write_text(json.dumps(history))
    else:
        known = json.loads((directory / "history").read_text())
        damaged = sorted(directory.glob("damaged-*"))
        for one in damaged:
            sys.stdout.write(f"{one.name} {json.dumps(wrong_rows(one, known))}\n")
            sys.stdout.flush()
    os._exit(0)  # nothing is closed
