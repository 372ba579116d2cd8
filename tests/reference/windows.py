"""Windowed folds: each window of each key is a row, and stream time closes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.topology.windows import SessionWindows, TimeWindows, Window, Windowed
from tests.reference import streams
from tests.reference.engine import PerTask, Task
from tests.reference.functions import FailedError
from tests.reference.tables import Stored

FAR = 1 << 62

Late = Callable[["streams.Stream"], object]


@dataclass
class Clock:
    """What one task knows of time: how far it has come, and up to where windows were emitted."""

    now: int = -1
    emitted: int = -FAR


class WindowedTable(Stored):
    """The rows of windows, and what goes on of them.

    Args:
        stream: what is folded.
        store: the name of the rows.
        emit: when results go on.
        late: is given the stream of late records.
        close_order: by what closed windows go on, before their key.
    """

    def __init__(
        self,
        stream: streams.Stream,
        store: str,
        emit: str,
        late: Late | None,
        key: streams.Key,
    ) -> None:
        super().__init__(stream.engine, key, store, stream.lies_by)
        self.origins |= stream.origins
        self._on_close = emit == "on_window_close"
        # As the rows have it: a group may name another serde than its stream's.
        self._late = streams.Stream(stream.engine, key, stream.value, lies_by=stream.lies_by)
        self._late.origins = stream.origins
        if late is not None:
            late(self._late)
        self.clocks: PerTask = PerTask(Clock)
        self.closing = self
        self.after: list[Callable[[Task], None]] = []
        self._key_serde = key or stream.engine.default_key
        stream.followers.append(self._receive)
        stream.engine.may_be_gone[store] = self.is_closed

    def closed_at(self, window: Window) -> int:
        """The first stream time at which a window is closed."""
        raise NotImplementedError

    def fold(self, task: Task, key: Any, value: Any, timestamp: int) -> None:
        """Take a record into its windows."""
        raise NotImplementedError

    def is_closed(self, task: Task, key: Any) -> bool:
        """Whether a window takes nothing more."""
        now: int = self.clocks[task].now
        return self.closed_at(key.window) <= now

    def _receive(self, task: Task, key: Any, value: Any, timestamp: int) -> None:
        if key is None:
            return
        clock = self.clocks[task]
        if timestamp > clock.now:
            clock.now = timestamp
            self._emit_closed(task)
        self.fold(task, key, value, timestamp)
        for close in self.after:
            close(task)

    def _emit_closed(self, task: Task) -> None:
        if not self._on_close:
            return
        clock = self.clocks[task]
        rows = self.rows[task]
        closed = [key for key in rows if clock.emitted < self.closed_at(key.window) <= clock.now]
        encode = self._key_serde.serialize
        closed.sort(key=lambda w: (w.window.end_ms, encode(w.key)))
        for key in closed:
            value, timestamp = rows[key]
            with self.engine.under(()):  # not those of the record that moved stream time
                self.emit(task, key, value, None, timestamp)
        clock.emitted = clock.now

    def changed(self, task: Task, key: Any, value: Any, timestamp: int, old: Any) -> None:
        """Keep a row, and hand the change on where changes go on."""
        if value is None:
            self.rows[task].pop(key, None)
        else:
            self.rows[task][key] = (value, timestamp)
        if not self._on_close and (value is not None or old is not None):
            self.emit(task, key, value, old, timestamp)

    def too_late(self, task: Task, key: Any, value: Any, timestamp: int) -> None:
        """Hand on a record that no window takes."""
        self._late.emit(task, key, value, timestamp)


class Aligned(WindowedTable):
    """Tumbling and hopping windows; a null value is folded too."""

    def __init__(
        self,
        stream: streams.Stream,
        store: str,
        windows: TimeWindows,
        function: Callable[[Any, Any, Any], Any],
        emit: str,
        late: Late | None,
        key: streams.Key,
    ) -> None:
        super().__init__(stream, store, emit, late, key)
        self._windows = windows
        self._function = function

    def closed_at(self, window: Window) -> int:
        """The first stream time at which a window is closed."""
        return window.end_ms + self._windows.grace_ms

    def fold(self, task: Task, key: Any, value: Any, timestamp: int) -> None:
        """Take a record into its windows."""
        now = self.clocks[task].now
        windows = [
            Window(start, start + self._windows.size_ms)
            for start in range(0, timestamp + 1, self._windows.advance_ms)
            if start + self._windows.size_ms > timestamp
        ]
        there = [w for w in windows if self.closed_at(w) > now]
        if not there:
            self.too_late(task, key, value, timestamp)
        for window in there:
            row = Windowed(key, window)
            old, since = self.get(task, row)
            try:
                new = self._function(key, value, old)
            except FailedError:
                return
            if new is None and old is None:
                continue
            time = timestamp if old is None else max(timestamp, since)
            self.changed(task, row, new, time, old)


class Sessions(WindowedTable):
    """Sessions, and what they were before they grew together; a null value is folded too."""

    def __init__(
        self,
        stream: streams.Stream,
        store: str,
        windows: SessionWindows,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        merger: Callable[[Any, Any, Any], Any],
        emit: str,
        late: Late | None,
        key: streams.Key,
    ) -> None:
        super().__init__(stream, store, emit, late, key)
        self._windows = windows
        self._initializer = initializer
        self._aggregator = aggregator
        self._merger = merger

    def closed_at(self, window: Window) -> int:
        """The first stream time at which a session is closed."""
        return window.end_ms + self._windows.gap_ms + self._windows.grace_ms + 1

    def fold(self, task: Task, key: Any, value: Any, timestamp: int) -> None:
        """Take a record into its session."""
        now, gap = self.clocks[task].now, self._windows.gap_ms
        reached = sorted(
            (
                row
                for row in self.rows[task]
                if row.key == key
                and self.closed_at(row.window) > now
                and row.window.end_ms >= timestamp - gap
                and row.window.start_ms <= timestamp + gap
            ),
            key=lambda row: row.window.end_ms,
        )
        if not reached and self.closed_at(Window(timestamp, timestamp)) <= now:
            self.too_late(task, key, value, timestamp)
            return
        window = Window(
            min([timestamp, *(row.window.start_ms for row in reached)]),
            max([timestamp, *(row.window.end_ms for row in reached)]),
        )
        try:
            aggregate = self._initializer()
            for row in reached:
                aggregate = self._merger(key, aggregate, self.get(task, row)[0])
            aggregate = self._aggregator(key, value, aggregate)
        except FailedError:
            return
        before = self.get(task, Windowed(key, window))[0]
        for row in reached:
            if row.window != window:
                self.changed(task, row, None, row.window.end_ms, self.get(task, row)[0])
        self.changed(task, Windowed(key, window), aggregate, window.end_ms, before)
