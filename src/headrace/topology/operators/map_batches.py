"""Map of batches: a single function call for the values of many records, as for models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.topology.context.context import Operator, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.errors import WrongLengthError
from headrace.topology.functions import refuse_never_run
from headrace.topology.operators.frames import FORMS, Form
from headrace.topology.operators.gathering import Gathered, Gathering


@dataclass(frozen=True, slots=True)
class MapBatches(OperatorSpec):
    """Spec of a map of batches.

    Args:
        function: called as ``function(values)``, returns as many values.
        max_ms: how long values may wait for further values; None waits only until the end of the
            run.
    """

    function: Callable[[Any], Any]
    max_records: int
    max_ms: int | None
    form: Form

    gathers: ClassVar[bool] = True
    needs_record: ClassVar[bool] = True
    is_timed: ClassVar[bool] = False

    def make(self, context: OperatorContext, /) -> Operator:
        return _Batching(self, context)


class _Batching(Gathering):
    __slots__ = ("_spec",)

    def __init__(self, spec: MapBatches, context: OperatorContext) -> None:
        super().__init__(context, spec.max_records, at_once=context.at_once, wait_ms=spec.max_ms)
        self._spec = spec

    def _called(self, held: list[Gathered]) -> list[Gathered]:
        """Call the function for all records; if it fails, it fails for each of them."""
        try:
            values = self._values([one.record[1] for one in held])
        except BaseException as error:  # reported with the first record
            for one in held:
                one.error = error
            return held
        for one, value in zip(held, values, strict=True):
            one.value = value
        return held

    def _values(self, given: list[Any]) -> Sequence[Any]:
        form = FORMS[self._spec.form]
        result = self._spec.function(form.made_of(given))
        refuse_never_run(result)
        values = form.values_of(result)
        if len(values) != len(given):
            raise WrongLengthError(len(values), len(given))
        return values
