"""Deduplicating and sampling a stream, read one record at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from headrace.topology.serdes import Serde
from tests.reference import streams
from tests.reference.engine import PerTask, Task

MS = timedelta(milliseconds=1)


@dataclass
class Known:
    """What one task knows: how far it has come, and when records of each id went on."""

    now: int = -1
    times: dict[tuple[bytes, Any], list[int]] = field(default_factory=dict)


def deduplicated(
    stream: streams.Stream,
    *,
    within: timedelta,
    store: str,
    name: str,
    key: Callable[[Any], Any] | None = None,
    grace: timedelta = timedelta(0),
    key_serde: streams.Key = None,
    **_: Serde[Any],
) -> streams.Stream:
    """See `KStream.deduplicate`."""
    within_ms, grace_ms = within // MS, grace // MS
    serde = key_serde or stream.key
    read = stream.repartition(name=name, key=serde) if stream.rekeyed else stream
    read.keep_keyless()
    result = read._then(node=name)
    result.key = serde
    stream.engine.meet(f"deduplicate {store}", read.lies_by)
    known: PerTask = PerTask(Known)
    encode = (serde or stream.engine.default_key).serialize

    def receive(task: Task, own: Any, value: Any, timestamp: int) -> None:
        identity = own if key is None or own is None else key(value)
        if own is None or identity is None:
            result.emit(task, own, value, timestamp)
            return
        one = known[task]
        one.now = max(one.now, timestamp)
        times = one.times.setdefault((encode(own), None if key is None else identity), [])
        times[:] = [time for time in times if time >= one.now - within_ms - grace_ms]
        if not any(abs(timestamp - time) <= within_ms for time in times):
            times.append(timestamp)
            result.emit(task, own, value, timestamp)

    read.followers.append(receive)
    return result


def sampled(stream: streams.Stream, fraction: float, *, by: str, name: str) -> streams.Stream:
    """See `KStream.sample`; by keys, as it is not known here in which serde a value was read."""
    assert by == "key"
    encode = (stream.key or stream.engine.default_key).serialize

    def goes_on(key: Any, _: Any) -> bool:
        data = b"" if key is None else encode(key)
        found = hashlib.blake2b(data, digest_size=8, person=b"headrace-sample").hexdigest()
        return int(found, 16) / 2**64 < fraction

    return stream.filter(goes_on, name=name)
