"""Nodes of `KStream.map_async` and `KStream.map_batches`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, TypedDict, get_args

from headrace.topology.arguments import is_coroutine, refuse_other_than_function, require_choice
from headrace.topology.context.calls import CallPlan, Retry
from headrace.topology.context.environment import FailureReaction
from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import OperatorNode
from headrace.topology.operators.frames import Form, require_library
from headrace.topology.operators.map_async import MapAsync, Order, UserFunction
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
class MapAsyncArguments:
    """Arguments of `KStream.map_async`."""

    function: Callable[..., Any]
    with_key: bool
    concurrency: int
    timeout: timedelta
    retry: Retry | None
    order: Order
    on_error: OnError
    name: str | None


def add_map_async(edge: Edge, given: MapAsyncArguments) -> Edge:
    if given.retry is not None and not isinstance(given.retry, Retry):
        raise TopologyError(
            f"map_async(): retry must be Retry(...), not {given.retry!r}; Retry(attempts=3) makes "
            "each call at most three times"
        )
    require_choice("map_async(): order", given.order, get_args(Order))
    plan = CallPlan(
        is_async=is_coroutine(given.function),
        concurrency=_positive("map_async(): concurrency", given.concurrency),
        timeout_ms=duration_ms("map_async(): timeout", given.timeout, at_least=1),
        retry=given.retry,
    )
    fallback: Callable[[Any, Exception], Any] | None = None
    reaction: FailureReaction | None = None
    if callable(given.on_error):
        signature = "on_error(value, error)"
        refuse_other_than_function(given.on_error, "map_async", "on_error", 2, signature)
        fallback = given.on_error
    else:
        require_choice("map_async(): on_error", given.on_error, ("fail", "skip", "dead_letter"))
        reaction = None if given.on_error == "fail" else given.on_error
    spec = MapAsync(_user_function(given), plan, given.order, fallback, reaction)
    return _added(edge, "MAPASYNC", spec, given.name)


def add_map_batches(
    edge: Edge,
    function: Callable[[Any], Any],
    *,
    max_records: int,
    max_ms: int | None,
    form: Form,
    name: str | None,
) -> Edge:
    require_choice("map_batches(): as_", form, get_args(Form))
    require_library(form)
    batch_size = _positive("map_batches(): max_records", max_records)
    wait_ms = None if max_ms is None else _positive("map_batches(): max_ms", max_ms)
    return _added(edge, "MAPBATCHES", MapBatches(function, batch_size, wait_ms, form), name)


def _added(edge: Edge, kind: str, spec: MapAsync | MapBatches, name: str | None) -> Edge:
    node_name = edge.draft.names.node(f"KSTREAM-{kind}-", name)
    return replace(edge.then(OperatorNode(node_name, (edge.node,), spec=spec)), value=None)


def _positive(what: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise TopologyError(f"{what} must be an int of at least 1, not {value!r}")
    return value


def _user_function(given: MapAsyncArguments) -> UserFunction:
    """Return the call convention of the function, including whether it takes a `Call`."""
    count = 1 + given.with_key
    with_call = _takes_call(given.function, count)
    if not with_call:
        signature = "fn(key, value)" if given.with_key else "fn(value)"
        refuse_other_than_function(
            given.function, "map_async", "fn", count, signature, is_awaited=True
        )
    return UserFunction(given.function, given.with_key, with_call)


def _takes_call(function: Any, count: int) -> bool:
    """Return whether the function has a parameter ``call`` after key and value."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    index = next((i for i, p in enumerate(parameters) if p.name == CALL), None)
    if index is None:
        return False
    call = parameters[index]
    return call.kind is call.KEYWORD_ONLY or (
        call.kind is call.POSITIONAL_OR_KEYWORD and index >= count
    )
