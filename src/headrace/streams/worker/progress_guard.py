"""Guard against work that takes so long that it can never be committed.

The broker aborts a transaction that is open for longer than transaction.timeout.ms, and the group
removes a member that does not poll within max.poll.interval.ms. The aborted work is then repeated,
takes as long again, and its output is aborted again. So:

    after one abort       chunks restart with one record, as the first chunk may have been too large
    after two aborts      each record is committed separately, for as many records as were aborted
    two aborts of a single record     the worker stops and names the record

A wall-clock punctuator has no record. After a slow call, a commit precedes the next call, so that
its time is measured separately and no record is repeated with it. If it takes too long three times
in a row, the worker stops and names it.

The worker's own clock determines which aborts are caused by its work. Only time in operators and
user code counts, not time spent waiting for brokers: an outage is not caused by records.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import ConfigError, RecordError, StreamsError
from headrace.streams.kafka.adaptive_batch_size import (
    FIRST_RECORDS,
    AdaptiveBatchSize,
    acknowledged,
)
from headrace.streams.kafka.protocols import Clock, Log, Producer, TopicPartition
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.failures import is_log_worthy
from headrace.streams.tasks.task import Task
from headrace.streams.tasks.task_failures import InputRange
from headrace.topology.context.task_context import LongCall

ISOLATE_AFTER = 2
HOPELESS_ALONE_AFTER = 2
PUNCTUATIONS_MAX = 3
"""Number of times in a row that a wall-clock punctuator may take too long."""
QUICK_PUNCTUATIONS = 20
"""Number of commits with quick calls after which a punctuator no longer counts as slow."""
HOPELESS_AFTER = 4
"""Limit if it is unknown whether a single record is the cause: markers have offsets, too."""
MAX_POLL, TRANSACTION = "consumer.max.poll.interval.ms", "producer.transaction.timeout.ms"

AttemptKey = tuple[str, tuple[tuple[TopicPartition, int], ...]]
"""A task and its start offsets, which are the same until something is committed."""


@dataclass(slots=True)
class _FailedAttempts:
    """Aborted attempts from the same committed offsets."""

    times: int = 0
    alone: int = 0
    """Number of these attempts with a single record or none."""

    @property
    def is_hopeless(self) -> bool:
        return self.alone >= HOPELESS_ALONE_AFTER or self.times >= HOPELESS_AFTER


@dataclass(frozen=True, slots=True)
class _Commit:
    """A commit in progress, with the measurements until its start.

    Args:
        in_flight: number of records that the brokers had not acknowledged at its start.
    """

    begun_s: float
    worked_s: float
    waited_s: float
    in_flight: int
    punctuated: Sequence[TaskId]
    """Tasks that have called a slow wall-clock punctuator."""


@dataclass(slots=True)
class _SlowPunctuator:
    """Statistics of a task's slow wall-clock punctuator.

    Args:
        times: how many slow calls in a row took too long.
        quick: how many commits since then had only quick calls.
    """

    times: int = 0
    quick: int = 0


class ProgressGuard:
    """Guard against work that takes too long to ever be committed.

    Args:
        first_records: the number of records of the first transaction, under exactly-once.
    """

    def __init__(
        self,
        config: StreamsConfig,
        *,
        first_records: int = FIRST_RECORDS,
        clock: Clock,
        log: Log,
    ) -> None:
        self._max_poll_s = config.max_poll_interval_ms / 1000
        self._transaction_s = config.transaction_timeout_ms / 1000 if config.exactly_once else None
        self._clock = clock
        self._log = log
        self._since_poll_s = 0.0
        self._since_commit_s = 0.0
        self._waited_s = 0.0
        """Time spent waiting for brokers during processing since the last commit."""
        self._commit: _Commit | None = None
        """The commit in progress."""
        self._taken = 0
        """Number of records in the transaction."""
        flush_s = config.task_timeout_ms / 1000
        self._batch = AdaptiveBatchSize(
            target_s=min(flush_s, self._transaction_s or flush_s) / 3,
            size=first_records if config.exactly_once else sys.maxsize,
            log=log,
            fields={"batch": "transaction", "unit": "input records"},
        )
        self._failed: dict[AttemptKey, _FailedAttempts] = {}
        self._slow_punctuators: dict[TaskId, _SlowPunctuator] = {}
        self._isolated_left = 0
        """Number of records that are each committed separately."""
        self._last: TaskId | None = None
        """The task that was processed last in an incomplete iteration."""
        self._aborts = 0

    # -- measurement ---------------------------------------------------------------------------

    @contextmanager
    def working(self, producer: Producer) -> Iterator[None]:
        begun_s, waited_s = self._clock.monotonic_s(), producer.waited_s
        try:
            yield
        finally:
            waited_s = producer.waited_s - waited_s
            took_s = self._clock.monotonic_s() - begun_s - waited_s
            self._since_poll_s += took_s
            self._since_commit_s += took_s
            self._waited_s += waited_s

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Measure time for max.poll.interval.ms only: the `init` of processors may take long."""
        begun_s = self._clock.monotonic_s()
        yield
        self._since_poll_s += self._clock.monotonic_s() - begun_s

    @property
    def isolates_records(self) -> bool:
        return self._isolated_left > 0

    @property
    def must_commit(self) -> bool:
        """Whether to commit and poll before more work, because the same amount may be too much."""
        if self.isolates_records or self._since_poll_s >= self._max_poll_s / 4:
            return True
        if self._taken >= self._batch.size:
            return True
        if self._transaction_s is None:
            return False
        return self._since_commit_s + self._waited_s >= self._transaction_s / 4

    @property
    def max_records(self) -> int:
        return max(1, self._batch.size - self._taken)

    def add_records(self, records: int) -> None:
        self._taken += records

    def ends_turn(self, task: Task) -> bool:
        """Return whether the remaining tasks must wait for the next iteration."""
        if self.must_commit:
            self._last = task.id
            return True
        return False

    def waiting_first(self, tasks: list[Task]) -> list[Task]:
        """Sort tasks so that tasks that had to wait are first."""
        last, self._last = self._last, None
        if last is None:
            return tasks
        return sorted(tasks, key=lambda task: (task.id <= last, task.id))

    def polled(self) -> None:
        self._since_poll_s = 0.0

    def nothing_to_commit(self) -> None:
        """Reset the measurement because sinks have batched all work for their own transactions."""
        self._reset()

    def has_slow_punctuator(self, task: Task) -> bool:
        return task.id in self._slow_punctuators

    def committing(self, producer: Producer, tasks: Sequence[Task]) -> None:
        now_s = self._clock.monotonic_s()
        self._commit = _Commit(
            now_s,
            self._since_commit_s,
            self._waited_s,
            producer.in_flight,
            self._find_slow_punctuators(tasks),
        )

    def _find_slow_punctuators(self, tasks: Sequence[Task]) -> Sequence[TaskId]:
        """Return tasks with slow punctuator calls since the last commit; drop quick tasks."""
        limit_s = min(self._max_poll_s, self._transaction_s or self._max_poll_s)
        slow_tasks = []
        for task in tasks:
            call = task.context.longest_call
            if call is None or call.kind != "punctuator by wall clock":
                continue
            if call.ms >= limit_s * 1000 / 8:
                slow_tasks.append(task.id)
                self._slow_punctuators.setdefault(task.id, _SlowPunctuator()).quick = 0
            elif (slow := self._slow_punctuators.get(task.id)) is not None:
                slow.quick += 1
                if slow.quick >= QUICK_PUNCTUATIONS:
                    del self._slow_punctuators[task.id]
        return slow_tasks

    def retry_budget(self, tasks: Sequence[Task]) -> list[InputRange]:
        """Return the input ranges that a commit completes, if an attempt was aborted before."""
        return [task.input_range() for task in tasks if task.moved] if self._failed else []

    def committed(self, tasks: Sequence[InputRange], records: int) -> None:
        """Record a completed commit; `tasks` is the result of `retry_budget` before it."""
        self._batch.succeeded(self._taken, self._brokers_s())
        for task_id in () if self._commit is None else self._commit.punctuated:
            self._slow_punctuators[task_id].times = 0
        self._reset()
        self._aborts = 0
        self._isolated_left = max(0, self._isolated_left - max(1, records))
        for task in tasks:
            self._failed.pop(_attempt_key(task), None)

    def _brokers_s(self) -> float:
        """Return the time that brokers took for the work since the last commit."""
        if self._commit is None:
            return self._waited_s
        commit = self._commit
        took_s = self._clock.monotonic_s() - commit.begun_s
        return commit.waited_s + took_s - (self._since_commit_s - commit.worked_s)

    def _reset(self) -> None:
        self._since_commit_s = self._waited_s = 0.0
        self._taken = 0
        self._commit = None

    # -- aborts --------------------------------------------------------------------------------

    def on_abort(self, tasks: Sequence[Task], producer: Producer) -> bool:
        """Record an abort, before the producer aborts; return whether work has taken too long."""
        self._find_slow_punctuators(tasks)
        self._aborts += 1
        self._batch.timed_out(self._taken, self._brokers_s(), taken=self._acknowledged(producer))
        setting, took_s, limit_s = MAX_POLL, self._since_poll_s, self._max_poll_s
        if took_s < limit_s and self._transaction_s is not None:
            setting, took_s, limit_s = TRANSACTION, self._since_commit_s, self._transaction_s
        self._since_poll_s = 0.0
        self._reset()
        if took_s < limit_s:
            self._warn_of_aborts()
            return False
        call = _longest_call((task.context.longest_call for task in tasks), took_s)
        if call is not None and call.kind == "punctuator by wall clock":
            self._count_slow_punctuation(tasks, call, setting, limit_s)
            return False
        # A punctuator has no records, and an `init` has no running task.
        ranges = [task.input_range() for task in tasks] or [_NO_RECORDS]
        moved = [input_range for input_range in ranges if input_range.ranges] or ranges
        records = sum(len(offsets) for task in moved for offsets in task.ranges.values())
        if call is None and not records:
            call = _longest_call((task.context.longest_init for task in tasks), took_s)
        times = [self._count_failure(task, records) for task in moved]
        self._log.warning(
            "work_took_too_long",
            took_s=round(took_s, 1),
            limit_s=limit_s,
            setting=setting,
            times=max((t.times for t in times), default=1),
            offsets=_describe_ranges(moved),
            advice=_TOO_LONG,
        )
        late = [task for task, t in zip(moved, times, strict=True) if t.is_hopeless]
        if late:
            raise _too_slow_error(late, setting, took_s, limit_s, max(t.times for t in times), call)
        if max((t.times for t in times), default=0) >= ISOLATE_AFTER:
            self._isolated_left = max(1, records)
        return True

    def _count_slow_punctuation(
        self, tasks: Sequence[Task], call: LongCall, setting: str, limit_s: float
    ) -> None:
        """Count a call that took too long; raise after `PUNCTUATIONS_MAX` in a row."""
        task = next(task for task in tasks if task.context.longest_call is call)
        slow = self._slow_punctuators.setdefault(task.id, _SlowPunctuator())
        slow.times = times = slow.times + 1
        seconds = call.ms / 1000
        self._log.warning(
            "punctuator_took_too_long",
            node=call.node,
            task=str(task.id),
            took_s=round(seconds, 1),
            limit_s=limit_s,
            setting=setting,
            times=times,
            advice=_PUNCTUATOR_TOO_LONG,
        )
        if times >= PUNCTUATIONS_MAX:
            raise ConfigError(
                f"a punctuator by wall clock took {seconds:.1f} s, and {setting} allows "
                f"{limit_s:g} s: it was called {times} times in a row and could never be committed "
                f"(node {call.node}, task {task.id}). Make it faster, have it do less in a call, "
                f"or set {setting} to more than {call.ms}{_limit_note(setting)}"
            )

    def _acknowledged(self, producer: Producer) -> int:
        """Estimate the number of input records of a failed commit that brokers have accepted."""
        if self._commit is None:
            return 0
        return acknowledged(self._taken, sent=self._commit.in_flight, left=producer.in_flight)

    def _count_failure(self, task: InputRange, records: int) -> _FailedAttempts:
        attempts = self._failed.setdefault(_attempt_key(task), _FailedAttempts())
        attempts.times += 1
        attempts.alone += records <= 1
        return attempts

    def _warn_of_aborts(self) -> None:
        if self._aborts >= 4 and is_log_worthy(self._aborts):
            self._log.warning("commits_failing", aborts=self._aborts, advice=_FAILING)


