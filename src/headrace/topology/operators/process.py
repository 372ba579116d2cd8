"""Operator that runs a user's processor: an object per task, called with each record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, Operator, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec, RowKind
from headrace.topology.errors import TopologyError, type_of
from headrace.topology.functions import refuse_never_run
from headrace.topology.operators.record_cache import Uncached
from headrace.topology.processors.processors import (
    FixedKeyProcessorContext,
    FixedKeyRecord,
    ProcessorContext,
    Record,
)
from headrace.topology.processors.stores import StoreBuilder

Supplier = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class ProcessorSupplier:
    """Supplier of processors, and the stores that it adds."""

    supplier: Supplier
    stores: tuple[StoreBuilder[Any], ...]


def processor_supplier(supplier: Any) -> ProcessorSupplier:
    """Check a supplier of processors, or wrap a ``function(record, context)`` as a supplier."""
    arguments = _required_arguments(supplier)
    if arguments == 2 and not isinstance(supplier, type):
        return ProcessorSupplier(_FunctionSupplier(supplier), ())
    if arguments != 0:
        raise TopologyError(
            f"{supplier!r} is not a supplier of processors. Pass a class or a function without "
            "arguments that returns a new processor, or a function of a record and the context"
        )
    processor, second = supplier(), supplier()
    if processor is second:
        raise TopologyError(
            f"{supplier!r} returned the same processor twice; each task requires its own. Return a "
            "new processor in each call"
        )
    if not callable(getattr(processor, "process", None)):
        raise TopologyError(
            f"{supplier!r} returned {type(processor)}, which has no method process()"
        )
    _refuse_never_run(processor)
    # For a class, read the attribute of the instance, so that properties work.
    stores = getattr(processor if isinstance(supplier, type) else supplier, "stores", ())
    return ProcessorSupplier(
        supplier, _store_builders(stores() if callable(stores) else stores, supplier)
    )


def _refuse_never_run(processor: Any) -> None:
    """Raise if a method is a coroutine or a generator, because nothing would run it."""
    for name in ("init", "process", "close"):
        method = getattr(processor, name, None)
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            how = "is a coroutine function, and nothing awaits it; write it without async"
        elif inspect.isgeneratorfunction(method):
            how = (
                "is a generator function, and nothing iterates over it; forward records with "
                "context.forward(...)"
            )
        else:
            continue
        raise TopologyError(f"{type(processor).__qualname__}.{name}() would never run: it {how}")


def _required_arguments(supplier: Any) -> int:
    try:
        parameters = inspect.signature(supplier).parameters.values()
    except (TypeError, ValueError):
        return -1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)


def _store_builders(stores: Iterable[Any], supplier: Any) -> tuple[StoreBuilder[Any], ...]:
    builders = tuple(stores)
    for store in builders:
        if not isinstance(store, StoreBuilder):
            raise TopologyError(
                f"the stores of {supplier!r} must be created with Stores, such as "
                f"Stores.key_value(...), not {type_of(store)}"
            )
    return builders


@dataclass(frozen=True, slots=True)
class _FunctionSupplier:
    """Supplier of processors that call a function with a record and the context."""

    function: Callable[[Any, Any], object]

    def __call__(self) -> _FunctionProcessor:
        return _FunctionProcessor(self.function)


class _FunctionProcessor:
    __slots__ = ("_context", "_function")

    def __init__(self, function: Callable[[Any, Any], object]) -> None:
        self._function = function

    def init(self, context: Any) -> None:
        self._context = context

    def process(self, record: Any) -> None:
        refuse_never_run(self._function(record, self._context))

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class ProcessorSpec(OperatorSpec):
    """Spec of an operator that runs processors; `fixed_key` is for ``process_values``."""

    needs_record: ClassVar[bool] = True
    """Processors may read the topic, partition and offset of the record."""

    is_processor: ClassVar[bool] = True

    supplier: Supplier
    fixed_key: bool = False

    @property
    def changes_key(self) -> bool:
        return not self.fixed_key

    @property
    def row_kind(self) -> RowKind:
        return RowKind("processor")

    def reads_any_key(self, store: str, /) -> bool:  # noqa: ARG002
        return True

    def make(self, context: OperatorContext, /) -> Operator:
        return _RunningProcessor(self, context)


def add_life_cycle(target: Any, argument: Any, context: OperatorContext) -> None:
    """Have the task call a user's object: ``init(argument)`` and ``close()``, if it has them."""

    def start() -> None:
        init = getattr(target, "init", None)
        if init is not None:
            init(argument)
        argument._started()

    def close() -> None:
        close_method = getattr(target, "close", None)
        if close_method is not None:
            close_method()

    context.task.add(context.node, start, close)


class _RunningProcessor(Uncached):
    __slots__ = ("_make_record", "_process", "_task")

    def __init__(self, spec: ProcessorSpec, context: OperatorContext) -> None:
        super().__init__(context.forward)
        self._task = context.task
        self._make_record: Any = FixedKeyRecord if spec.fixed_key else Record
        context_class = FixedKeyProcessorContext if spec.fixed_key else ProcessorContext
        processor_context: Any = context_class(context)
        processor = spec.supplier()
        self._process = processor.process
        add_life_cycle(processor, processor_context, context)

    def process(self, key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        """Process a record; store writes meanwhile have the record's timestamp."""
        del old
        task = self._task
        outer, task.timestamp = task.timestamp, timestamp
        try:
            record = self._make_record(key, value, timestamp, tuple(headers) if headers else ())
            self._process(record)
        finally:
            task.timestamp = outer
