"""What `test_crashes` starts and kills; each line it prints is a promise to hold afterwards."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.spec import StoreSpec
from headrace.state.store import Position

STORES = ("a", "b")
KEYS = [b"key-%05d" % n for n in range(2_000)]


def opened(path: Path) -> RocksTaskState:
    memory = RocksMemory(block_cache_bytes=8 << 20, write_buffer_bytes=16 << 20)
    return RocksTaskState(path, [StoreSpec(name) for name in STORES], memory=memory)


def at(offset: int) -> Position:
    return Position("topic", offset, offset, 1_000 + offset)


def commit(state: RocksTaskState, offset: int) -> None:
    """Write every row of both stores, and say in each which commit it is."""
    rows = [(key, b"%d" % offset) for key in KEYS]
    state.write(dict.fromkeys(STORES, rows), dict.fromkeys(STORES, at(offset)))


def say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def writes(state: RocksTaskState) -> None:
    for offset in count(1):
        commit(state, offset)
        say(offset)


def restore_over_old(state: RocksTaskState) -> None:
    """Leave an old position under rows that are newer, as far as they come."""
    commit(state, 1)
    state.begin_restore()
    for offset in count(2):
        state.restore({"a": [(key, b"%d" % offset) for key in KEYS]})
        say(offset)


def restore_from_nothing(state: RocksTaskState) -> None:
    state.begin_restore()
    for offset in count(1):
        state.restore({"a": [(key, b"%d" % offset) for key in KEYS]})
        say(offset)


def restore_then_write(state: RocksTaskState) -> None:
    """Restore all rows, end, then commit one more row: the position claims them all."""
    state.begin_restore()
    for name in STORES:
        state.restore({name: [(key, b"restored") for key in KEYS]})
    state.end_restore(dict.fromkeys(STORES, at(1)))
    state.write({"a": [(b"one more", b"1")]}, {"a": at(2)})
    say("written")
    for offset in count(3):
        state.write({}, {"a": at(offset)})


def restore_given_up_then_another(state: RocksTaskState) -> None:
    """Give up a restore of one store, restore the other, then commit to the first."""
    state.begin_restore()
    state.restore({"a": [(key, b"restored") for key in KEYS]})
    state.end_restore({"a": at(1)})
    state.begin_restore()
    state.restore({"a": [(b"given up", b"1")]})
    state.begin_restore()
    state.restore({"b": [(key, b"restored") for key in KEYS]})
    state.end_restore({"b": at(1)})
    state.write({"a": [(b"one more", b"1")]}, {"a": at(2)})
    say("written")
    for offset in count(3):
        state.write({}, {"a": at(offset)})


def drops(state: RocksTaskState) -> None:
    for offset in count(1):
        commit(state, offset)
        say(offset)
        state.drop_store("a")


if __name__ == "__main__":
    globals()[sys.argv[1]](opened(Path(sys.argv[2])))