_TOO_LONG = (
    "nothing is lost. The records are processed again in smaller batches. Make the function "
    "faster, or raise the setting"
)
_PUNCTUATOR_TOO_LONG = (
    "nothing is lost. Earlier records are committed separately, and it is called again. Make it do "
    "less per call, or raise the setting"
)
_FAILING = (
    "nothing is lost, and nothing is committed. See the earlier warnings for the reason. The "
    "worker recovers automatically when a commit succeeds"
)
_NO_RECORDS = InputRange("", {}, {})


def _attempt_key(task: InputRange) -> AttemptKey:
    return task.task_id, tuple(sorted(task.begins.items()))


def _describe_ranges(tasks: Sequence[InputRange]) -> list[str]:
    ranges = [(tp, r) for task in tasks for tp, r in task.ranges.items()]
    return [f"{tp} {_describe_range(r)}" for tp, r in sorted(ranges, key=lambda found: found[0])]


def _describe_range(offsets: range) -> str:
    return f"{offsets[0]}" if len(offsets) == 1 else f"{offsets[0]} to {offsets[-1]}"


def _longest_call(calls: Iterable[LongCall | None], took_s: float) -> LongCall | None:
    """Return the longest call if it took at least half of the time."""
    longest = max((c for c in calls if c is not None), key=lambda c: c.ms, default=None)
    return longest if longest is not None and longest.ms >= took_s * 1000 / 2 else None


