"""Nodes of merges, late records, processors, `deduplicate`, `sample`, dead letters and sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, TypedDict, TypeVar, get_args

from headrace.topology import serdes
from headrace.topology.arguments import require_choice
from headrace.topology.dsl import kstream
from headrace.topology.errors import Arguments, TopologyError, type_of
from headrace.topology.external_sink import ExternalSink
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import OperatorNode, Sampler, Stateless
from headrace.topology.graph.materialized import Materialized
from headrace.topology.naming import require_legal_name
from headrace.topology.operators.dead_letters import ToDeadLetters
from headrace.topology.operators.deduplicate import Deduplicate, SeenSerde
from headrace.topology.operators.outbox import WriteOutside
from headrace.topology.operators.process import ProcessorSpec, processor_supplier
from headrace.topology.operators.sample import HashSample
from headrace.topology.operators.windows.lateness import late_name
from headrace.topology.processors.store import Store
from headrace.topology.processors.stores import StoreBuilder, store_names
from headrace.topology.serdes import Serde
from headrace.topology.windows import duration_ms


def merged(a: Edge, b: Edge, name: str | None) -> Edge:
    """Add a node that merges two streams; it keeps a serde if both streams have the same serde."""
    if a.draft is not b.draft:
        raise TopologyError("merge() was given a stream of another builder; use a single builder")
    node_name = a.draft.names.node("KSTREAM-MERGE-", name)
    parents = tuple(dict.fromkeys((a.node, b.node)))
    node = a.draft.add(Stateless(node_name, parents, op="pass"))
    key = a.key if a.key == b.key else None
    value = a.value if a.value == b.value else None
    return Edge(a.draft, node, key, value, a.rekeyed or b.rekeyed)


AnyStore = StoreBuilder[Any] | str


class ProcessorOptions(TypedDict, total=False):
    """Keyword options of `KStream.process`."""

    stores: Iterable[AnyStore]
    name: str | None


def process_step(
    edge: Edge, supplier: Any, stores: Iterable[AnyStore], name: str | None, *, fixed_key: bool
) -> Edge:
    """Add a processor downstream of an edge, and the stores that it defines."""
    given = processor_supplier(supplier)
    wanted = (*stores, *given.stores)
    kind = "PROCESSVALUES" if fixed_key else "PROCESSOR"
    # Unlike in other methods, a given name does not use up a number here.
    node_name = (
        edge.draft.names.node(f"KSTREAM-{kind}-") if name is None else require_legal_name(name)
    )
    spec = ProcessorSpec(given.supplier, fixed_key=fixed_key)
    node = OperatorNode(node_name, (edge.node,), spec=spec, uses=store_names(wanted))
    edge.draft.add_state_stores(wanted)
    added = edge.then(node)
    if fixed_key:
        return replace(added, value=None)
    return replace(added, key=None, value=None, rekeyed=True)


@dataclass(frozen=True, slots=True)
class Deduplication:
    """Arguments of `KStream.deduplicate`.

    Args:
        identify: function that returns the rest of the id.
        id_serde: serde of the function's results.
        name: name of the node and of a repartition topic.
    """

    within: timedelta
    grace: timedelta
    identify: Callable[..., Any] | None
    with_key: bool
    id_serde: Serde[Any] | None
    options: Materialized
    name: str | None


def deduplicated(edge: Edge, given: Deduplication) -> Edge:
    within_ms = duration_ms("within", given.within, at_least=1)
    grace_ms = duration_ms("grace", given.grace, at_least=0)
    names, options = edge.draft.names, given.options
    store = names.store("KSTREAM-DEDUPLICATE-") if options.store is None else options.store
    node_name = names.node("KSTREAM-DEDUPLICATE-", given.name)
    if edge.rekeyed:
        arguments: Arguments = {"key": "key_serde", "value": "value_serde"}
        edge = edge.repartitioned(given.name or store, arguments=arguments)
    # Records without a key are forwarded here, so the repartition topic must keep them.
    edge.draft.keep_null_keys(edge.node)
    spec = options.log_spec(store, least_ms=within_ms + grace_ms)
    assert spec.retention_ms is not None
    rows = Store(
        spec,
        SeenSerde(edge.key, given.id_serde, keys_only=given.identify is None),
        serdes.bytes,
    )
    step = Deduplicate(
        store=store,
        within_ms=within_ms,
        grace_ms=grace_ms,
        retention_ms=spec.retention_ms,
        identify=given.identify,
        with_key=given.with_key,
    )
    node = OperatorNode(node_name, (edge.node,), spec=step, uses=(store,))
    return replace(edge, node=edge.draft.add(node, store=rows))


By = Literal["key", "value"]


def sampled(
    edge: Edge, fraction: float, by: By, serde: Serde[Any] | None, name: str | None
) -> Edge:
    node_name = edge.draft.names.node("KSTREAM-SAMPLE-", name)
    takes = HashSample(fraction)
    require_choice("sample(): by", by, get_args(By))
    own = serde or (edge.key if by == "key" else edge.value)
    return edge.then(Sampler(node_name, (edge.node,), takes=takes, by=by, serde=own))


def add_dead_letters(edge: Edge, reason: str | Callable[[Any, Any], str], name: str | None) -> None:
    if reason == "":
        raise TopologyError(
            "to_dead_letters() was given an empty reason; give a text that describes the problem "
            "of the record, or a function of (key, value) that returns it"
        )
    node_name = edge.draft.names.node("KSTREAM-DEADLETTERS-", name)
    spec = ToDeadLetters(reason)
    edge.draft.add(OperatorNode(node_name, (edge.node,), spec=spec, reads_value=callable(reason)))


# An external sink is a separate sub-topology that commits in the sink, so its input must be
# committed before. Therefore an internal topic comes before it, unless it is direct.


def add_external_sink(
    edge: Edge, sink: Any, name: str, *, table: bool = False, direct: bool = False
) -> None:
    """Add the sink's node, after an internal topic unless `direct` (`checks.loops` checks it)."""
    _require_sink(sink)
    if table and not sink.keyed:
        raise TopologyError(
            f"to_sink({name!r}) of a table writes and deletes rows by their keys, and the sink "
            "has no key; give it key=, or write each change with .to_stream().to_sink(...)"
        )
    require_legal_name(name)
    if direct:
        edge.draft.add(OperatorNode(name, (edge.node,), spec=WriteOutside(sink, direct=True)))
        return
    behind = edge.repartitioned(name)
    # Records without a key are written, too.
    behind.draft.keep_null_keys(behind.node)
    behind.draft.add(OperatorNode(name, (behind.node,), spec=WriteOutside(sink)))


