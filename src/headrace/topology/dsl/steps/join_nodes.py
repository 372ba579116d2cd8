"""Nodes of joins by the records' own keys, their names, stores and repartition topics.

The names of a stream-stream join are generated in Kafka Streams' order (`KStreamImpl.doJoin`,
`KStreamImplJoin`): the repartition topics, the nodes that store each side, the two joins, and the
merge of their results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, Literal, TypedDict, TypeVar

from headrace.topology.dsl.global_table import GlobalKTable, node_of
from headrace.topology.dsl.steps.stream_steps import Late, add_late
from headrace.topology.errors import NO_ARGUMENTS, Arguments, TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import AnySerde, Function, OperatorNode, Stateless
from headrace.topology.graph.materialized import Materialized, materialized
from headrace.topology.naming import require_legal_name
from headrace.topology.operators.joins.primary_key_join import JoinMerge, TableJoinSide
from headrace.topology.operators.joins.stream_join import KeepSide, LateMatch, StreamJoinSide, Waits
from headrace.topology.operators.joins.table_join import GlobalJoin, TableJoin
from headrace.topology.operators.joins.table_join_grace import PostponedTableJoin
from headrace.topology.operators.windows.buffered import BufferedSerde
from headrace.topology.processors.store import Store
from headrace.topology.serdes import Serde
from headrace.topology.serdes.join_serdes import (
    KeptKeySerde,
    PostponedKeySerde,
    WaitingKeySerde,
    WaitingValuesSerde,
)
from headrace.topology.windows import JoinWindows, duration_ms

JoinKind = Literal["inner", "left", "outer"]
K = TypeVar("K")
V = TypeVar("V")
V2 = TypeVar("V2")


class StreamJoinOptions(TypedDict, Generic[K, V, V2], total=False):
    """Options of an inner join of two streams; see `KStream.join`."""

    key: Serde[K] | None
    value: Serde[V] | None
    other_value: Serde[V2] | None
    store: str | Materialized | None
    name: str | None
    late: Late[K, V] | None
    other_late: Late[K, V2] | None


class OuterJoinOptions(StreamJoinOptions[K, V, V2], total=False):
    """Options of a join of two streams with unmatched results; see `KStream.left_join`."""

    late_match: LateMatch


class TableJoinOptions(TypedDict, Generic[K, V], total=False):
    """Options of a join of a stream with a table; see `KStream.join`."""

    key: Serde[K] | None
    value: Serde[V] | None
    name: str | None
    grace: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJoin:
    """Arguments of a join of two streams.

    Args:
        key: serde of keys; None uses the left side's, then the right side's.
        value: serde of the left side's values; None uses the stream's.
        store: options of both sides' stores, and prefix of their names.
        late_match: whether a record still matches after its unmatched result.
    """

    kind: JoinKind
    joiner: Callable[..., Any]
    with_key: bool
    windows: JoinWindows
    key: AnySerde | None
    value: AnySerde | None
    other_value: AnySerde | None
    store: Materialized
    name: str | None
    late_match: LateMatch
    late: Late[Any, Any] | None
    other_late: Late[Any, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLookup:
    """Arguments of a join of a stream with a table.

    Args:
        left: whether records without a row have an unmatched result.
        key: serde of keys; None uses the stream's, or else the table's.
        grace: how long a record waits for late rows; None joins it immediately.
    """

    left: bool
    joiner: Callable[..., Any]
    with_key: bool
    key: AnySerde | None
    value: AnySerde | None
    name: str | None
    grace: timedelta | None = None


@dataclass(frozen=True, slots=True)
class _JoinNames:
    """Names of the nodes and stores of a join of two streams."""

    keep_left: str
    keep_right: str
    join_left: str
    join_right: str
    merge: str
    left_store: str
    right_store: str
    waiting_store: str


def add_stream_join(left: Edge, right: Edge, join: StreamJoin) -> Edge:
    if left.draft is not right.draft:
        raise TopologyError("join() was given a stream of another builder; use a single builder")
    is_outer_left, is_outer_right = join.kind != "inner", join.kind == "outer"
    left = replace(left, value=join.value or left.value)
    right = replace(right, value=join.other_value or right.value)
    sides = [None if join.name is None else f"{join.name}-{side}" for side in ("left", "right")]
    keys = left.key, right.key
    left = _keyed(left, join.key, keys[1], sides[0])
    right = _keyed(right, join.key, keys[0], sides[1], {"value": "other_value"})
    if is_outer_left:
        left.draft.keep_null_keys(left.node)
    if is_outer_right:
        left.draft.keep_null_keys(right.node)
    key = join.key or left.key or right.key
    names = _named(left, join)
    windows = join.windows
    keep_ms = windows.before_ms + windows.after_ms + windows.grace_ms
    stores = {
        name: Store(
            replace(join.store.log_spec(name, least_ms=keep_ms), segmented=True),
            KeptKeySerde(key),
            value,
        )
        for name, value in ((names.left_store, left.value), (names.right_store, right.value))
    }
    retention_ms = stores[names.left_store].spec.retention_ms
    assert retention_ms is not None
    for edge, node, store, late, drops_null_keys in (
        (left, names.keep_left, names.left_store, join.late, not is_outer_left),
        (right, names.keep_right, names.right_store, join.other_late, not is_outer_right),
    ):
        spec = KeepSide(store, retention_ms, is_left=edge is left)
        keep = OperatorNode(node, (edge.node,), spec=spec, uses=(store,), needs_key=drops_null_keys)
        edge.draft.add(keep, store=stores[store])
        add_late(edge, node, late)
    _add_joins(left, right, join, names, retention_ms, key)
    return replace(left, node=names.merge, key=key, value=None, rekeyed=False)


def _keyed(
    edge: Edge,
    key: AnySerde | None,
    other: AnySerde | None,
    name: str | None,
    arguments: Arguments = NO_ARGUMENTS,
) -> Edge:
    """Repartition a side if its key may have changed, with a key serde like the other side's."""
    edge = replace(edge, key=key or edge.key)
    if not edge.rekeyed:
        return edge
    return replace(edge, key=edge.key or other).repartitioned_for_join(name, arguments)