def _limit_note(setting: str) -> str:
    return " (at most the brokers' transaction.max.timeout.ms)" if setting == TRANSACTION else ""


def _too_slow_error(
    tasks: Sequence[InputRange],
    setting: str,
    took_s: float,
    limit_s: float,
    times: int,
    call: LongCall | None,
) -> StreamsError:
    task_id = ", ".join(sorted({task.task_id for task in tasks} - {""})) or None
    moved = {tp: r for task in tasks for tp, r in task.ranges.items()}
    in_call = ""
    if call is not None and moved:
        in_call = f", most of it in the {call.kind} of node {call.node}"
    what = (
        f"took {took_s:.1f} s of work{in_call}, and {setting} allows {limit_s:g} s: it was "
        f"done {times} times and could never be committed"
    )
    least_ms = f"{took_s * 1000:.0f}{_limit_note(setting)}"
    hint = f"make the functions faster, or set {setting} to more than {least_ms}"
    if not moved:
        of = f" of task {task_id}" if task_id else ""
        if call is not None:
            return ConfigError(f"the {call.kind} of node {call.node}{of} {what}; {hint}")
        return ConfigError(f"a punctuator, or the init of a processor,{of} {what}; {hint}")
    tp = min(moved)
    return RecordError(
        f"offsets {' and '.join(_describe_ranges(tasks))} {what}",
        topic=tp.topic,
        partition=tp.partition,
        offset=moved[tp][0],
        task_id=task_id,
        hint=f"nothing of it is committed: {hint}",
    )
