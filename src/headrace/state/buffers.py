"""Buffers of several stores: making the one that a layout asks for, and bounding their caches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

from headrace.state.buffer import ATOMS, Buffer
from headrace.state.spec import StoreSpec
from headrace.state.store import CommittedStore
from headrace.state.timed import TimedBuffer
from headrace.state.versioned import VersionedBuffer


def make_buffer(
    spec: StoreSpec,
    committed: CommittedStore,
    *,
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
    hold: Literal["objects", "bytes"] = "objects",
    exact: frozenset[type] = ATOMS,
    keep: Callable[[Any], Any] | None = None,
) -> Buffer:
    """The uncommitted writes of a store, over what is committed.

    Args:
        committed: its rows on disk, as they lie there.
        hold: whether values are held as they are, or as bytes.
        exact: the classes whose values `decode` gives back as they were.
        keep: gives what `decode` would make of a value's bytes, quicker; None makes it of both.

    >>> from headrace.state.memory import MemoryTaskState
    >>> spec = StoreSpec("v", kind="memory", layout="versioned")
    >>> committed = MemoryTaskState([spec]).store("v")
    >>> type(make_buffer(spec, committed, encode=bytes, decode=bytes)).__name__
    'VersionedBuffer'
    """
    options: dict[str, Any] = {
        "encode": encode,
        "decode": decode,
        "hold": hold,
        "exact": exact,
        "keep": keep,
    }
    if spec.layout == "versioned":
        return VersionedBuffer(spec.name, committed, **options)
    if spec.rows.time_of is not None:
        return TimedBuffer(spec.name, committed, layout=spec.rows, **options)
    return Buffer(spec.name, committed, **options)


class RowsKept(Protocol):
    """Committed rows that are in memory for reading."""

    def cached_bytes(self) -> int:
        """Estimate their memory."""

    def shrink_cache(self, limit_bytes: int) -> None:
        """Let go of some, until the others fit."""


def bound_caches(caches: Iterable[RowsKept], limit_bytes: int) -> None:
    """Let caches of committed rows have `limit_bytes` together: the small ones stay as they are.

    They are made a little smaller than that, so that it is not to be done again at once.
    """
    sizes = [(cache.cached_bytes(), cache) for cache in caches]
    if sum(size for size, _ in sizes) <= limit_bytes:
        return
    room = limit_bytes * 7 // 8
    smallest_first = sorted(sizes, key=lambda sized: sized[0])
    for left, (size, cache) in zip(range(len(sizes), 0, -1), smallest_first, strict=True):
        share = min(size, room // left)
        if share < size:
            cache.shrink_cache(share)
        room -= share
