"""Work of a worker in an iteration: records, punctuators, idle windows.

Hot path: `run` is called once per iteration, and processes some records of each task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from headrace.streams.errors import RecordRefusedError
from headrace.streams.kafka.adaptive_batch_size import AdaptiveBatchSize
from headrace.streams.tasks.task import Task
from headrace.streams.tasks.task_failures import refused_record
from headrace.streams.tasks.upstream_times import UpstreamTimes
from headrace.streams.tasks.window_idle import IdleWindows
from headrace.streams.worker.parts import WorkerParts

CHUNK_TARGET_S = 0.05
CHUNK_FIRST = 16
"""Small at first: a slow function must not process the first chunk for minutes."""
PARTIALS_S = 0.1
"""Seconds of pre-aggregation before a repartition topic that is read without a commit."""


class Processing:
    """Work of a loop iteration: records, punctuators, idle windows."""

    def __init__(
        self, parts: WorkerParts, *, upstream_times: UpstreamTimes, idle_windows: IdleWindows
    ) -> None:
        self._config = parts.config
        self._tasks = parts.tasks
        self._transactions = parts.transactions
        self._fetch = parts.fetch
        self._backpressure = parts.backpressure
        self._progress_guard = parts.progress_guard
        self._counters = parts.counters
        self._sink_writes = parts.sink_writes
        self._tracer = parts.dependencies.tracer
        self._clock = parts.dependencies.clock
        self._log = parts.dependencies.log
        self._upstream_times = upstream_times
        self._idle_windows = idle_windows
        self._partials_due_s = 0.0
        self._is_slow_turn = False
        """Whether the last iteration called a slow punctuator; the next processes records."""
        self._chunk = AdaptiveBatchSize(
            target_s=CHUNK_TARGET_S, size=CHUNK_FIRST, max_size=parts.config.max_poll_records
        )
        """Number of records of a task that are processed before the clock and the consumer are
        checked."""

    # -- a turn --------------------------------------------------------------------------------

    def run(self) -> int:
        """Process some records of each task, and call due punctuators; return the record count."""
        slow = self._slow_punctuators()
        self._is_slow_turn = bool(slow) and not self._is_slow_turn
        if self._is_slow_turn:
            # Earlier work is committed, so that an abort repeats only the punctuator.
            self._punctuate(slow[:1])
            processed, punctuated = 0, True
        else:
            self._emit_left()
            processed = self._process_each()
            punctuated = self._punctuate([t for t in self._tasks.running if t not in slow])
        if processed or punctuated:
            with self.attributing_errors():
                self._transactions.producer.apply_backpressure(self._config.task_timeout_ms / 1000)
        self._sink_writes.write_full()
        if not self._config.exactly_once:
            self._send_partials(processed)
        self._advance_watermarks()
        self._close_idle_windows()
        return processed

    def must_commit_first(self) -> bool:
        """Return whether a commit is needed before processing because a slow punctuator is due."""
        return not self._is_slow_turn and bool(self._slow_punctuators())

    def _slow_punctuators(self) -> Sequence[Task]:
        running = self._tasks.running
        return [t for t in running if self._progress_guard.has_slow_punctuator(t) and t.is_due()]

    def _process_each(self) -> int:
        processed = 0
        running = self._backpressure.downstream_first(self._tasks.running)
        feeding = sum(map(self._is_feeding, running))
        for task in self._progress_guard.waiting_first(running):
            must_wait = self._fetch.must_wait(task)
            if not task.queued():
                continue
            if must_wait:
                self._fetch.pause_queues(task)
                continue
            self._idle_windows.reset(task)
            if task.context.outbox is None:  # tasks with sinks send no records in a transaction
                self._transactions.begin()
            sharing = feeding if self._backpressure.is_limited(task) else 1
            processed += self._process_some(task, sharing)
            self._fetch.resume_queues(task)
            if self._progress_guard.ends_turn(task):
                break
        return processed

    def _emit_left(self) -> None:
        for task in self._tasks.running:
            if task.has_remaining_results():
                self._transactions.begin()
                with self.attributing_errors(), self.working():
                    task.emit_remaining()

    def _send_partials(self, processed: int) -> None:
        """Forward partial aggregates: every `PARTIALS_S`, or if no records were processed."""
        now_s = self._clock.monotonic_s()
        if processed and now_s < self._partials_due_s:
            return
        self._partials_due_s = now_s + PARTIALS_S
        with self.attributing_errors(), self.working():
            for task in self._tasks.running:
                task.send_partials()

    def _is_feeding(self, task: Task) -> bool:
        return self._backpressure.is_limited(task) and self._fetch.is_ready(task)

    def _process_some(self, task: Task, sharing: int) -> int:
        """Process a chunk, which writers of repartition topics share: lag must be checked early."""
        sharing = max(1, sharing)
        started = self._clock.monotonic_s()
        with self.attributing_errors(), self.working():
            share = -(-self._chunk.size // sharing)
            heads = task.heads()
            oldest_ms = min((head.timestamp()[1] for head in heads), default=-1)
            if self._tracer.samples:
                self._tracer.sample(heads)
            if (
                task.batches_records
            ):  # it ends after its first wait, and small batches would wait longer
                share = self._config.max_poll_records
            max_records = (
                self._progress_guard.max_records
                if task.context.outbox is None
                else self._sink_writes.max_records(task)
            )
            most = min(share, self._backpressure.max_records(task), max_records)
            count = task.process(1 if self._progress_guard.isolates_records else most)
            self._counters.ran(task.id, count, oldest_ms=oldest_ms)
            if count and not task.batches_records:
                seconds = self._clock.monotonic_s() - started
                self._chunk.succeeded(count * sharing, seconds * sharing)
            if task.context.outbox is None:
                self._progress_guard.add_records(count)
            self._backpressure.add_read(task, count)
            memory_bytes = task.caches_bytes() + task.partials_bytes(count)
            if memory_bytes > self._config.statestore_cache_max_bytes:
                task.flush()
        return count

    def _punctuate(self, tasks: Sequence[Task]) -> bool:
        due = [task for task in tasks if task.is_due()]
        for task in due:
            self._transactions.begin()
            with self.attributing_errors(), self.working():
                task.punctuate()
        return bool(due)

    def _advance_watermarks(self) -> None:
        for task, times, limit in self._upstream_times.turn():
            self._transactions.begin()
            with self.attributing_errors(), self.working():
                task.advance_watermarks(times, limit)

    def _close_idle_windows(self) -> None:
        due = self._idle_windows.due()
        if not due:
            return
        self._log.info("idle_windows_closed", tasks=[str(task.id) for task in due])
        for task in due:
            self._transactions.begin()
            with self.attributing_errors(), self.working():
                task.close_idle()

    # -- contexts of user code -----------------------------------------------------------------

    def working(self) -> AbstractContextManager[None]:
        return self._progress_guard.working(self._transactions.producer)

    @contextmanager
    def attributing_errors(self) -> Iterator[None]:
        """Attribute a record that was rejected after it was sent to its possible inputs."""
        try:
            yield
        except RecordRefusedError as error:
            ranges = [task.input_range() for task in self._tasks.running]
            raise refused_record(ranges, error, now_ms=self._clock.now_ms()) from error

    # -- aborts --------------------------------------------------------------------------------

    def on_abort(self) -> None:
        """Handle an abort: detect work that can never be committed, and shrink chunks."""
        if self._progress_guard.on_abort(self._tasks.running, self._transactions.producer):
            self._chunk.size = 1  # a chunk took so long that it was aborted

    def discard_uncommitted(self) -> None:
        self._tracer.discard()
        self._counters.discard_open()
