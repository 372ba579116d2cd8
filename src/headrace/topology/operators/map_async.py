"""Async map: a call of an external service for each record, with many calls in flight.

The calls of a run run together, at most `concurrency` at a time, and all of them have ended before
the first result is forwarded. So results can keep the order of the records, and a commit waits for
at most one time-out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from headrace.topology.context.calls import CallPlan, ExternalCall
from headrace.topology.context.context import Operator, OperatorContext
from headrace.topology.context.environment import Answered
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.operators.gathering import Gathered, Gathering

Order = Literal["kept", "any"]


@dataclass(frozen=True, slots=True)
class Called:
    """User function of an async map, and its arguments.

    Args:
        with_key: whether it takes the key before the value.
        with_call: whether it takes the identity of the call as ``call=``.
    """

    function: Callable[..., Any]
    with_key: bool
    with_call: bool

    def make(self, one: Gathered, context: OperatorContext, attempt: int) -> Any:
        key, value, _, _ = one.record
        values = (key, value) if self.with_key else (value,)
        if not self.with_call:
            return self.function(*values)
        return self.function(*values, call=one.call(context, attempt))


@dataclass(frozen=True, slots=True)
class MapAsync(OperatorSpec):
    """Spec of an async map.

    Args:
        order: order of the results: that of the records ("kept"), or that in which calls end
            ("any").
        instead: called as ``instead(value, error)`` after a call failed; returns the value.
        where_failed: the reaction to a failed call; None asks the handler.
    """

    called: Called
    plan: CallPlan
    order: Order = "kept"
    instead: Callable[[Any, Exception], Any] | None = None
    where_failed: Answered | None = None

    gathers: ClassVar[bool] = True
    needs_record: ClassVar[bool] = True
    is_timed: ClassVar[bool] = False

    @property
    def allows_reordering(self) -> bool:
        return self.order == "any"

    @property
    def answer(self) -> Answered | None:
        return self.where_failed

    def make(self, context: OperatorContext, /) -> Operator:
        return _Calling(self, context)


class _Calling(Gathering):
    __slots__ = ("_spec",)

    def __init__(self, spec: MapAsync, context: OperatorContext) -> None:
        at_once = context.at_once and not spec.allows_reordering
        super().__init__(context, spec.plan.concurrency, at_once=at_once)
        self._spec = spec

    def _called(self, held: list[Gathered]) -> list[Gathered]:
        spec, context = self._spec, self._context
        jobs = [ExternalCall(partial(spec.called.make, one, context)) for one in held]
        self._task.calls.run(jobs, spec.plan)
        for one, job in zip(held, jobs, strict=True):
            one.value, one.error = job.value, job.error
            if spec.instead is not None and isinstance(job.error, Exception):
                self._give_instead(one, spec.instead, job.error)
        if spec.order == "kept":
            return held
        ended = sorted(zip(jobs, held, strict=True), key=lambda pair: pair[0].ended)
        return [one for _, one in ended]

    def _give_instead(
        self, one: Gathered, instead: Callable[[Any, Exception], Any], error: Exception
    ) -> None:
        try:
            one.value, one.error = instead(one.record[1], error), None
        except BaseException as failed:  # reported with its record, when its result is read
            one.error = failed
