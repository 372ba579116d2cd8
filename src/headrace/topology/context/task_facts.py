"""What the processors of one task share: the record under way, the times, and their schedules.

Hot path: `begin` and `end` run for each record, in sub-topologies with processors alone.

Who owns what: the generated code says which record is under way, `Processor` operators which time
the record at hand has, the schedules when punctuators run. All of it dies with the task; what must
outlast it is in numbers that are committed beside the input offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    raise LookupError("nobody told the processors of this task what time it is")


def _fail(node: str, error: BaseException) -> None:  # noqa: ARG001
    raise error


def _refuse(node: str, error: Exception, message: Any, row: SinkRow) -> None:  # noqa: ARG001
    raise error


@dataclass(frozen=True, slots=True)
class LongCall:
    """The longest call of a processor outside of `process`.

    Args:
        node: the processor's.
    """

    kind: CallKind
    node: str
    ms: int


@dataclass(slots=True, eq=False)
class TaskFacts:
    """State that the processors of one task share: current record, times, schedules.

    Args:
        application_id: the application's.
        task_id: sub-topology and partition, as ``0_3``.
        partition: the number of the input partitions.
        settings: of the application, as they were given.
        now_ms: tells the wall-clock time in milliseconds since 1970.
        request_commit: asks for a commit soon.
        count: adds to a number of a node, by its name.
        stream_time: the largest timestamp that the task has seen, in milliseconds, or -1; not
            later than `watermark`.
        watermark: the time up to which no record is outstanding: stream time is never later.
            `NEVER_MS` where the task's own records alone decide.
        failed: called with the node and the error where a punctuator fails; returns where the
            task is to go on.
        calls: makes the calls of steps that gather records.
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
    failed: Callable[[str, BaseException], None] = _fail
    calls: Caller = field(default_factory=NoCaller)
    has_waited: bool = False
    """Whether calls have been waited for in this run, so that what is left of it had better wait
    for a look at the clock and the consumer."""
    record: Any = None
    """The message that is processed now; None in punctuators and while caches are flushed."""
    timestamp: int = -1
    """The time of the record, or of the punctuation, that is at hand in a processor now."""
    is_punctuating: bool = False
    """Whether a punctuator runs now."""
    node: str | None = None
    """The processor whose `init` runs, or has just failed."""
    longest_call: LongCall | None = None
    """Of a punctuator since the last commit, by the wall clock."""
    longest_init: LongCall | None = None
    """Of an `init` since the task began, by the wall clock."""
    outbox: Any = None
    """The `Outbox` of a task that writes to a table outside of Kafka."""
    refused: Callable[[str, Exception, Any, SinkRow], None] = _refuse
    """Called with the node, the error, the message and the row that such a table refuses; returns
    where the others are to go on."""
    _by_stream_time: Schedules = field(default_factory=Schedules)
    _by_wall_clock: Schedules = field(default_factory=Schedules)
    _processors: list[tuple[str, Start, Close]] = field(default_factory=list)
    _started: int = 0
    _gathered: dict[str, tuple[int, Callable[[], None]]] = field(default_factory=dict)

    # -- around each record ------------------------------------------------------------------

    def begin(self, record: Any, timestamp: int, /) -> None:
        """A record is processed now."""
        self.record = record
        self.timestamp = timestamp
        if timestamp > self.stream_time < self.watermark:
            self.stream_time = min(timestamp, self.watermark)

    def end(self) -> None:
        """The record is done, with all that followed from it: let punctuators run that are due."""
        self.record = None
        if self._by_stream_time.due_ms <= self.stream_time >= 0:
            self._by_stream_time.run(self.stream_time, self._call_by_stream_time)

    def advance(self, time: int) -> None:
        """Advance stream time without a record, and call the punctuators that are due."""
        if time > self.stream_time:
            self.stream_time = time
            self.end()

    # -- the life of the processors ------------------------------------------------------------

    def add(self, node: str, start: Start, close: Close) -> None:
        """Have a processor started and closed with the task."""
        self._processors.append((node, start, close))

    def start(self) -> None:
        """Start the processors: the state is complete, and records come next."""
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
        """Close the processors that were started; returns what went wrong, by node."""
        failures: list[tuple[str, BaseException]] = []
        for node, _, close in self._processors[: self._started]:
            try:
                close()
            except (Exception, SystemExit) as error:  # nothing may keep a task from ending
                failures.append((node, error))
        self._started = 0
        return failures

    # -- punctuation ---------------------------------------------------------------------------

    def schedule(self, kind: TimeKind, schedule: Schedule) -> None:
        """Have a punctuator called from its due time on."""
        (self._by_stream_time if kind == "stream_time" else self._by_wall_clock).add(schedule)

    @property
    def is_held(self) -> bool:
        """Whether rows of the task are collected for a sink, so that no commit may be past them."""
        return self.outbox is not None and self.outbox.is_held

    @property
    def wall_due_ms(self) -> int:
        """When `punctuate` has something to do next."""
        if not self._gathered:
            return self._by_wall_clock.due_ms
        return min(self._by_wall_clock.due_ms, *(due_ms for due_ms, _ in self._gathered.values()))

    def punctuate(self, now_ms: int) -> None:
        """Release what has been gathered long enough, and call the punctuators that are due."""
        due = [release for due_ms, release in self._gathered.values() if due_ms <= now_ms]
        for release in due:
            release()
        self._by_wall_clock.run(now_ms, self._call_by_wall_clock)

    def release_at(self, node: str, due_ms: int, release: Callable[[], None]) -> None:
        """Have what a step has gathered released at a time, unless it is before that."""
        self._gathered[node] = (due_ms, release)

    def released(self, node: str) -> None:
        """Nothing that a step has gathered waits any more."""
        self._gathered.pop(node, None)

    def _call_by_stream_time(self, schedule: Schedule, now_ms: int) -> None:
        self._call(schedule, now_ms, "punctuator by stream time")

    def _call_by_wall_clock(self, schedule: Schedule, now_ms: int) -> None:
        self._call(schedule, now_ms, "punctuator by wall clock")

    def _measure(self, kind: CallKind, node: str, begun_ms: int) -> None:
        ms = self.now_ms() - begun_ms
        if self.longest_call is None or ms > self.longest_call.ms:
            self.longest_call = LongCall(kind, node, ms)

    def _call(self, schedule: Schedule, now_ms: int, kind: CallKind) -> None:
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
            self._measure(kind, schedule.node, begun_ms)
