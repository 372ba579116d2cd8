"""Folds over windows of time: what all of them do as stream time goes on, and aligned windows.

Stream time is the operator's own: the largest timestamp that it has seen (trap 1), and not later
than the task's watermark. When a record or the watermark advances it, this happens in order, before
the record itself is looked at:

1. Windows that are closed now are emitted, if windows are emitted on close. However far stream
   time jumps, their rows are all still there.
2. Rows expire that no record can need any more: those whose window began longer ago than the
   store's retention.

A window is closed when stream time has passed its end by the grace period (trap 11). The start of
the last windows that were emitted is a number that is committed with the input offsets, so that
neither an abort nor a restart emits a window again, or loses one (traps 13 and 36). All windows of
a store have one size, so the order of their starts is that of their ends.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from headrace.topology.context.context import Headers, OperatorContext
from headrace.topology.context.operator_spec import RowKind
from headrace.topology.operators.stored_rows import FoldedTable
from headrace.topology.operators.windows.lateness import split_late
from headrace.topology.operators.windows.window_rows import NEVER, WindowRows

Emit = Literal["on_window_update", "on_window_close"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedFold(FoldedTable):
    """What the folds of windows have in common.

    Args:
        closes_after_ms: how far stream time is past a window's start when the window is closed.
        keep_ms: how far stream time is past a window's start at most while its row is kept; None
            keeps it for ever.
    """

    size_ms: int
    closes_after_ms: int
    keep_ms: int | None
    emit: Emit = "on_window_update"

    makes_windows: ClassVar[bool] = True
    rows_have_its_keys: ClassVar[bool] = True

    @property
    def close_wait_ms(self) -> int | None:
        """The grace period; an unlimited window is never closed."""
        return None if self.keep_ms is None else self.closes_after_ms - self.size_ms


class WindowedOperator:
    """What the operators of windows have in common."""

    __slots__ = (
        "_closed_to",
        "_closes_after_ms",
        "_dropped",
        "_emit_to",
        "_emitted",
        "_keep_ms",
        "_known",
        "_late",
        "_now",
        "_rows",
        "_task",
        "_time",
        "pending",
    )

    def __init__(self, context: OperatorContext, spec: WindowedFold) -> None:
        results, self._late = split_late(context.node, context.children)
        emits_closed = spec.emit == "on_window_close"
        self._rows = WindowRows(
            context,
            spec.store,
            spec.fold,
            size_ms=spec.size_ms,
            results=results,
            emits_closed=emits_closed,
        )
        self.pending: MutableMapping[Any, Any] = self._rows.pending
        self._dropped = context.dropped
        self._task = context.task
        self._closes_after_ms = spec.closes_after_ms
        self._keep_ms = spec.keep_ms
        self._emit_to = results if emits_closed else None
        self._emitted = context.number("emitted") if emits_closed else None
        self._known = False
        """Whether the earliest window that waits to be emitted was looked for on disk."""
        self._time = context.number("time")
        self._now = self._time.value
        self._closed_to = self._now - self._closes_after_ms if self._now >= 0 else -1
        """The latest start of a window that is closed."""
        if self._emitted is not None:
            # With a longer grace period than before, what was emitted stays closed.
            self._closed_to = max(self._closed_to, self._emitted.value)
        self._expire()

    def flush(self) -> None:
        """Forward everything that is held back."""
        self._rows.flush()

    def close_idle(self) -> None:
        """Close the windows that are open, as if stream time had passed the last one's end."""
        if self._keep_ms is None:
            return  # an unlimited window is never closed
        first = max(self._closed_to + 1, 0)
        last = max((start for start, _ in self._rows.buffer.by_time(first, NEVER - 1)), default=-1)
        if last >= 0:
            self._pass_time(max(self._now, last + self._closes_after_ms))

    def is_due(self, time: int, /) -> bool:
        """Return whether windows are emitted when stream time reaches `time`."""
        if self._emit_to is None:
            return False
        return time > self._now and not (
            self._known and self._rows.earliest > time - self._closes_after_ms
        )

    def held_from(self) -> int | None:
        """Return the start of the earliest window that waits for its end."""
        if self._emitted is None:
            return None
        if not self._known:
            self._known = True
            self._rows.earliest = self._earliest(self._emitted.value + 1)
        return None if self._rows.earliest == NEVER else self._rows.earliest

    def advance(self, time: int, /) -> None:
        """Advance stream time without a record."""
        if time > self._now:
            self._pass_time(time)

    @property
    def stream_time(self) -> int:
        """How far event time is."""
        return self._now

    def _pass_time(self, timestamp: int) -> None:
        """Let stream time go on: emit what is closed now, then let go of what is too old."""
        self._now = self._time.value = timestamp
        closed_to = timestamp - self._closes_after_ms
        if closed_to > self._closed_to:
            self._closed_to = closed_to
            if self._emit_to is not None:
                self._emit_closed()
        if self._keep_ms is not None and timestamp > self._keep_ms:
            self._rows.buffer.expire(timestamp - self._keep_ms)

    def _emit_closed(self) -> None:
        assert self._emit_to is not None
        assert self._emitted is not None
        rows, closed_to = self._rows, self._closed_to
        first = self._emitted.value + 1
        if not self._known:
            self._known = True
            rows.earliest = self._earliest(first)
        if rows.earliest > closed_to:
            return
        rows.emit(self._emit_to, first, closed_to)
        self._emitted.value = closed_to
        rows.earliest = self._earliest(closed_to + 1)

    def _earliest(self, start: int) -> int:
        found = self._rows.buffer.earliest(start)
        return NEVER if found is None else found

    def _expire(self) -> None:
        """Let go of what is too old at the beginning."""
        if self._keep_ms is not None and self._now > self._keep_ms:
            horizon = self._now - self._keep_ms
            if self._emitted is not None:
                # With a shorter grace period than before, more is closed than was emitted.
                horizon = min(horizon, self._emitted.value + 1)
            self._rows.buffer.expire(horizon)

    def _too_late(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        """Leave out a record that came after all its windows were closed."""
        self._dropped("late")
        if self._late is not None:
            self._late(key, value, None, timestamp, headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedFold(WindowedFold):
    """The fold of tumbling, hopping or unlimited windows.

    Args:
        advance_ms: from one start to the next; None where there is one window alone.
        start_ms: where that one window begins.
    """

    advance_ms: int | None
    start_ms: int = 0

    @property
    def row_kind(self) -> RowKind:
        """Where windows lie."""
        op = self.fold.word
        if self.advance_ms is None:
            spans = {"start": self.start_ms}
            return RowKind(f"{op} in an unlimited window", spans, frozenset(spans))
        grace = self.closes_after_ms - self.size_ms
        spans = {"size": self.size_ms, "advance": self.advance_ms}
        return RowKind(f"{op} in windows", {**spans, "grace": grace}, frozenset(spans))

    def make(self, context: OperatorContext) -> AlignedOperator:
        """Make the operator of one task."""
        return AlignedOperator(context, self)

    def starts_of(self) -> Callable[[int], Sequence[int]]:
        """A function that gives the starts of the windows of a time, the earliest first."""
        size, advance, only = self.size_ms, self.advance_ms, self.start_ms
        if advance is None:
            return lambda time: (only,) if time >= only else ()
        if advance == size:
            return lambda time: (time - time % advance,)
        before = size - advance

        def starts(time: int) -> range:
            first = time - before
            return range(first - first % advance if first > 0 else 0, time + 1, advance)

        return starts


class AlignedOperator(WindowedOperator):
    """Folds each record into the windows that its time lies in, each of them a row of its key.

    A null value is folded like any other (trap 5). A row's timestamp is the largest one of its
    records (trap 6).
    """

    __slots__ = ("_encode_key", "_fold", "_starts")

    def __init__(self, context: OperatorContext, spec: AlignedFold) -> None:
        super().__init__(context, spec)
        self._starts = spec.starts_of()
        self._encode_key = self._rows.encode_key
        self._fold = self._rows.fold

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        """Take one record."""
        if timestamp > self._now < self._task.watermark:
            self._pass_time(min(timestamp, self._task.watermark))
        starts = self._starts(timestamp)
        if not starts or starts[0] <= self._closed_to:
            starts = self._open(starts, key, value, timestamp, headers)
            if not starts:
                return
        key_bytes = self._encode_key(key)
        for start in starts:
            self._fold(key, key_bytes, start, value, timestamp, headers)

    def _open(
        self, starts: Sequence[int], key: Any, value: Any, timestamp: int, headers: Headers
    ) -> Sequence[int]:
        """The windows that are not closed; says what became of the record in the others."""
        if not starts:
            self._dropped("before the first window")
            return ()
        left = [start for start in starts if start > self._closed_to]
        if left:
            self._dropped("late for some of its windows")
        else:
            self._too_late(key, value, timestamp, headers)
        return left
