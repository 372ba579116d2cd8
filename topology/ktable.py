"""A table: the last value of each key, and the stream of its changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar, overload

from topology import kstream
from topology.draft import Edge
from topology.graph import Function, Stateless

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


class KTable(Generic[K, V]):
    """Rows by key. What flows from it is each change: the new value, None where the row is gone."""

    __slots__ = ("_edge",)

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def filter(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> KTable[K, V]:
        """Keep the rows for which the predicate holds; another row counts as deleted.

        Args:
            predicate: called as ``predicate(key, value)``, never with None as the value.
            name: name of the node; None generates one.
        """

        def kept(key: K, value: V | None) -> V | None:
            return value if value is not None and predicate(key, value) else None

        return self._mapped("KTABLE-FILTER-", kept, name)

    def filter_not(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> KTable[K, V]:
        """Keep the rows for which the predicate does not hold; another row counts as deleted.

        Args:
            predicate: called as ``predicate(key, value)``, never with None as the value.
            name: name of the node; None generates one.
        """

        def kept(key: K, value: V | None) -> V | None:
            return None if value is None or predicate(key, value) else value

        return self._mapped("KTABLE-FILTER-", kept, name)

    @overload
    def map_values(
        self,
        mapper: Callable[[V], V2],
        *,
        with_key: Literal[False] = False,
        name: str | None = None,
    ) -> KTable[K, V2]: ...
    @overload
    def map_values(
        self, mapper: Callable[[K, V], V2], *, with_key: Literal[True], name: str | None = None
    ) -> KTable[K, V2]: ...

    def map_values(
        self, mapper: Callable[..., V2], *, with_key: bool = False, name: str | None = None
    ) -> KTable[K, V2]:
        """Compute each row's value anew; a deleted row stays deleted.

        Args:
            mapper: called as ``mapper(value)``, never with None; None deletes the row.
            with_key: call ``mapper(key, value)`` instead.
            name: name of the node; None generates one.
        """
        if with_key:

            def mapped(key: K, value: V | None) -> V2 | None:
                return None if value is None else mapper(key, value)

        else:

            def mapped(key: K, value: V | None) -> V2 | None:  # noqa: ARG001
                return None if value is None else mapper(value)

        table: KTable[K, V2] = self._mapped("KTABLE-MAPVALUES-", mapped, name)
        return KTable(replace(table._edge, value=None))

    def _mapped(self, prefix: str, function: Function, name: str | None) -> KTable[K, Any]:
        # As a stream's operator would do it: a row that is filtered out must say so downstream.
        edge = self._edge
        node_name = edge.draft.names.node(prefix, name)
        node = Stateless(node_name, (edge.node,), op="map_values", function=function, stream=False)
        return KTable(edge.then(node))

    @overload
    def to_stream(
        self, key_mapper: None = None, *, name: str | None = None
    ) -> kstream.KStream[K, V]: ...
    @overload
    def to_stream(
        self, key_mapper: Callable[[K, V], K2], *, name: str | None = None
    ) -> kstream.KStream[K2, V]: ...

    def to_stream(
        self, key_mapper: Callable[[K, V], Any] | None = None, *, name: str | None = None
    ) -> kstream.KStream[Any, V]:
        """Read the table's changes as a stream.

        Args:
            key_mapper: gives each change another key, called as ``key_mapper(key, value)`` with
                None as the value of a row that is gone.
            name: name of the node; None generates one.

        Returns:
            The stream of changes.

        Raises:
            TopologyError: the name is not legal or is taken.
        """
        edge = self._edge
        node_name = edge.draft.names.node("KTABLE-TOSTREAM-", name)
        node = Stateless(node_name, (edge.node,), op="pass", stream=False)
        stream: kstream.KStream[K, V] = kstream.KStream(edge.then(node))
        return stream if key_mapper is None else stream.select_key(key_mapper)
