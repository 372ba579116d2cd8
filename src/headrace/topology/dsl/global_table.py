"""Global table: all rows of a topic in every process, for lookups by any key."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Draft
from headrace.topology.graph.graph import AnySerde, GlobalSource, GlobalTable
from headrace.topology.graph.materialized import Materialized, materialized
from headrace.topology.processors.store import Store

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class GlobalKTable(Generic[K, V]):
    """Global table, returned by `StreamsBuilder.global_table`; streams join with it.

    A table's rows are distributed among the tasks, so a record finds only rows of its own
    partition. A global table has all rows in each process: a record may look up any key, and
    neither side is repartitioned.

    Args:
        store: name of the store of the rows.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> texts = {"key": serdes.string, "value": serdes.string}
        >>> names = builder.global_table("countries", **texts, store="names")
        >>> orders = builder.stream("orders", **texts)
        >>> named = orders.join(names, lambda _, name: name, key_mapper=lambda _, code: code)
        >>> named.to("named", value=serdes.string)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("countries").send("se", "Sweden")
        ...     driver.input("orders").send("o1", "se")
        ...     driver.output("named").read().value
        'Sweden'
    """

    store: str
    _draft: Draft = field(repr=False)
    _node: str

    def __repr__(self) -> str:
        return f"<GlobalKTable of {self._node} store={self.store}>"


def global_table(
    draft: Draft,
    topic: str,
    *,
    key: AnySerde | None,
    value: AnySerde | None,
    store: str | Materialized | None,
    name: str | None,
) -> GlobalKTable[K, V]:
    options = materialized(store)
    names = draft.names
    store_name = names.store(f"{topic}-") if options.store is None else options.store
    source = GlobalSource(
        names.node("KSTREAM-SOURCE-", None if name is None else f"{name}-source"),
        topic=topic,
        key=key,
        value=value,
    )
    table = GlobalTable(names.node("KTABLE-SOURCE-", name), (source.name,), store_name)
    # The topic is the changelog, and nothing is cached: the table has no downstream nodes.
    spec = replace(options.spec(store_name), logged=False, cached=False)
    draft.add(source, table, store=Store(spec, key, value))
    return GlobalKTable(store_name, draft, table.name)


def node_of(table: GlobalKTable[K, V], draft: Draft) -> str:
    if table._draft is not draft:
        raise TopologyError(
            "join() was given a global table of another builder; use a single builder"
        )
    return table._node
