"""Restore of a batch, compared with a dictionary: ``python -m benchmarks.micro.restore``.

The batch of a changelog is in memory. Prints nanoseconds per record from the batch to RocksDB,
without the work of RocksDB's own threads.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Message

from benchmarks.micro.timing import TimedPair, print_times
from headrace.state.layout import LAYOUTS
from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.spec import StoreSpec
from headrace.streams.tasks.restore import changelog_changes

RECORDS = 5000
KEYS = 5_000_000
MEMORY_BYTES = 32 << 20


def batch() -> list[Message]:
    """Return records of a changelog with keys in random order."""
    rng = random.Random(1)
    return [
        Message(
            topic="changelog",
            partition=0,
            offset=number,
            key=b"key-%09d" % rng.randrange(KEYS),
            value=b"%d" % number,
            timestamp=(1, 1_700_000_000_000 + number),
        )
        for number in range(RECORDS)
    ]


def restored(state: RocksTaskState, records: list[Message]) -> Callable[[], object]:
    """Restore a batch as a task does."""
    layout = LAYOUTS["plain"]
    state.begin_restore()
    return lambda: state.restore({"rows": layout.rows(changelog_changes(records))})  # type: ignore[arg-type]


def fill_dict(records: list[Message]) -> Callable[[], object]:
    """Put the records into a dictionary."""
    rows: dict[bytes, bytes] = {}

    def run() -> None:
        for m in records:
            rows[m.key()] = m.value()  # type: ignore[index, assignment]

    return run


def main() -> None:
    """Time restores."""
    memory = RocksMemory(block_cache_bytes=MEMORY_BYTES, write_buffer_bytes=MEMORY_BYTES)
    with tempfile.TemporaryDirectory() as directory:
        state = RocksTaskState(Path(directory), [StoreSpec("rows")], memory=memory)
        records = batch()
        print_times(
            "restoring, ns per record",
            [TimedPair("into one store", RECORDS, restored(state, records), fill_dict(records))],
        )
        state.close()


if __name__ == "__main__":
    main()
