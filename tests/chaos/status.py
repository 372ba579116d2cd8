"""What a worker says of itself, in a small file that both sides map into memory.

It survives the worker: after a SIGKILL it shows what the worker was doing when it died. The nemesis
writes one field, the step at which the worker is to kill itself.
"""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Self

STEPS = (
    "",
    "transaction_begun",
    "caches_flushed",
    "changelogs_written",
    "offsets_sent",
    "transaction_committed",
    "state_written",
    "records_restored",
    "restore_ended",
)
"""The worker's probes; a step is written as its place in this list."""

COMMIT_STEPS = STEPS[2:7]
"""The steps of a commit, in order."""


class Field(IntEnum):
    """The numbers in the file, eight bytes each."""

    PID = 0
    STARTED_NS = 1
    TASKS = 2
    RUNNING = 3
    """1 while all tasks process records."""
    IN_TRANSACTION = 4
    """1 from the begin of a transaction until its commit is in the local state."""
    TRANSACTIONS = 5
    COMMITS = 6
    COMMITTED_RECORDS = 7
    COMMITTED_NS = 8
    """When the last commit ended; wall clock."""
    STEP = 9
    """The last probe."""
    STEPS = 10
    """How many probes were passed."""
    RESTORED = 11
    """Restores that ended."""
    RESTORING = 12
    """Restores under way."""
    DIE_AT = 13
    """Written by the nemesis: the step to die at, 0 for none."""
    DIE_AFTER_MS = 14
    """Written by the nemesis: how long to wait at that step, so that the client's queue empties."""
    WALL_AHEAD_MS = 15
    """Written by the nemesis: how far the worker's clock on the wall is ahead of the machine's."""
    COUNTED_PROCESSED = 16
    """What the worker counts itself of tasks that read inputs: see `headrace.streams.facts`."""
    COUNTED_COMMITTED = 17
    COUNTED_OPEN = 18
    """Records that the commit under way holds; 0 while none is, so that it tells after a death
    whether a commit may have been made of which the worker has never heard."""
    COUNTED_UNDECIDED = 19
    COUNTED_RESTORED = 20
    COUNTED_REACTIONS = 21
    COUNTED_COMMITS = 22
    COUNTED_UNDECIDED_COMMITS = 23
    COUNTED_ABORTED = 24
    COUNTED_BEGUN = 28
    """1 while a transaction is open that is neither committed nor aborted."""
    TOLD_PROCESSED = 25
    """Records of which tasks said that they were processed, of the tasks that read inputs."""
    UNFINISHED = 26
    """Records that they had begun with and never said so, at most."""
    TOLD_RESTORED = 27
    """Records of which the listener of restores was told."""


_SIZE = 8 * len(Field)


class Status:
    """The numbers of one worker; `Field` says what they are."""

    def __init__(self, path: Path) -> None:
        if not path.exists() or path.stat().st_size < _SIZE:
            path.write_bytes(bytes(_SIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._map.close()

    def __getitem__(self, field: Field) -> int:
        return int(struct.unpack_from("q", self._map, 8 * field)[0])

    def __setitem__(self, field: Field, value: int) -> None:
        struct.pack_into("q", self._map, 8 * field, value)

    def add(self, field: Field, value: int = 1) -> None:
        """Add to a number; its owner alone does."""
        self[field] = self[field] + value

    @property
    def step(self) -> str:
        """The name of the last probe."""
        return STEPS[self[Field.STEP]]

    def clear(self) -> None:
        """Set everything to 0, for a new process."""
        self._map[:] = bytes(_SIZE)
