"""Descriptors of the stores of an application."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.state.layout import Layout
from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SubPlan
from headrace.streams.queries.errors import NoSuchStoreError
from headrace.topology.graph.graph import SubTopology
from headrace.topology.serdes import Serde
from headrace.topology.serdes.windows_serde import WindowStoreSerde

Kind = Literal["key-value", "window", "session", "versioned"]
KINDS: Mapping[str, Kind] = {
    "plain": "key-value", "window": "window", "session": "session", "versioned": "versioned"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoreDescriptor:
    """Description of a store, with everything that is needed to read it.

    Args:
        family: its name on disk, or in memory.
        sub_topology: the sub-topology that owns it; None for a global table.
        key: the serde of row keys; in a window or session store the serde of windowed keys.
        in_memory: whether its rows are only in the memory of workers.
        is_placed: whether the key of a row determines its partition: true if the store is built
            from records that the application itself has partitioned by key. Other producers may
            partition differently, and processors may store any key in any task.
        together: the families of the same RocksDB.
    """

    name: str
    family: str
    kind: Kind
    sub_topology: int | None
    key: Serde[Any]
    value: Serde[Any]
    layout: Layout
    in_memory: bool
    together: tuple[str, ...]
    is_placed: bool = False

    @property
    def is_global(self) -> bool:
        return self.sub_topology is None

    @property
    def key_name(self) -> str:
        """Name of the key serde in queries; for windows the serde of keys in topics."""
        # Row keys have a sequence number after the window, which users do not specify.
        serde = self.key.windowed if isinstance(self.key, WindowStoreSerde) else self.key
        return serde.name


def describe_stores(
    plans: Sequence[SubPlan], global_plans: Sequence[GlobalPlan], config: StreamsConfig
) -> dict[str, StoreDescriptor]:
    found = [*_of_tasks(plans, config), *_of_tables(global_plans)]
    return {store.name: store for store in found}


def _of_tasks(plans: Sequence[SubPlan], config: StreamsConfig) -> Iterator[StoreDescriptor]:
    chosen = {
        sink.topic
        for plan in plans
        for sink in plan.program.sub_topology.sinks
        if sink.internal and sink.partitioner is not None
    }
    for plan in plans:
        sub = plan.program.sub_topology
        stores = sub.stores
        is_fed = all(s.internal and not chosen.intersection(s.topics) for s in sub.sources)
        on_disk = tuple(store.spec.disk_name for store in stores if store.spec.kind == "rocksdb")
        for store in stores:
            yield StoreDescriptor(
                store.name,
                store.spec.disk_name,
                KINDS[store.spec.layout],
                plan.id,
                store.key or config.default_key_serde,
                plan.value_serdes[store.name],
                store.spec.rows,
                store.spec.kind == "memory",
                on_disk,
                is_fed and not _reads_any_key(sub, store.name),
            )


def _reads_any_key(sub: SubTopology, store: str) -> bool:
    return any(node.reads_any_key(store) for node in sub.nodes if store in node.stores)


def _of_tables(plans: Sequence[GlobalPlan]) -> Iterator[StoreDescriptor]:
    families = tuple(f"r-{plan.store.name}" for plan in plans if plan.store.kind == "rocksdb")
    for plan in plans:
        yield StoreDescriptor(
            plan.store.name,
            f"r-{plan.store.name}",
            "key-value",
            None,
            plan.key,
            plan.value,
            plan.store.rows,
            plan.store.kind == "memory",
            families,
        )


def store_of(stores: Mapping[str, StoreDescriptor], application: str, name: str) -> StoreDescriptor:
    if name not in stores:
        known = ", ".join(sorted(stores)) or "none"
        raise NoSuchStoreError(
            f"{application} has no store {name[:80]!r}. Use a store that it has: {known}"
        )
    return stores[name]
