"""Making the buffer that a store's layout asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

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
    clean_limit_bytes: int = 16 << 20,
) -> Buffer:
    """The uncommitted writes of a store, over what is committed.

    Args:
        committed: its rows on disk, as they lie there.
        hold: whether values are held as they are, or as bytes.
        exact: the classes whose values `decode` gives back as they were.
        keep: gives what `decode` would make of a value's bytes, quicker; None makes it of both.
        clean_limit_bytes: the bound of the cache of committed rows.

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
        "clean_limit_bytes": clean_limit_bytes,
    }
    if spec.layout == "versioned":
        return VersionedBuffer(spec.name, committed, **options)
    if spec.rows.time_of is not None:
        return TimedBuffer(spec.name, committed, layout=spec.rows, **options)
    return Buffer(spec.name, committed, **options)
