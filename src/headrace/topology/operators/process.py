"""Operator that runs a user's processor: an object per task, called with each record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, Operator, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec, RowKind
from headrace.topology.errors import TopologyError
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
class Supplied:
    """A supplier of processors, and the stores that it adds."""

    supplier: Supplier
    stores: tuple[StoreBuilder[Any], ...]


def supplied(given: Any) -> Supplied:
    """Convert a supplier of processors, or a ``function(record, context)``, to a supplier."""
    arguments = _required_arguments(given)
    if arguments == 2 and not isinstance(given, type):
        return Supplied(_OfFunction(given), ())
    if arguments != 0:
        raise TopologyError(
            f"{given!r} is not a supplier of processors: give a class or a function without "
            "arguments that returns a new processor, or a function of a record and the context"
        )
    one, other = given(), given()
    if one is other:
        raise TopologyError(
            f"{given!r} returned the same processor twice; each task needs its own, so return a "
            "new processor in each call"
        )
    if not callable(getattr(one, "process", None)):
        raise TopologyError(f"{given!r} returned {type(one)}, which has no method process()")
    _refuse_never_run(one)
    # For a class, read the attribute of the instance, so that properties work.
    stores = getattr(one if isinstance(given, type) else given, "stores", ())
    return Supplied(given, _store_builders(stores() if callable(stores) else stores, given))


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


def _required_arguments(given: Any) -> int:
    try:
        parameters = inspect.signature(given).parameters.values()
    except (TypeError, ValueError):
        return -1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)


def _store_builders(stores: Iterable[Any], given: Any) -> tuple[StoreBuilder[Any], ...]:
    found = tuple(stores)
    for store in found:
        if not isinstance(store, StoreBuilder):
            raise TopologyError(
                f"the stores of {given!r} are of {type(store)}; create them with Stores, such as "
                "Stores.key_value(..)"
            )
    return found


@dataclass(frozen=True, slots=True)
class _OfFunction:
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
        return _Running(self, context)


def add_life_cycle(made: Any, given: Any, context: OperatorContext) -> None:
    """Have the task call a user's object: ``init(given)`` and ``close()``, if it has them."""

    def start() -> None:
        init = getattr(made, "init", None)
        if init is not None:
            init(given)
        given._started()

    def close() -> None:
        end = getattr(made, "close", None)
        if end is not None:
            end()

    context.task.add(context.node, start, close)


class _Running(Uncached):
    __slots__ = ("_make_record", "_process", "_task")

    def __init__(self, spec: ProcessorSpec, context: OperatorContext) -> None:
        super().__init__(context.forward)
        self._task = context.task
        self._make_record: Any = FixedKeyRecord if spec.fixed_key else Record
        given = FixedKeyProcessorContext if spec.fixed_key else ProcessorContext
        processor_context: Any = given(context)
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
