"""From a batch of a changelog to rows on disk, beside a loop that fills a dictionary.

The batch is in memory. What RocksDB does in its own threads meanwhile is not in the figures.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Message

from benchmarks.micro.timing import Comparison, compare
from headrace.state.layout import LAYOUTS
from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.spec import StoreSpec
from headrace.streams.tasks.restore import changelog_changes

RECORDS = 5000
KEYS = 5_000_000
MEMORY_BYTES = 32 << 20


def batch() -> list[Message]:
    """Records of a changelog whose keys come in no order."""
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
    """What a restore does with a batch."""
    layout = LAYOUTS["plain"]
    state.begin_restore()
    return lambda: state.restore({"rows": layout.rows(changelog_changes(records))})  # type: ignore[arg-type]


def by_hand(records: list[Message]) -> Callable[[], object]:
    """What a program without a store does with it."""
    rows: dict[bytes, bytes] = {}

    def run() -> None:
        for m in records:
            rows[m.key()] = m.value()  # type: ignore[index, assignment]

    return run


def main() -> None:
    """Time the way of a changelog's records to disk."""
    memory = RocksMemory(block_cache_bytes=MEMORY_BYTES, write_buffer_bytes=MEMORY_BYTES)
    with tempfile.TemporaryDirectory() as directory:
        state = RocksTaskState(Path(directory), [StoreSpec("rows")], memory=memory)
        records = batch()
        compare(
            "restoring, ns per record",
            [Comparison("into one store", RECORDS, restored(state, records), by_hand(records))],
        )
        state.close()


if __name__ == "__main__":
    main()