def _require_sink(sink: ExternalSink) -> None:
    if isinstance(sink, type):
        raise TopologyError(f"to_sink() was given the class {sink.__name__}; call it")
    if not callable(getattr(sink, "open", None)) or not hasattr(sink, "keyed"):
        raise TopologyError(
            f"to_sink() takes a sink such as SqliteSink(...), and was given {type_of(sink)}; a "
            "custom sink has open() and keyed, which help(headrace.ExternalSink) describes"
        )


K = TypeVar("K")
V = TypeVar("V")

Late = Callable[["kstream.KStream[K, V]"], object]
"""Function that receives the stream of late records and adds nodes to it."""


def add_late(edge: Edge, node: str, late: Late[Any, Any] | None) -> None:
    """Add a stream of late records downstream of a node, and pass it to the ``late=`` function.

    Kafka Streams has no such stream, so its name uses no number and all other names stay the same.
    The operator finds it with `operators.windows.lateness.split_late`.
    """
    if late is None:
        return
    name = require_legal_name(late_name(node))
    edge.draft.add(Stateless(name, (node,), op="pass"))
    returned = late(kstream.KStream(replace(edge, node=name)))
    if isinstance(returned, str):
        raise TopologyError(
            f"late= of {node!r} returned a str, which writes nothing; have it add to the stream: "
            f"late=lambda stream: stream.to({returned!r})"
        )
