"""Nodes of a foreign-key join, and their names (see `operators.joins.foreign_key_join`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.state.spec import StoreSpec
from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import (
    AnySerde,
    Function,
    OperatorNode,
    Sink,
    SourceNode,
    TableSource,
)
from headrace.topology.graph.materialized import Materialized, materialized
from headrace.topology.naming import Names
from headrace.topology.operators.joins.foreign_key_join import (
    Notify,
    Receive,
    Resolve,
    SendRightRow,
    Subscribe,
)
from headrace.topology.processors.store import Store
from headrace.topology.serdes.subscriptions import (
    CombinedKeySerde,
    Response,
    ResponseSerde,
    SubscriptionSerde,
)

Partitioner = Callable[[str, Any, Any, int], Any]
"""Function ``partitioner(topic, key, None, partitions)`` that returns a partition or None."""

_JOIN = "KTABLE-FK-JOIN-"
_RESULT = f"{_JOIN}OUTPUT-"


def foreign_key_join(
    left: Edge,
    right: Edge,
    joiner: Function,
    *,
    foreign_key: Function,
    outer: bool = False,
    with_key: bool = False,
    store: str | Materialized | None = None,
    key: AnySerde | None = None,
    value: AnySerde | None = None,
    name: str | None = None,
    partitioner: Partitioner | None = None,
    other_partitioner: Partitioner | None = None,
) -> Edge:
    """Add the nodes and return the edge of the results, a table with the left table's keys.

    Args:
        outer: whether left rows without a right row are joined with None.
        with_key: whether both functions take the left row's key as the first argument.
        partitioner: returns the left table's partition of a key; None uses the subscription's.
        other_partitioner: returns the right table's partition of a key; None hashes the key.
    """
    if left.draft is not right.draft:
        raise TopologyError("tables of two builders are joined; use a single StreamsBuilder")
    draft = left.draft
    left_stores, right_stores = draft.readable(left.node), draft.readable(right.node)
    names, options = _StepNames.of(draft.names, name), materialized(store)
    result_store = draft.names.store(_RESULT) if options.store is None else options.store
    _add_subscriber(left, right, names, _keyed(foreign_key, with_key=with_key), other_partitioner)
    _add_right_side(left, right, names, right_stores)
    resolve = Resolve(
        topic=names.topic,
        key=left.key,
        foreign=right.key,
        value=left.value,
        other=right.value,
        responses=names.responses,
        table=left.node,
        joiner=_keyed(joiner, with_key=with_key),
        left=outer,
    )
    draft.add(
        *_response_nodes(left, names, partitioner),
        OperatorNode(names.resolve, (names.responses_source,), spec=resolve, uses=left_stores),
        TableSource(names.result, (names.resolve,), result_store, call="join"),
        store=Store(options.spec(result_store), key or left.key, value),
    )
    return Edge(draft, names.result, key or left.key, value)


def _add_subscriber(
    left: Edge,
    right: Edge,
    names: _StepNames,
    foreign_key: Function,
    other_partitioner: Partitioner | None,
) -> None:
    """Add the nodes that send subscriptions for the left table's changes."""
    subscribe = Subscribe(names.topic, left.key, right.key, left.value, foreign_key)
    left.draft.add(
        OperatorNode(names.subscribe, (left.node,), spec=subscribe),
        Sink(
            names.sink,
            (names.subscribe,),
            names.topic,
            right.key,
            SubscriptionSerde(),
            internal=True,
            partitioner=None if other_partitioner is None else _ByKey(other_partitioner),
        ),
    )


def _add_right_side(
    left: Edge, right: Edge, names: _StepNames, right_stores: tuple[str, ...]
) -> None:
    """Add the nodes that receive subscriptions, and that respond to the right table's changes."""
    topic, keys = names.topic, (left.key, right.key)
    receive = Receive(topic, *keys, names.store)
    send_row = SendRightRow(topic, *keys, right.value, names.responses, right.node)
    notify = Notify(topic, *keys, right.value, names.responses, names.store)
    left.draft.add(
        SourceNode(
            names.source, topics=(topic,), key=right.key, value=SubscriptionSerde(), internal=True
        ),
        OperatorNode(names.receive, (names.source,), spec=receive, uses=(names.store,)),
        OperatorNode(names.send_row, (names.receive,), spec=send_row, uses=right_stores),
        store=Store(
            StoreSpec(names.store), CombinedKeySerde(right.key, left.key), SubscriptionSerde()
        ),
    )
    left.draft.add(OperatorNode(names.notify, (right.node,), spec=notify, uses=(names.store,)))


def _response_nodes(
    left: Edge, names: _StepNames, partitioner: Partitioner | None
) -> tuple[Sink, SourceNode]:
    partition_function = _to_subscriber if partitioner is None else _ByKey(partitioner)
    sink = Sink(
        names.responses_sink,
        (names.send_row, names.notify),
        names.responses,
        left.key,
        ResponseSerde(),
        internal=True,
        partitioner=partition_function,
    )
    source = SourceNode(
        names.responses_source,
        topics=(names.responses,),
        key=left.key,
        value=ResponseSerde(),
        internal=True,
    )
    return sink, source


@dataclass(frozen=True, slots=True)
class _StepNames:
    """Names of the nodes and topics, generated in Kafka Streams' order because each uses up a
    number.
    """

    topic: str
    subscribe: str
    sink: str
    source: str
    store: str
    receive: str
    send_row: str
    notify: str
    responses: str
    responses_sink: str
    responses_source: str
    resolve: str
    result: str

    @classmethod
    def of(cls, names: Names, given: str | None) -> _StepNames:
        def named(prefix: str, suffix: str) -> str:
            return names.node(prefix, None if given is None else given + suffix)

        registration, response = f"{_JOIN}SUBSCRIPTION-REGISTRATION-", "-subscription-response"
        processor = f"{_JOIN}SUBSCRIPTION-PROCESSOR-"
        return cls(
            topic=named(registration, "-subscription-registration") + "-topic",
            subscribe=named(registration, "-subscription-registration-processor"),
            sink=named("KTABLE-SINK-", "-subscription-registration-sink"),
            source=named("KTABLE-SOURCE-", "-subscription-registration-source"),
            store=named(f"{_JOIN}SUBSCRIPTION-STATE-STORE-", "-subscription-store"),
            receive=named(processor, "-subscription-receive"),
            send_row=named(processor, "-subscription-join-foreign"),
            notify=named(processor, "-foreign-join-subscription"),
            responses=named(f"{_JOIN}SUBSCRIPTION-RESPONSE-", response) + "-topic",
            responses_sink=named("KTABLE-SINK-", f"{response}-sink"),
            responses_source=named("KTABLE-SOURCE-", f"{response}-source"),
            resolve=named(
                f"{_JOIN}SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-", f"{response}-resolver"
            ),
            result=named(_RESULT, "-result"),
        )


@dataclass(frozen=True, slots=True)
class _ByKey:
    """Partitioner of a table's keys for records that are not rows of the table."""

    partitioner: Partitioner

    def __call__(self, topic: str, key: Any, _: Any, partitions: int) -> Any:
        return self.partitioner(topic, key, None, partitions)


def _to_subscriber(_: str, __: Any, response: Response, ___: int) -> int | None:
    return response.partition


@dataclass(frozen=True, slots=True)
class _WithoutKey:
    """Adapter that drops the key before it calls a function of values."""

    function: Function

    def __call__(self, _: Any, *values: Any) -> Any:
        return self.function(*values)


def _keyed(function: Function, *, with_key: bool) -> Function:
    return function if with_key else _WithoutKey(function)
