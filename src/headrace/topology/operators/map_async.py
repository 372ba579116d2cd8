"""Making another value of each record by a call to the outside, many at a time.

The calls of a run are under way together, `concurrency` of them at most, and all of them have ended
before the first result goes on. So the results have the order of the records, and a commit waits
for one time-out at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from headrace.topology.context.calls import CallPlan, Job
from headrace.topology.context.context import Operator, OperatorContext
from headrace.topology.context.environment import Answered
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.operators.gathering import Gathered, Gathering

Order = Literal["kept", "any"]


@dataclass(frozen=True, slots=True)
class Called:
    """How a function is called.

    Args:
        function: the user's.
        with_key: whether it is called with the key before the value.
        with_call: whether it is told which call it is, as ``call=``.
    """

    function: Callable[..., Any]
    with_key: bool
    with_call: bool

    def make(self, one: Gathered, context: OperatorContext, attempt: int) -> Any:
        """Call it."""
        key, value, _, _ = one.record
        values = (key, value) if self.with_key else (value,)
        if not self.with_call:
            return self.function(*values)
        return self.function(*values, call=one.call(context, attempt))


@dataclass(frozen=True, slots=True)
class MapAsync(OperatorSpec):
    """Calls a function for each record, many at a time.

    Args:
        called: the function.
        plan: how the calls are made.
        order: that of the results: the records', or that in which the calls end.
        instead: called as ``instead(value, error)`` where a call has failed, returns the value.
        where_failed: what becomes of the record where one has failed; None asks the handler.
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
    def gives_up_order(self) -> bool:
        """Who gives up the order of the results gives up that beside other ways, too."""
        return self.order == "any"

    @property
    def answer(self) -> Answered | None:
        """What becomes of a record whose call has failed."""
        return self.where_failed

    def make(self, context: OperatorContext, /) -> Operator:
        """Make the operator of one task."""
        return _Calling(self, context)


class _Calling(Gathering):
    __slots__ = ("_spec",)

    def __init__(self, spec: MapAsync, context: OperatorContext) -> None:
        at_once = context.at_once and not spec.gives_up_order
        super().__init__(context, spec.plan.concurrency, at_once=at_once)
        self._spec = spec

    def _called(self, held: list[Gathered]) -> list[Gathered]:
        spec, context = self._spec, self._context
        jobs = [Job(partial(spec.called.make, one, context)) for one in held]
        self._facts.calls.run(jobs, spec.plan)
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
        except BaseException as failed:  # told with its record, when that comes to its turn
            one.error = failed
