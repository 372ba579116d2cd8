"""What windows, sessions, joins and tallies of a faultless run come to, step by step.

Written apart from the checker, which looks at a whole partition at once: here each record changes
what there is, and says what comes out at this moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from tests.chaos import application as app


class Writes(Protocol):
    """Where a task writes to."""

    def keep(self, store: str, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Change a row."""

    def tell(self, topic: str, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Write a result at once."""

    def hold(self, topic: str, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Write a result at once, or at the commit where there are caches."""


def long(number: int) -> bytes:
    """A number as Java's Long."""
    return number.to_bytes(8, "big")


@dataclass(slots=True)
class Session:
    """A session of a key."""

    key: bytes
    start: int
    end: int
    count: int

    @property
    def row(self) -> bytes:
        """The key of its row."""
        return self.key + long(self.end) + long(self.start)


@dataclass(slots=True)
class Waiting:
    """An order that waits for a payment."""

    key: bytes
    time: int
    n: int

    @property
    def row(self) -> bytes:
        """The key of the row where it waits: left sides are marked by a one."""
        return long(self.time) + b"\x01" + self.key


@dataclass(slots=True)
class PerfectWindows:
    """What the tasks of one partition know; nothing is ever taken back."""

    time: int = -1
    windows: dict[tuple[bytes, int], list[int]] = field(default_factory=dict)
    closed: dict[tuple[int, bytes], list[int]] = field(default_factory=dict)
    emitted: set[tuple[int, bytes]] = field(default_factory=set)
    sessions: list[Session] = field(default_factory=list)
    held: list[Session] = field(default_factory=list)

    def take(self, out: Writes, key: bytes, timestamp: int) -> None:
        """Take an order."""
        self.time = max(self.time, timestamp)
        self._emit_closed(out)
        self._count_window(out, key, timestamp)
        self._count_closed(out, key, timestamp)
        self._count_session(out, key, timestamp)
        self._emit_sessions(out)

    def _count_window(self, out: Writes, key: bytes, timestamp: int) -> None:
        start = timestamp - timestamp % app.WINDOW_MS
        if self.time - start >= app.WINDOW_MS + app.WINDOW_GRACE_MS:
            return
        times = self.windows.setdefault((key, start), [])
        times.append(timestamp)
        latest = max(times)
        out.keep("windows", key + long(start) + bytes(4), long(len(times)), latest)
        out.hold("window-counts", key + long(start), long(len(times)), latest)

    def _count_closed(self, out: Writes, key: bytes, timestamp: int) -> None:
        start = timestamp - timestamp % app.CLOSED_MS
        if self.time - start >= app.CLOSED_MS + app.CLOSED_GRACE_MS:
            return
        times = self.closed.setdefault((start, key), [])
        times.append(timestamp)
        out.keep("closed", key + long(start) + bytes(4), long(len(times)), max(times))

    def _emit_closed(self, out: Writes) -> None:
        for start, key in sorted(self.closed.keys() - self.emitted):
            if self.time - start >= app.CLOSED_MS + app.CLOSED_GRACE_MS:
                self.emitted.add((start, key))
                times = self.closed[start, key]
                out.tell("closed-counts", key + long(start), long(len(times)), max(times))

    def _is_open(self, end: int) -> bool:
        return end + app.SESSION_GAP_MS + app.SESSION_GRACE_MS >= self.time

    def _count_session(self, out: Writes, key: bytes, timestamp: int) -> None:
        gap = app.SESSION_GAP_MS
        own = [s for s in self.sessions if s.key == key and self._is_open(s.end)]
        near = [s for s in own if s.start - gap <= timestamp <= s.end + gap]
        if not near and not self._is_open(timestamp):
            return
        for session in near:
            self.sessions.remove(session)
            self.held.remove(session)
            out.keep("sessions", session.row, None, timestamp)
            out.keep("held-sessions-store", session.row, None, timestamp)
        ends = [timestamp, *(s.end for s in near)]
        starts = [timestamp, *(s.start for s in near)]
        new = Session(key, min(starts), max(ends), 1 + sum(s.count for s in near))
        self.sessions.append(new)
        self.held.append(new)
        out.keep("sessions", new.row, long(new.count), new.end)
        out.keep("held-sessions-store", new.row, b"held", new.end)

    def _emit_sessions(self, out: Writes) -> None:
        for session in sorted(self.held, key=lambda s: (s.end, s.row)):
            if not self._is_open(session.end):
                self.held.remove(session)
                out.keep("held-sessions-store", session.row, None, session.end)
                out.tell("session-counts", session.row, long(session.count), session.end)


@dataclass(slots=True)
class PerfectJoin:
    """The join of the orders of one partition with its payments."""

    time: int = -1
    numbers: int = 0
    orders: list[tuple[bytes, int, int]] = field(default_factory=list)
    payments: list[tuple[bytes, int, int]] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)

    def take_order(self, out: Writes, key: bytes, n: int, timestamp: int) -> None:
        """Take an order."""
        self._advance(out, timestamp)
        low, high = timestamp - app.PAID_BEFORE_MS, timestamp + app.PAID_AFTER_MS
        met = [p for p in self.payments if p[0] == key and low <= p[1] <= high]
        for _, time, number in met:
            self._pair(out, key, n, number, max(time, timestamp))
        one = Waiting(key, timestamp, n)
        if not met and high + app.PAID_GRACE_MS < self.time:
            self._pair(out, key, n, None, timestamp)
        elif not met:
            self.waiting.append(one)
            out.keep(_WAITING, one.row, b"waits", timestamp)
        self.orders.append((key, timestamp, n))
        self._keep(out, "paid-this-join-store", key, timestamp)

    def take_payment(self, out: Writes, key: bytes, number: int, timestamp: int) -> None:
        """Take a payment."""
        self._advance(out, timestamp)
        low, high = timestamp - app.PAID_AFTER_MS, timestamp + app.PAID_BEFORE_MS
        for other, time, n in self.orders:
            if other == key and low <= time <= high:
                self._pair(out, key, n, number, max(time, timestamp))
                self._let_go(out, lambda w, k=key, t=time: (w.key, w.time) == (k, t))  # type: ignore[misc]
        self.payments.append((key, timestamp, number))
        self._keep(out, "paid-outer-other-join-store", key, timestamp)

    def _advance(self, out: Writes, timestamp: int) -> None:
        self.time = max(self.time, timestamp)
        wait = app.PAID_AFTER_MS + app.PAID_GRACE_MS
        for one in self._let_go(out, lambda w: w.time + wait < self.time):
            self._pair(out, one.key, one.n, None, one.time)

    def _let_go(self, out: Writes, is_over: Callable[[Waiting], bool]) -> list[Waiting]:
        over = sorted((w for w in self.waiting if is_over(w)), key=lambda w: (w.time, w.key))
        self.waiting = [w for w in self.waiting if not is_over(w)]
        for one in over:
            out.keep(_WAITING, one.row, None, one.time)
        return over

    def _keep(self, out: Writes, store: str, key: bytes, timestamp: int) -> None:
        self.numbers += 1
        row = key + long(timestamp) + self.numbers.to_bytes(4, "big")
        out.keep(store, row, b"kept", timestamp)

    def _pair(self, out: Writes, key: bytes, n: int, number: int | None, timestamp: int) -> None:
        value = orjson.dumps({"n": n, "payment": number})
        out.tell("order-payments", key, value, timestamp)


