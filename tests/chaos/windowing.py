"""What comes of windows and sessions: a partition's orders, in its order, in plain Python.

Stream time is the largest timestamp so far. A record for a window that is closed counts nowhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.expectations import Order


class Span(NamedTuple):
    """A window of a key, ordered as results are: by its end, then by its key's bytes."""

    end_ms: int
    key: bytes
    start_ms: int

    def __str__(self) -> str:
        return f"{self.key.decode(errors='replace')} from {self.start_ms} to {self.end_ms}"


def time_key(span: Span) -> bytes:
    """The key of a tumbling window in a topic.

    >>> time_key(Span(20, b"k", 10))
    b'k\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\n'
    """
    return span.key + span.start_ms.to_bytes(8, "big")


def session_key(span: Span) -> bytes:
    """The key of a session in a topic, and of its row."""
    return span.key + span.end_ms.to_bytes(8, "big") + span.start_ms.to_bytes(8, "big")


@dataclass(slots=True)
class Windows:
    """What a partition's orders come to.

    Args:
        counted: the orders of each window, as they came.
        time: stream time at the end.
    """

    counted: dict[Span, list[Order]] = field(default_factory=lambda: defaultdict(list))
    time: int = -1


def tumbling(orders: Iterable[Order], *, size_ms: int, grace_ms: int) -> Windows:
    """Count orders by tumbling windows.

    Args:
        orders: of one partition, in its order.
        size_ms: of each window.
        grace_ms: how far stream time is past a window's end when it is closed.
    """
    windows = Windows()
    for order in orders:
        windows.time = max(windows.time, order.timestamp)
        start = order.timestamp // size_ms * size_ms
        if start + size_ms + grace_ms > windows.time:
            windows.counted[Span(start + size_ms, order.key, start)].append(order)
    return windows


def closed(windows: Windows, wait_ms: int) -> list[tuple[Span, int]]:
    """The windows whose end stream time has passed by so much, as they come out, and their counts.

    >>> windows = Windows({Span(20, b"k", 10): [], Span(30, b"k", 20): []}, time=25)
    >>> closed(windows, 5)
    [(Span(end_ms=20, key=b'k', start_ms=10), 0)]
    """
    ended = (span for span in windows.counted if span.end_ms + wait_ms <= windows.time)
    return [(span, len(windows.counted[span])) for span in sorted(ended)]


def sessions(orders: Iterable[Order], *, gap_ms: int, grace_ms: int) -> Windows:
    """Count orders by sessions.

    Args:
        orders: of one partition, in its order.
        gap_ms: without orders, which ends a session.
        grace_ms: how far stream time is past a session's end and gap when it is closed.
    """
    windows = Windows()
    open_of: dict[bytes, list[Span]] = defaultdict(list)
    for order in orders:
        time = order.timestamp
        windows.time = max(windows.time, time)
        earliest = windows.time - gap_ms - grace_ms
        known = [span for span in open_of[order.key] if span.end_ms >= earliest]
        reached = [s for s in known if s.end_ms >= time - gap_ms and s.start_ms <= time + gap_ms]
        open_of[order.key] = known
        if not reached and time < earliest:
            continue
        span = Span(
            max([time, *(s.end_ms for s in reached)]),
            order.key,
            min([time, *(s.start_ms for s in reached)]),
        )
        merged = [one for s in reached for one in windows.counted.pop(s)]
        windows.counted[span] = [*merged, order]
        open_of[order.key] = [s for s in known if s not in reached] + [span]
    return windows