def _named(left: Edge, join: StreamJoin) -> _JoinNames:
    names, given, base = left.draft.names, join.name, join.store.store
    is_outer_left, is_outer_right = join.kind != "inner", join.kind == "outer"

    def node(prefix: str, suffix: str) -> str:
        return names.node(prefix, None if given is None else given + suffix)

    this = "-outer-this-join" if is_outer_right else "-this-join"
    other = "-outer-other-join" if is_outer_left else "-other-join"
    shared = "-outer-shared-join" if is_outer_right else "-left-shared-join"
    keep_left = node("KSTREAM-WINDOWED-", "-this-windowed")
    keep_right = node("KSTREAM-WINDOWED-", "-other-windowed")
    # Stores are named after these nodes even if the nodes have given names.
    left_prefix = "KSTREAM-OUTERTHIS-" if is_outer_right else "KSTREAM-JOINTHIS-"
    join_left = names.node(left_prefix)
    join_right = names.node("KSTREAM-OUTEROTHER-" if is_outer_left else "KSTREAM-JOINOTHER-")
    merge = node("KSTREAM-MERGE-", "-merge")
    number = join_left.removeprefix(left_prefix)
    return _JoinNames(
        keep_left=keep_left,
        keep_right=keep_right,
        join_left=join_left if given is None else require_legal_name(given + this),
        join_right=join_right if given is None else require_legal_name(given + other),
        merge=merge,
        left_store=f"{join_left if base is None else base + this}-store",
        right_store=f"{join_right if base is None else base + other}-store",
        waiting_store=f"{f'KSTREAM-OUTERSHARED-{number}' if base is None else base + shared}-store",
    )


