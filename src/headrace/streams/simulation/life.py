"""One life of one worker, and what others than itself have seen of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headrace.streams.worker.worker import Worker


@dataclass(slots=True, eq=False)
class Life:
    """See the module.

    Args:
        name: the worker's.
        worker: it; None where the process ended before there was one.
        has_stopped: whether it ended because it was told to.
        steps: how often it passed each probe.
        events: what it logged, how often.
        producers: how many producers it made.
        restored: changelog records that its listener was told of.
    """

    name: str
    worker: Worker | None = None
    has_stopped: bool = False
    steps: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    producers: int = 0
    restored: int = 0
