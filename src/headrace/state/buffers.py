"""Creation of the buffer that a store's layout requires, and the memory limit of their caches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace.state.buffer import Buffer, Coding
from headrace.state.spec import StoreSpec
from headrace.state.store import CommittedStore
from headrace.state.timed import TimedBuffer
from headrace.state.versioned import VersionedBuffer


def make_buffer(spec: StoreSpec, committed: CommittedStore, coding: Coding) -> Buffer:
    """Create the buffer that the layout of a store requires.

    Args:
        committed: The store's rows on disk, in their on-disk format.

    >>> from headrace.state.memory import MemoryTaskState
    >>> spec = StoreSpec("v", kind="memory", layout="versioned")
    >>> committed = MemoryTaskState([spec]).store("v")
    >>> type(make_buffer(spec, committed, Coding(encode=bytes, decode=bytes))).__name__
    'VersionedBuffer'
    """
    if spec.layout == "versioned":
        return VersionedBuffer(spec.name, committed, coding)
    if spec.rows.time_of is not None:
        return TimedBuffer(spec.name, committed, coding, layout=spec.rows)
    return Buffer(spec.name, committed, coding)


class BoundedCache(Protocol):
    """Cache of committed rows whose memory is limited."""

    def cached_bytes(self) -> int:
        """Estimate the memory of the cached rows."""

    def shrink_cache(self, limit_bytes: int) -> None:
        """Evict rows until the cache fits into `limit_bytes`."""


def bound_caches(caches: Iterable[BoundedCache], limit_bytes: int) -> None:
    """Shrink the largest caches to 7/8 of an exceeded limit, so that the next call need not."""
    sizes = [(cache.cached_bytes(), cache) for cache in caches]
    if sum(size for size, _ in sizes) <= limit_bytes:
        return
    room = limit_bytes * 7 // 8
    smallest_first = sorted(sizes, key=lambda sized: sized[0])
    for remaining, (size, cache) in zip(range(len(sizes), 0, -1), smallest_first, strict=True):
        share = min(size, room // remaining)
        if share < size:
            cache.shrink_cache(share)
        room -= share