def _add_joins(
    left: Edge,
    right: Edge,
    join: StreamJoin,
    names: _JoinNames,
    retention_ms: int,
    key: Serde[Any] | None,
) -> None:
    windows, draft = join.windows, left.draft
    waits: Waits | None = None
    waiting: tuple[Store, ...] = ()
    if join.kind != "inner":
        waits = Waits(
            names.waiting_store,
            windows.after_ms + windows.grace_ms,
            windows.before_ms + windows.grace_ms if join.kind == "outer" else None,
            join.late_match,
        )
        spec = replace(replace(join.store, retention=None).spec(names.waiting_store), cached=False)
        values = WaitingValuesSerde(left.value, right.value)
        waiting = (Store(spec, WaitingKeySerde(key), values),)
    shared = () if waits is None else (waits.store,)
    joins = [
        OperatorNode(
            names.join_left if is_left else names.join_right,
            (names.keep_left if is_left else names.keep_right,),
            spec=StreamJoinSide(
                is_left=is_left,
                own=names.left_store if is_left else names.right_store,
                other=names.right_store if is_left else names.left_store,
                before_ms=windows.before_ms if is_left else windows.after_ms,
                after_ms=windows.after_ms if is_left else windows.before_ms,
                retention_ms=retention_ms,
                joiner=join.joiner,
                with_key=join.with_key,
                emits_null=join.kind == "outer" or (is_left and join.kind == "left"),
                waits=waits,
            ),
            uses=(names.right_store if is_left else names.left_store, *shared),
        )
        for is_left in (True, False)
    ]
    merge = Stateless(names.merge, tuple(node.name for node in joins), op="pass")
    draft.add(*joins, merge, stores=waiting)


def add_table_join(stream: Edge, table: Edge, join: TableLookup) -> Edge:
    if stream.draft is not table.draft:
        raise TopologyError("join() was given a table of another builder; use a single builder")
    edge = replace(stream, value=join.value or stream.value)
    edge = _keyed(edge, join.key, table.key, join.name)
    if join.left:
        edge.draft.keep_null_keys(edge.node)
    prefix = "KSTREAM-LEFTJOIN-" if join.left else "KSTREAM-JOIN-"
    node_name = edge.draft.names.node(prefix, join.name)
    uses = edge.draft.readable(table.node)
    if join.grace is None:
        spec = TableJoin(table.node, join.joiner, join.with_key, join.left)
        node = OperatorNode(node_name, (edge.node,), spec=spec, uses=uses, needs_key=not join.left)
        return replace(edge.then(node), value=None)
    store = f"{node_name}-Buffer"
    late = PostponedTableJoin(
        table.node, join.joiner, join.with_key, join.left, store, _grace_ms(edge, join.grace, uses)
    )
    node = OperatorNode(
        node_name, (edge.node,), spec=late, uses=(*uses, store), needs_key=not join.left
    )
    waiting = Store(
        replace(Materialized().spec(store), cached=False),
        PostponedKeySerde(edge.key),
        BufferedSerde(edge.value),
    )
    return replace(edge, node=edge.draft.add(node, store=waiting), value=None)


def _grace_ms(edge: Edge, grace: timedelta, uses: tuple[str, ...]) -> int:
    grace_ms = duration_ms("grace", grace, at_least=0)
    for store in edge.draft.stores(uses):
        history_ms = store.spec.retention_ms
        if store.spec.layout != "versioned" or history_ms is None:
            raise TopologyError(
                "a join with a table accepts grace= only if the table is versioned; "
                f"{store.name!r} is not: give it store=Materialized(..., history=...)"
            )
        if history_ms < grace_ms:
            raise TopologyError(
                f"the grace period of the join is {grace_ms} ms, longer than the history of "
                f"{store.name!r}, {history_ms} ms; make the history at least as long as the grace "
                "period"
            )
    return grace_ms


_OF_TWO_STREAMS = {
    "other_value": "the table has its own serdes",
    "store": "the table has its own store",
    "late": "a record is joined with the current row, however late it is",
    "other_late": "a record is joined with the current row, however late it is",
}


def table_lookup(
    kind: JoinKind,
    joiner: Callable[..., Any],
    windows: JoinWindows | None,
    options: dict[str, Any],
) -> TableLookup:
    """Return the arguments of a join with a table; raise for arguments of a join of streams."""
    if kind == "outer":
        raise TopologyError(
            "a stream has no outer join with a table, because a row without a record has no "
            "result; use left_join(), or join the table with a table"
        )
    if windows is not None:
        raise TopologyError("a join with a table takes no windows: a row is valid until it changes")
    _refuse_options("a table", _OF_TWO_STREAMS, options)
    return TableLookup(
        left=kind == "left",
        joiner=joiner,
        with_key=options["with_key"],
        key=options["key"],
        value=options["value"],
        name=options["name"],
    )


