"""The committed rows of a store, decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace.state.codec import decode_timestamped
from headrace.state.store import CommittedStore


def committed_rows(
    store: CommittedStore,
    decode: Callable[[bytes], Any],
    start: bytes | None = None,
    end: bytes | None = None,
) -> Iterable[tuple[bytes, Any, int]]:
    """Yield ``(key bytes, value, timestamp)`` of committed rows in the order of the keys."""
    for key, row in store.scan(start, end):
        timestamp, data = decode_timestamped(row)
        yield key, decode(data), timestamp
