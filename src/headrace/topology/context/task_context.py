"""State that the processors of a task share: the current record, the times, and their schedules.

Hot path: `begin` and `end` run for each record, but only in sub-topologies with processors.

Ownership: the generated code sets the current record, the operators of processors set its time, and
the schedules call the punctuators. All of this state ends with the task; values that must survive
it are numbers that are committed in the offset metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from headrace.topology.context.calls import Caller, NoCaller
from headrace.topology.context.punctuation import NEVER_MS, Schedule, Schedules
from headrace.topology.external_sink import SinkRow
from headrace.topology.functions import refuse_never_run

TimeKind = Literal["stream_time", "wall_clock"]
CallKind = Literal["init", "punctuator by stream time", "punctuator by wall clock"]
Start = Callable[[], None]
Close = Callable[[], None]


def _no_clock() -> int:
    raise LookupError("the processors of this task have no clock")


def _raise_failure(node: str, error: BaseException) -> None:  # noqa: ARG001
    raise error


def _raise_refusal(node: str, error: Exception, message: Any, row: SinkRow) -> None:  # noqa: ARG001
    raise error


class EmissionBudget:
    """Limit of the results that operators may emit without a record before the next commit.

    One record after a pause can close any number of windows. Their results are emitted over several
    commits, so that each transaction stays much shorter than its timeout. An operator calls `spend`
    for each such result, and stops when `is_spent` is true.

    Args:
        results: maximum number of results per commit; None for any number.
        now_ms: the wall clock.

    >>> budget = EmissionBudget(2)
    >>> budget.spend(), budget.is_spent, budget.spend(), budget.is_spent
    (None, False, None, True)
    >>> budget.renew()
    >>> budget.is_spent
    False
    """

    __slots__ = ("_limit", "_now_ms", "_since_ms", "count", "is_spent")

    def __init__(self, results: int | None = None, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._limit = results
        self._now_ms = now_ms
        self.renew()

    @property
    def is_bounded(self) -> bool:
        return self._limit is not None

    def renew(self) -> None:
        self.is_spent = False
        """Whether results have to wait for the next commit."""
        self.count = 0
        """Results since the last commit."""
        self._since_ms = 0

    def spend(self) -> None:
        self.count += 1
        if self._limit is None:
            return
        if self.count == 1:
            self._since_ms = self._now_ms()
        if self.count >= self._limit:
            self.is_spent = True
        elif not self.count % EMISSION_CHECK:
            self.is_spent = self._now_ms() - self._since_ms >= EMISSION_MS


RESULTS_PER_COMMIT = 10_000
"""Maximum number of results of closed windows and similar per commit: about 100 ms of work."""
EMISSION_MS = 500
"""Maximum time of emitting such results before a commit, if their processing is slow."""
EMISSION_CHECK = 8
"""Number of results between two checks of the clock."""


@dataclass(frozen=True, slots=True)
class LongCall:
    """Longest call of a processor outside of `process`.

    Args:
        node: The processor's name.
    """

    kind: CallKind
    node: str
    ms: int


@dataclass(slots=True, eq=False)
class TaskContext:
    """State shared by the processors of a task: current record, times, schedules.

    Args:
        task_id: Sub-topology and partition, such as ``0_3``.
        count: Adds to a counter of a node, by its name.
        stream_time: The largest timestamp that the task has seen, in milliseconds, or -1; at most
            `watermark`.
        watermark: The time up to which no record is outstanding; an upper bound of stream time.
            `NEVER_MS` if only the task's own records decide.
        failed: Called with the node and the error if a punctuator fails; returns if the task
            continues.
    """

    application_id: str = ""
    task_id: str = ""
    partition: int = 0
    settings: Mapping[str, object] = field(default_factory=dict)
    now_ms: Callable[[], int] = _no_clock
    request_commit: Callable[[], None] = lambda: None
    count: Callable[[str, str, float], None] = lambda *_: None
    stream_time: int = -1
    watermark: int = NEVER_MS
    failed: Callable[[str, BaseException], None] = _raise_failure
    calls: Caller = field(default_factory=NoCaller)
    emission: EmissionBudget = field(default_factory=EmissionBudget)
    """Shared by all tasks of a worker, because they commit together."""
    run_ended_early: bool = False
    """Whether the last run ended early, because it waited for external calls or its results must
    wait for a commit; the worker then checks the clock and the consumer before it continues."""
    record: Any = None
    """The current message; None in punctuators and while caches are flushed."""
    batched: Any = None
    """The `BatchedRecord` that is being forwarded; remains set if an error ends the task."""
    timestamp: int = -1
    """Time of the current record or punctuation of a processor."""
    is_punctuating: bool = False
    """Whether a punctuator is running."""
    node: str | None = None
    """The processor whose `init` is running or has just failed."""
    longest_call: LongCall | None = None
    """Longest call of a punctuator since the last commit, in wall-clock time."""
    longest_init: LongCall | None = None
    """Longest call of an `init` since the task started, in wall-clock time."""
    outbox: Any = None
    """The `Outbox` of a task that writes to an external sink."""
    on_row_rejected: Callable[[str, Exception, Any, SinkRow], None] = _raise_refusal
    """Called with the node, the error, the message and the row that an external sink rejects;
    returns if the row is skipped."""
    _by_stream_time: Schedules = field(default_factory=Schedules)
    _by_wall_clock: Schedules = field(default_factory=Schedules)
    _processors: list[tuple[str, Start, Close]] = field(default_factory=list)
    _started: int = 0
    _scheduled_flushes: dict[str, tuple[int, Callable[[], None]]] = field(default_factory=dict)

    # -- around each record ------------------------------------------------------------------

    def begin(self, record: Any, timestamp: int, /) -> None:
        self.record = record
        self.timestamp = timestamp
        if timestamp > self.stream_time < self.watermark:
            self.stream_time = min(timestamp, self.watermark)

    def end(self) -> None:
        """Finish a record after all of its results, and call the punctuators that are due."""
        self.record = None
        if self._by_stream_time.due_ms <= self.stream_time >= 0:
            call = partial(self._call, "punctuator by stream time")
            self._by_stream_time.run(self.stream_time, call)

    def advance(self, time: int) -> None:
        """Advance stream time without a record, and call the punctuators that are due."""
        if time > self.stream_time:
            self.stream_time = time
            self.end()

    # -- life cycle of the processors ----------------------------------------------------------

    def add(self, node: str, start: Start, close: Close) -> None:
        self._processors.append((node, start, close))

    def start(self) -> None:
        """Start the processors; called after the state is restored and before the first record."""
        for node, start, _ in self._processors:
            self.node = node
            self._started += 1
            begun_ms = self.now_ms()
            start()
            ms = self.now_ms() - begun_ms
            if self.longest_init is None or ms > self.longest_init.ms:
                self.longest_init = LongCall("init", node, ms)
        self.node = None

    def close(self) -> list[tuple[str, BaseException]]:
        failures: list[tuple[str, BaseException]] = []
        for node, _, close in self._processors[: self._started]:
            try:
                close()
            except (Exception, SystemExit) as error:  # a failing processor must not block the close
                failures.append((node, error))
        self._started = 0
        return failures

    # -- punctuation ---------------------------------------------------------------------------

    def schedule(self, kind: TimeKind, schedule: Schedule) -> None:
        (self._by_stream_time if kind == "stream_time" else self._by_wall_clock).add(schedule)

    @property
    def has_collected_rows(self) -> bool:
        """Whether rows are collected for a sink, so that their offsets must not be committed."""
        return self.outbox is not None and self.outbox.has_collected_rows

    @property
    def wall_due_ms(self) -> int:
        if not self._scheduled_flushes:
            return self._by_wall_clock.due_ms
        return min(
            self._by_wall_clock.due_ms, *(due_ms for due_ms, _ in self._scheduled_flushes.values())
        )

    def punctuate(self, now_ms: int) -> None:
        """Flush batches that are due, and call the wall-clock punctuators that are due."""
        due = [release for due_ms, release in self._scheduled_flushes.values() if due_ms <= now_ms]
        for release in due:
            release()
        self._by_wall_clock.run(now_ms, partial(self._call, "punctuator by wall clock"))

    def flush_at(self, node: str, due_ms: int, release: Callable[[], None]) -> None:
        """Schedule the flush of a node's collected records at a wall-clock time."""
        self._scheduled_flushes[node] = (due_ms, release)

    def cancel_flush(self, node: str) -> None:
        """Cancel the scheduled flush of a node."""
        self._scheduled_flushes.pop(node, None)

    def _call(self, kind: CallKind, schedule: Schedule, now_ms: int) -> None:
        begun_ms = self.now_ms()
        self.record = None
        self.timestamp = now_ms
        self.is_punctuating = True
        try:
            refuse_never_run(schedule.callback(now_ms))
        except BaseException as error:
            self.failed(schedule.node, error)
        finally:
            self.is_punctuating = False
            ms = self.now_ms() - begun_ms
            if self.longest_call is None or ms > self.longest_call.ms:
                self.longest_call = LongCall(kind, schedule.node, ms)
