"""A sink of one's own, as docs/sinks.md has it: a file to which each batch is one line.

A line has the rows of a batch and its position, and a sum that tells a torn one. Who writes holds
a lock, so several workers may.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from zlib import crc32

from headrace import SinkBatch, SinkFencedError


class JournalSink:
    def __init__(self, path: str, *, keyed: bool = False) -> None:
        self.path, self.keyed = path, keyed

    def open(self, name: str, /) -> JournalConnection:
        return JournalConnection(os.open(self.path, os.O_RDWR | os.O_CREAT), name)


class JournalConnection:
    def __init__(self, file: int, name: str) -> None:
        self.file, self.name = file, name
        self.read_to, self.kept = 0, dict[str, int]()

    def catch_up(self) -> None:
        """Read what others have written; half a line is cut off."""
        with os.fdopen(os.dup(self.file), "rb") as lines:
            lines.seek(self.read_to)
            for line in lines:
                if not is_whole(line):
                    os.ftruncate(self.file, self.read_to)
                    return
                self.read_to += len(line)
                self.kept |= json.loads(line[9:])["at"]

    def positions(self, source: str, partitions: Sequence[int], /) -> Mapping[int, int]:
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            self.catch_up()
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)
        at = {one: f"{self.name} {source} {one}" for one in partitions}
        return {one: self.kept[place] for one, place in at.items() if place in self.kept}

    def write(self, batch: SinkBatch, /) -> None:
        place = f"{self.name} {batch.source} {batch.partition}"
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            self.catch_up()
            if self.kept.get(place) != batch.expected:
                raise SinkFencedError(f"{place} is not at {batch.expected}")
            rows = [[row.key, row.value] for row in batch.rows]
            text = json.dumps({"at": {place: batch.next}, "rows": rows}).encode() + b"\n"
            line = memoryview(b"%08x " % crc32(text) + text)
            written = 0
            while written < len(line):
                written += os.pwrite(self.file, line[written:], self.read_to + written)
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self.file)


def is_whole(line: bytes) -> bool:
    return line.endswith(b"\n") and line[:8] == b"%08x" % crc32(line[9:])
