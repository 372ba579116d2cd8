"""Async map: calls an external service for each record, with many calls in flight.

The calls of a run run together, at most `concurrency` at a time, and all of them have ended before
the first result is forwarded. So results can keep the order of the records, and a commit waits for
at most one timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from headrace.topology.context.calls import CallPlan, ExternalCall
from headrace.topology.context.context import Operator, OperatorContext
from headrace.topology.context.environment import FailureReaction
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.operators.batching import BatchedRecord, BatchingOperator

Order = Literal["kept", "any"]


@dataclass(frozen=True, slots=True)
class UserFunction:
    """User function of an async map, and its arguments.

    Args:
        with_key: whether it takes the key before the value.
        with_call: whether it takes the identity of the call as ``call=``.
    """

    function: Callable[..., Any]
    with_key: bool
    with_call: bool

    def make(self, batched: BatchedRecord, context: OperatorContext, attempt: int) -> Any:
        key, value, _, _ = batched.record
        values = (key, value) if self.with_key else (value,)
        if not self.with_call:
            return self.function(*values)
        return self.function(*values, call=batched.call(context, attempt))


@dataclass(frozen=True, slots=True)
class MapAsync(OperatorSpec):
    """Spec of an async map.

    Args:
        order: order of the results: that of the records ("kept"), or that in which calls end
            ("any").
        fallback: called as ``fallback(value, error)`` after a call failed; returns the value.
        on_failure: the reaction to a failed call; None leaves it to the handler.
    """

    called: UserFunction
    plan: CallPlan
    order: Order = "kept"
    fallback: Callable[[Any, Exception], Any] | None = None
    on_failure: FailureReaction | None = None

    batches_records: ClassVar[bool] = True
    needs_record: ClassVar[bool] = True
    is_timed: ClassVar[bool] = False

    @property
    def allows_reordering(self) -> bool:
        return self.order == "any"

    @property
    def failure_reaction(self) -> FailureReaction | None:
        return self.on_failure

    def make(self, context: OperatorContext, /) -> Operator:
        return _MapAsync(self, context)


class _MapAsync(BatchingOperator):
    __slots__ = ("_spec",)

    def __init__(self, spec: MapAsync, context: OperatorContext) -> None:
        flush_each_record = context.flush_each_record and not spec.allows_reordering
        super().__init__(context, spec.plan.concurrency, flush_each_record=flush_each_record)
        self._spec = spec

    def _run_batch(self, records: list[BatchedRecord]) -> list[BatchedRecord]:
        spec, context = self._spec, self._context
        jobs = [ExternalCall(partial(spec.called.make, record, context)) for record in records]
        self._task.calls.run(jobs, spec.plan)
        for record, job in zip(records, jobs, strict=True):
            record.value, record.error = job.value, job.error
            if spec.fallback is not None and isinstance(job.error, Exception):
                self._apply_fallback(record, spec.fallback, job.error)
        if spec.order == "kept":
            return records
        ended = sorted(zip(jobs, records, strict=True), key=lambda pair: pair[0].ended)
        return [record for _, record in ended]

    def _apply_fallback(
        self, batched: BatchedRecord, fallback: Callable[[Any, Exception], Any], error: Exception
    ) -> None:
        try:
            batched.value, batched.error = fallback(batched.record[1], error), None
        except BaseException as failed:  # reported with its record, when its result is read
            batched.error = failed
