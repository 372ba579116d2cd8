"""Operator that runs a user's transformer of a table's rows: an object per task.

The transformer cannot be called again for an old value, because its state may have changed since.
So if the rows or old values are read downstream, the results are stored (Kafka Streams:
`KTableTransformValues` calls the transformer again with the old value).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

from headrace.topology.context.context import Headers, Operator, OperatorContext, TableView
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.errors import TopologyError
from headrace.topology.operators.process import add_life_cycle
from headrace.topology.operators.record_cache import StoredRows
from headrace.topology.operators.table_rows import TableRows
from headrace.topology.processors.processors import ProcessingContext

K_contra = TypeVar("K_contra", contravariant=True)
V_contra = TypeVar("V_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class ValueTransformerWithKey(Protocol[K_contra, V_contra, R_co]):
    """Transformer of the rows of a task; may also have ``init(context)`` and ``close()``.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> class Label:
        ...     def transform(self, key: str, value: str | None) -> str | None:
        ...         return None if value is None else f"{key}: {value}"
        >>> builder = StreamsBuilder()
        >>> names = builder.table("names", key=serdes.string, value=serdes.string, store="names")
        >>> names.transform_values(Label).to_stream().to("labels", value=serdes.string)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("names").send("u1", "Ann")
        ...     driver.output("labels").read().value
        'u1: Ann'
    """

    def transform(self, key: K_contra, value: V_contra | None, /) -> R_co | None:
        """Return the new value of a row.

        Args:
            key: the row's key.
            value: the current value in the table; None if the row is deleted.
        """


def checked_supplier(supplier: Callable[[], Any]) -> Callable[[], Any]:
    if not callable(supplier):
        raise TopologyError(
            f"{supplier!r} is not a supplier of transformers: give a class or a function without "
            "arguments that returns a new object with a method transform(key, value)"
        )
    transformer = supplier()
    if not callable(getattr(transformer, "transform", None)):
        raise TopologyError(
            f"{supplier!r} returned {type(transformer)}, which has no method transform(key, value)"
        )
    if transformer is supplier():
        raise TopologyError(
            f"{supplier!r} returned the same transformer twice; each task needs its own, so return "
            "a new transformer in each call"
        )
    return supplier


@dataclass(frozen=True, slots=True)
class TransformValues(OperatorSpec):
    """Spec of an operator that runs transformers.

    Args:
        store: the store of the results; None only forwards them.
    """

    supplier: Callable[[], Any]
    store: str | None = None
    needs_record: ClassVar[bool] = True

    @property
    def is_table(self) -> bool:
        return self.store is not None

    def reads_any_key(self, store: str, /) -> bool:
        """Return True for other stores: a transformer may read any key there."""
        return store != self.store

    store_call: ClassVar[str] = 'transform_values(store="...")'

    def with_store(self, store: str) -> TransformValues:
        return replace(self, store=store)

    def make(self, context: OperatorContext, /) -> _TransformValues:
        return _TransformValues(self, context)

    def view(self, context: OperatorContext, /) -> TableView | None:
        if self.store is None:
            return None
        return StoredRows(context.buffers[self.store], context.serdes(self.store)[0])


class _TransformValues(Operator):
    __slots__ = (
        "_failed",
        "_forward",
        "_rows",
        "_task",
        "_transform",
        "pending",
    )

    def __init__(self, spec: TransformValues, context: OperatorContext) -> None:
        self._task = context.task
        self._failed = context.failed
        self._forward = context.forward
        transformer_context = ProcessingContext(context)
        transformer = spec.supplier()
        self._transform = transformer.transform
        self._rows = None if spec.store is None else TableRows(context, spec.store)
        self.pending: MutableMapping[Any, Any] = {} if self._rows is None else self._rows.pending
        add_life_cycle(transformer, transformer_context, context)

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        """Process a change; store writes meanwhile have its timestamp."""
        task = self._task
        outer, task.timestamp = task.timestamp, timestamp
        try:
            new = self._transform(key, value)
        except Exception as error:
            self._failed(error, key, value, timestamp, headers)
            new = None
        finally:
            task.timestamp = outer
        rows = self._rows
        if rows is None:
            self._forward(key, new, None, timestamp, headers)
            return
        row_key = rows.encode_key(key)
        rows.change(key, row_key, new, rows.get(row_key)[0], timestamp, headers)

    def flush(self) -> None:
        if self._rows is not None:
            self._rows.flush()
