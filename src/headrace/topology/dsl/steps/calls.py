"""Nodes of `KStream.map_async` and `KStream.map_batches`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, TypedDict, get_args

from headrace.topology.arguments import is_coroutine, refuse_other_than_function, require_word
from headrace.topology.context.calls import CallPlan, Retry
from headrace.topology.context.environment import Answered
from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import OperatorNode
from headrace.topology.operators.frames import Form, require_library
from headrace.topology.operators.map_async import Called, MapAsync, Order
from headrace.topology.operators.map_batches import MapBatches
from headrace.topology.windows import duration_ms

OnError = Literal["fail", "skip", "dead_letter"] | Callable[[Any, Exception], Any]
CALL = "call"
"""Name of the parameter that receives the `Call`."""


class CallOptions(TypedDict, total=False):
    """Keyword options of `KStream.map_async`."""

    concurrency: int
    timeout: timedelta
    retry: Retry | None
    order: Order
    on_error: OnError
    name: str | None


@dataclass(frozen=True, slots=True)
class Calls:
    """Arguments of `KStream.map_async`."""

    function: Callable[..., Any]
    with_key: bool
    concurrency: int
    timeout: timedelta
    retry: Retry | None
    order: Order
    on_error: OnError
    name: str | None


def called_for_each(edge: Edge, given: Calls) -> Edge:
    if given.retry is not None and not isinstance(given.retry, Retry):
        raise TopologyError(
            f"map_async(): retry must be Retry(...), not {given.retry!r}; Retry(attempts=3) makes "
            "each call at most three times"
        )
    require_word("map_async(): order", given.order, get_args(Order))
    plan = CallPlan(
        is_async=is_coroutine(given.function),
        concurrency=_positive("map_async(): concurrency", given.concurrency),
        timeout_ms=duration_ms("map_async(): timeout", given.timeout, at_least=1),
        retry=given.retry,
    )
    instead: Callable[[Any, Exception], Any] | None = None
    answer: Answered | None = None
    if callable(given.on_error):
        called = "on_error(value, error)"
        refuse_other_than_function(given.on_error, "map_async", "on_error", 2, called)
        instead = given.on_error
    else:
        require_word("map_async(): on_error", given.on_error, ("fail", "skip", "dead_letter"))
        answer = None if given.on_error == "fail" else given.on_error
    spec = MapAsync(_called(given), plan, given.order, instead, answer)
    return _added(edge, "MAPASYNC", spec, given.name)


def called_for_batches(
    edge: Edge,
    function: Callable[[Any], Any],
    *,
    max_records: int,
    max_ms: int | None,
    form: Form,
    name: str | None,
) -> Edge:
    require_word("map_batches(): as_", form, get_args(Form))
    require_library(form)
    most = _positive("map_batches(): max_records", max_records)
    wait_ms = None if max_ms is None else _positive("map_batches(): max_ms", max_ms)
    return _added(edge, "MAPBATCHES", MapBatches(function, most, wait_ms, form), name)


def _added(edge: Edge, kind: str, spec: MapAsync | MapBatches, name: str | None) -> Edge:
    node_name = edge.draft.names.node(f"KSTREAM-{kind}-", name)
    return replace(edge.then(OperatorNode(node_name, (edge.node,), spec=spec)), value=None)


def _positive(what: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise TopologyError(f"{what} must be an int of at least 1, not {value!r}")
    return value


def _called(given: Calls) -> Called:
    """Return the call convention of the function, including whether it takes a `Call`."""
    count = 1 + given.with_key
    with_call = _asks_which(given.function, count)
    if not with_call:
        called = "fn(key, value)" if given.with_key else "fn(value)"
        refuse_other_than_function(
            given.function, "map_async", "fn", count, called, is_awaited=True
        )
    return Called(given.function, given.with_key, with_call)


def _asks_which(function: Any, count: int) -> bool:
    """Return whether the function has a parameter ``call`` after key and value."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    found = next((i for i, one in enumerate(parameters) if one.name == CALL), None)
    if found is None:
        return False
    one = parameters[found]
    return one.kind is one.KEYWORD_ONLY or (
        one.kind is one.POSITIONAL_OR_KEYWORD and found >= count
    )
