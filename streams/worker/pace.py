"""How many records a worker processes before it looks at the clock and the consumer again."""

from __future__ import annotations

from dataclasses import dataclass, field

CHUNK_TARGET_S = 0.05
CHUNK_FIRST = 16
"""Small, and soon doubled: a slow function must not keep the first chunk for minutes."""


@dataclass(slots=True)
class Pace:
    """The size of the next chunk; `max_records` bounds it."""

    max_records: int
    chunk: int = field(init=False)

    def __post_init__(self) -> None:
        self.chunk = min(CHUNK_FIRST, self.max_records)

    def start_small(self) -> None:
        """Begin with single records: a chunk took so long that it was in vain."""
        self.chunk = 1

    def learn(self, records: int, seconds: float) -> None:
        """Aim at chunks that take a small part of the commit interval, whatever functions cost."""
        if records < self.chunk:
            return
        if seconds > CHUNK_TARGET_S:
            self.chunk = max(1, self.chunk // 2)
        elif seconds < CHUNK_TARGET_S / 2:
            self.chunk = min(self.max_records, self.chunk * 2)
