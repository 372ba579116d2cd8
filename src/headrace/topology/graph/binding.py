"""Binding of each serde to the topic that it is used with.

A serde that works with a schema registry names its schemas after the topic. One serde object often
serves several topics, because the serde of a source is passed on to the stores and sinks
downstream. So serdes are bound late, when all names are known, and each use gets the serde of its
own topic.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.topology.graph.graph import G
from headrace.topology.graph.node import AnySerde, Serdes
from headrace.topology.processors.store import Store
from headrace.topology.serdes._serde import completed, for_topic


def bound_to_topics(
    topology: G, *, application_id: str, default_key: AnySerde, default_value: AnySerde
) -> G:
    """Return the topology with bound serdes; the same object if no serde depends on its topic.

    A sink that chooses the topic for each record keeps its serdes. A source of several topics uses
    the serdes of the first.
    """
    binder = _Binder(application_id, default_key, default_value)
    nodes = tuple(node.bound(binder) for node in topology.nodes)
    read = {group.store.name: group.source.topic for group in topology.global_stores}
    stores = tuple(
        binder.store(store, read.get(store.name, store.source_topic)) for store in topology.stores
    )
    if nodes == topology.nodes and stores == topology.stores:
        return topology
    return replace(topology, nodes=nodes, stores=stores)


class _Binder:
    def __init__(self, application_id: str, default_key: AnySerde, default_value: AnySerde) -> None:
        self._prefix = f"{application_id}-"
        self._default_key = default_key
        self._default_value = default_value

    def store(self, store: Store, topic: str | None) -> Store:
        """Bind the serdes of a store; `topic` None means its changelog."""
        changelog = f"{self._prefix}{store.name}-changelog"
        key, value = self._pair(store.key, store.value, changelog if topic is None else topic)
        return replace(store, key=key, value=value)

    def part(self, serde: AnySerde | None, topic: str, *, is_key: bool) -> AnySerde:
        """Bind a serde that an operator uses itself; `topic` has no application id."""
        default = self._default_key if is_key else self._default_value
        return _bound(serde, default, self._prefix + topic, is_key=is_key) or default

    def serdes(
        self, key: AnySerde | None, value: AnySerde | None, topic: str, *, internal: bool
    ) -> Serdes:
        return self._pair(key, value, self._prefix + topic if internal else topic)

    def _pair(self, key: AnySerde | None, value: AnySerde | None, topic: str) -> Serdes:
        return (
            _bound(key, self._default_key, topic, is_key=True),
            _bound(value, self._default_value, topic, is_key=False),
        )


def _bound(
    serde: AnySerde | None, default: AnySerde, topic: str, *, is_key: bool
) -> AnySerde | None:
    bound = for_topic(completed(serde, default), topic, is_key=is_key)
    return serde if bound is serde or bound is default else bound
