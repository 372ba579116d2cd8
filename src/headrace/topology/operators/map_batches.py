"""Map of batches: calls a function once for the values of many records, such as a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.topology.context.context import Operator, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.errors import WrongLengthError
from headrace.topology.functions import refuse_never_run
from headrace.topology.operators.batching import BatchedRecord, BatchingOperator
from headrace.topology.operators.frames import FORMS, Form


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

    batches_records: ClassVar[bool] = True
    needs_record: ClassVar[bool] = True
    is_timed: ClassVar[bool] = False

    def make(self, context: OperatorContext, /) -> Operator:
        return _MapBatches(self, context)


class _MapBatches(BatchingOperator):
    __slots__ = ("_spec",)

    def __init__(self, spec: MapBatches, context: OperatorContext) -> None:
        super().__init__(
            context,
            spec.max_records,
            flush_each_record=context.flush_each_record,
            wait_ms=spec.max_ms,
        )
        self._spec = spec

    def _run_batch(self, records: list[BatchedRecord]) -> list[BatchedRecord]:
        """Call the function for all records; if it fails, it fails for each of them."""
        try:
            values = self._values([record.record[1] for record in records])
        except BaseException as error:  # reported with the first record
            for record in records:
                record.error = error
            return records
        for record, value in zip(records, values, strict=True):
            record.value = value
        return records

    def _values(self, inputs: list[Any]) -> Sequence[Any]:
        form = FORMS[self._spec.form]
        result = self._spec.function(form.from_values(inputs))
        refuse_never_run(result)
        values = form.to_values(result)
        if len(values) != len(inputs):
            raise WrongLengthError(len(values), len(inputs))
        return values
