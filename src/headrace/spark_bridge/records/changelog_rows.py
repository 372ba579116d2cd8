"""Rows of a task's store as changelog records, read after all rows are written."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.state.codec import decode_timestamped
from headrace.state.timed import TimedBuffer
from headrace.state.versions import is_deletion, key_and_time
from headrace.streams.tasks.task import Task

_VERSION_ROWS = (b"\x00", b"\x01")
"""Key range of the rows of a versioned store; its index follows them."""


def changelog_rows(task: Task, store: str) -> Iterator[tuple[bytes, bytes | None, int]]:
    """Yield key, value and timestamp of each changelog record of a store without dirty rows.

    Expired windows and sessions are skipped. In a versioned store, a deletion is a null value at
    the time of the deletion.
    """
    buffer = task.buffer(store)
    assert not buffer.dirty, f"rows of {store} are not written"
    spec = next(s.spec for s in task.spec.stores if s.name == store)
    committed = task.state.store(store)
    if spec.layout == "versioned":
        for row_key, row in committed.scan(*_VERSION_ROWS):
            key, time = key_and_time(row_key)
            yield key, None if is_deletion(row) else row[1:], time
        return
    time_of = spec.rows.time_of
    horizon = buffer.horizon if isinstance(buffer, TimedBuffer) else 0
    for key, row in spec.rows.view(committed).scan():
        if time_of is None or time_of(key) >= horizon:
            timestamp, value = decode_timestamped(row)
            yield key, value, timestamp
