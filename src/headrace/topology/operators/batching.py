"""Base of operators that batch the records of a run and forward the results in order.

    process ─► pending ─► joined ─► result ─► the nodes downstream
               until the batch is full, the run ends, or a flush

A run is the part of a polled batch that is processed without a pause.

The calls for a batch run together, so their latencies overlap. A flush forwards all results, so no
call is in flight at a commit, and no state must be restored: after an abort the calls are repeated
with the same idempotency keys.

Hot path: `process` runs for each record; everything else runs once per batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.topology.context.calls import Call
from headrace.topology.context.context import Headers, Operator, OperatorContext


class BatchedRecord:
    """A record that waits for its result.

    Args:
        message: the input message that it comes from; None after a cache or a punctuator.
        record: key, value, timestamp and headers.
        number: its number among the records that come from the message.
        task_time: the task's current timestamp when the record arrived.
    """

    __slots__ = ("error", "message", "number", "record", "task_time", "value")

    def __init__(
        self, message: Any, record: tuple[Any, Any, int, Headers], number: int, task_time: int
    ) -> None:
        self.message = message
        self.record = record
        self.number = number
        self.task_time = task_time
        self.value: Any = None
        self.error: BaseException | None = None

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value

    def call(self, context: OperatorContext, attempt: int) -> Call:
        message = self.message
        known = message is not None
        return Call(
            application_id=context.task.application_id,
            node=context.node,
            topic=message.topic() if known else None,
            partition=message.partition() if known else None,
            offset=message.offset() if known else None,
            number=self.number,
            attempt=attempt,
        )


class BatchingOperator(Operator):
    """Base of operators that batch records.

    Args:
        limit: maximum number of records in a batch.
        flush_each_record: whether each record is its own batch.
        wait_ms: how long a batch may wait for records of further runs; None does not wait.
    """

    __slots__ = (
        "_context",
        "_flush_batch",
        "_last",
        "_limit",
        "_number",
        "_task",
        "_wait_ms",
        "is_full",
        "pending",
    )

    def __init__(
        self,
        context: OperatorContext,
        limit: int,
        *,
        flush_each_record: bool,
        wait_ms: int | None = None,
    ) -> None:
        self._context = context
        self._task = context.task
        self._limit = 1 if flush_each_record or not context.task.calls.batches_records else limit
        self._wait_ms = None if context.flush_each_run else wait_ms
        self._last: Any = None
        self._number = 0
        self._flush_batch: Any = None
        self.pending: dict[int, BatchedRecord] = {}
        self.is_full = False
        """Whether the batch must be forwarded now; checked after each record."""

    def released_by(self, release: Any) -> None:
        """Set the function that forwards the results of the batch."""
        self._flush_batch = release

    @property
    def ends_with_run(self) -> bool:
        return bool(self.pending) and self._wait_ms is None

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        task, pending = self._task, self.pending
        message = task.record
        count = len(pending)
        # Records of a message arrive one after the other, unless some of them were forwarded.
        if message is not None and message is self._last:
            self._number += 1
        else:
            self._last, self._number = message, 0
        record = (key, value, timestamp, headers)
        pending[count] = BatchedRecord(message, record, self._number, task.timestamp)
        if count == 0 and self._wait_ms is not None:
            task.flush_at(self._context.node, task.now_ms() + self._wait_ms, self._flush_batch)
        self.is_full = count + 1 >= self._limit

    def joined(self) -> Iterator[BatchedRecord]:
        """End the batch and yield its records with their results.

        While a record is forwarded, the task has the message and the time of its arrival.
        """
        if not self.pending:
            return
        task = self._task
        task.cancel_flush(self._context.node)
        if self._limit > 1:
            task.run_ended_early = True
        records = list(self.pending.values())
        self.pending.clear()
        self.is_full = False
        records = self._run_batch(records)
        outer = task.record, task.timestamp
        try:
            for batched in records:
                task.record, task.timestamp = batched.message, batched.task_time
                task.batched = batched
                yield batched
            task.batched = None  # not after an error, which is reported with this record
        finally:
            task.record, task.timestamp = outer

    def _run_batch(self, records: list[BatchedRecord]) -> list[BatchedRecord]:
        """Set the results of some records; return the records in the order to forward them."""
        raise NotImplementedError

    def flush(self) -> None:
        self._flush_batch()