_NOT_WITH_GLOBAL_TABLE = {
    "windows": "a row is valid until it changes",
    "key": "nothing is repartitioned for it",
    "value": "nothing is repartitioned for it",
    **_OF_TWO_STREAMS,
}


def global_join(
    edge: Edge,
    table: GlobalKTable[Any, Any],
    joiner: Callable[..., Any],
    key_mapper: Callable[[Any, Any], Any] | None,
    kind: str,
    options: Mapping[str, Any],
) -> Edge:
    """Add the node; `options` are the other arguments of `KStream.join`."""
    if kind == "outer":
        raise TopologyError(
            "a stream has no outer join with a global table, because a row without a record has "
            "no result; use left_join()"
        )
    if key_mapper is None:
        raise TopologyError(
            "a join with a global table requires key_mapper=, called as key_mapper(key, value); it "
            "returns the key to look up"
        )
    _refuse_options("a global table", _NOT_WITH_GLOBAL_TABLE, options)
    spec = GlobalJoin(
        node_of(table, edge.draft),
        joiner,
        with_key=options["with_key"],
        left=kind == "left",
        mapper=key_mapper,
    )
    # Kafka Streams uses this prefix for inner joins with a global table, too.
    name = edge.draft.names.node("KSTREAM-LEFTJOIN-", options["name"])
    return replace(edge.then(OperatorNode(name, (edge.node,), spec=spec)), value=None)


def _refuse_options(table: str, refused: Mapping[str, str], options: Mapping[str, Any]) -> None:
    for argument, reason in refused.items():
        if options[argument] is not None:
            raise TopologyError(f"a join with {table} does not accept {argument}=: {reason}")


_TABLE_MERGE = "KTABLE-MERGE-"


def primary_key_join(
    left: Edge,
    right: Edge,
    joiner: Function,
    *,
    emits_unmatched: tuple[bool, bool] = (False, False),
    store: str | Materialized | None = None,
    key: AnySerde | None = None,
    value: AnySerde | None = None,
    name: str | None = None,
) -> Edge:
    """Add the nodes and return the edge of the results, a table with the same keys.

    Args:
        emits_unmatched: for the left and the right table, whether rows without a match are joined
            with None.
    """
    draft = left.draft
    if draft is not right.draft:
        raise TopologyError("tables of two builders are joined; use a single StreamsBuilder")
    names, options = draft.names, materialized(store)
    is_stored = store is not None or key is not None or value is not None
    result_store = options.store
    if is_stored and result_store is None:
        result_store = names.store(_TABLE_MERGE)
    merge = names.node(_TABLE_MERGE, name)
    sides = [
        names.node(f"KTABLE-JOIN{side}-", None if name is None else f"{name}-join-{side.lower()}")
        for side in ("THIS", "OTHER")
    ]
    stores = draft.readable(left.node), draft.readable(right.node)
    spec = JoinMerge(
        tables=(left.node, right.node),
        keys=stores[0][0],
        joiner=joiner,
        emits_unmatched=emits_unmatched,
        store=result_store,
    )
    draft.add(OperatorNode(sides[0], (left.node,), spec=TableJoinSide(0), uses=stores[1]))
    draft.add(OperatorNode(sides[1], (right.node,), spec=TableJoinSide(1), uses=stores[0]))
    node = OperatorNode(
        merge, tuple(sides), spec=spec, view_uses=tuple(dict.fromkeys(sum(stores, ())))
    )
    result = replace(left, key=key or left.key, value=value)
    if result_store is None and draft.tables_above(left.node) & draft.tables_above(right.node):
        # A single record can change both rows before either side has forwarded its change.
        result_store = f"{merge}-STATE-STORE"
        node = replace(node, spec=spec.with_store(result_store))
    if result_store is None:
        return replace(result, node=draft.add(node))
    node = replace(node, uses=(result_store,), view_uses=(result_store,))
    rows = Store(options.spec(result_store), result.key, value)
    return replace(result, node=draft.add(node, store=rows))
