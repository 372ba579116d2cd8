"""Runs a graph one record at a time, depth first: what compiled code must equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.topology import serdes
from headrace.topology.graph.fold import Aggregating, Counting, Reducing
from headrace.topology.graph.graph import (
    Aggregate,
    Branch,
    Node,
    Sink,
    Stateless,
    SubTopology,
    TableSource,
)

Sent = tuple[str, Any, Any, int]
"""A sink's topic, a key, a value and a timestamp."""
Row = tuple[Any, int]


class Interpreter:
    """One task without caches; records that need a key and have none are dropped."""

    def __init__(self, sub: SubTopology) -> None:
        self._sub = sub
        self._rows: dict[tuple[str, bytes], Row] = {}
        self._sent: list[Sent] = []

    def process(self, topic: str, key: Any, value: Any, timestamp: int) -> list[Sent]:
        """Send one record of a source topic through the sub-topology."""
        self._sent = []
        for source in self._sub.sources:
            if topic in source.topics:
                self._forward(source, key, value, timestamp)
        return self._sent

    def rows(self, store: str) -> list[tuple[Any, Any, int]]:
        """A store's keys, values and timestamps in the order of the keys' bytes."""
        return [
            (serdes.json.deserialize(key), value, timestamp)
            for (name, key), (value, timestamp) in sorted(
                self._rows.items(), key=lambda item: item[0]
            )
            if name == store
        ]

    def _forward(self, node: Node, key: Any, value: Any, timestamp: int) -> None:
        for child in self._sub.children(node.name):
            self._visit(child, key, value, timestamp)

    def _visit(self, node: Node, key: Any, value: Any, timestamp: int) -> None:
        match node:
            case Sink():
                topic = node.topic(key, value) if callable(node.topic) else node.topic
                self._sent.append((topic, key, value, timestamp))
            case Branch():
                self._branch(node, key, value, timestamp)
            case Aggregate():
                self._aggregate(node, key, value, timestamp)
            case TableSource():
                self._upsert(node, key, value, timestamp)
            case Stateless():
                for new_key, new_value in _results(node, key, value):
                    self._forward(node, new_key, new_value, timestamp)
            case _:
                raise AssertionError(node)

    def _branch(self, node: Branch, key: Any, value: Any, timestamp: int) -> None:
        for predicate, name in zip(node.predicates, node.children, strict=True):
            if predicate is None or predicate(key, value):
                child = next(c for c in self._sub.children(node.name) if c.name == name)
                self._visit(child, key, value, timestamp)
                return

    def _upsert(self, node: TableSource, key: Any, value: Any, timestamp: int) -> None:
        if key is None:
            return
        if node.store is None:
            self._forward(node, key, value, timestamp)
            return
        old, _ = self._rows.get((node.store, serdes.json.serialize(key)), (None, -1))
        if serdes.json.serialize([value]) != serdes.json.serialize([old]):
            self._update(node, node.store, key, value, timestamp)

    def _aggregate(self, node: Aggregate, key: Any, value: Any, timestamp: int) -> None:
        if key is None or value is None:
            return
        old = self._rows.get((node.store, serdes.json.serialize(key)))
        new = _folded(node, key, value, old)
        later = timestamp if old is None else max(timestamp, old[1])
        if new is None and old is None:
            return
        self._update(node, node.store, key, new, later)

    def _update(self, node: Node, store: str | None, key: Any, value: Any, timestamp: int) -> None:
        if store is not None:
            place = store, serdes.json.serialize(key)
            if value is None:
                self._rows.pop(place, None)
            else:
                self._rows[place] = value, timestamp
        self._forward(node, key, value, timestamp)


def _folded(node: Aggregate, key: Any, value: Any, old: Row | None) -> Any:
    match node.fold:
        case Counting():
            return 1 if old is None else old[0] + 1
        case Reducing(adder):
            return value if old is None else adder(old[0], value)
        case Aggregating(initializer, adder):
            return adder(key, value, initializer() if old is None else old[0])
    raise AssertionError(node.fold)


def _results(node: Stateless, key: Any, value: Any) -> Iterable[tuple[Any, Any]]:
    if node.op == "pass":
        return [(key, value)]
    if node.op == "null_key_filter":
        return [] if key is None else [(key, value)]
    assert node.function is not None, node
    result = node.function(key, value) if node.with_key else node.function(value)
    match node.op:
        case "filter" | "filter_not":
            return [(key, value)] if bool(result) is (node.op == "filter") else []
        case "map":
            return [result]
        case "map_values":
            return [(key, result)]
        case "select_key":
            return [(result, value)]
        case "flat_map":
            return result
        case "flat_map_values":
            return [(key, one) for one in result]
        case "peek" | "for_each":
            return [(key, value)]
        case _:
            raise AssertionError(node.op)