_WAITING = "paid-left-shared-join-store"


@dataclass(slots=True)
class PerfectTally:
    """The tallies of one partition's task."""

    partition: int
    time: int = -1
    due: int = 0
    row: dict[str, int] | None = None

    def take_order(self, out: Writes, n: int) -> None:
        """Count an order."""
        row = self.row or {"number": 1, "count": 0, "sum": 0}
        self._set(out, {**row, "count": row["count"] + 1, "sum": row["sum"] + n})

    def pass_time(self, out: Writes, timestamp: int) -> None:
        """After each record of the task."""
        self.time = max(self.time, timestamp)
        if self.time < self.due:
            return
        self.due = (self.time // app.TALLY_MS + 1) * app.TALLY_MS
        if self.row is not None:
            out.tell("tallies", self._key, orjson.dumps(self.row), self.time)
            self._set(out, {"number": self.row["number"] + 1, "count": 0, "sum": 0})

    @property
    def _key(self) -> bytes:
        return f"task-{self.partition}".encode()

    def _set(self, out: Writes, row: dict[str, int]) -> None:
        self.row = row
        out.keep("tally", self._key, orjson.dumps(row), max(self.time, 0))


def tier_of(row: bytes | None) -> tuple[bytes, int] | None:
    """The tier of an account's row, and its limit."""
    if row is None:
        return None
    limit = orjson.loads(row)["limit"]
    return f"tier-{limit // app.TIER}".encode(), limit


def tier_changes(old: bytes | None, new: bytes | None) -> list[tuple[bytes, dict[str, Any]]]:
    """What tiers are told of a change of a row."""
    left, joined = tier_of(old), tier_of(new)
    if left is not None and joined is not None and left[0] == joined[0]:
        return [(left[0], {"old": left[1], "new": joined[1]})]
    told: list[tuple[bytes, dict[str, Any]]] = []
    if left is not None:
        told.append((left[0], {"old": left[1], "new": None}))
    if joined is not None:
        told.append((joined[0], {"old": None, "new": joined[1]}))
    return told
