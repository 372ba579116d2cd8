"""How a table is kept: the name and the options of its store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from state.spec import StoreKind, StoreSpec
from topology.naming import legal


@dataclass(frozen=True, slots=True)
class Materialized:
    """Names a store and says how it is kept; give it as ``store=`` instead of the bare name.

    Args:
        store: the store's name, after which its changelog topic is named; None generates one.
        kind: "rocksdb" keeps rows on disk, "memory" in the process alone.
        logged: whether a changelog topic backs the store, so that it survives its machine.
        cached: whether updates are gathered per key until the commit before they go downstream.
        topic_config: settings of the changelog topic, over the defaults.

    Raises:
        TopologyError: the store's name is not legal.

    >>> Materialized("counts", logged=False).spec("counts")
    StoreSpec(name='counts', kind='rocksdb', logged=False, cached=True, topic_config={})
    """

    store: str | None = None
    kind: StoreKind = "rocksdb"
    logged: bool = True
    cached: bool = True
    topic_config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.store is not None:
            legal(self.store, "store name")

    def spec(self, name: str) -> StoreSpec:
        """The spec of the store under its final name."""
        return StoreSpec(
            name,
            kind=self.kind,
            logged=self.logged,
            cached=self.cached,
            topic_config=self.topic_config,
        )


def materialized(store: str | Materialized | None) -> Materialized:
    """Read what a ``store=`` argument says."""
    return store if isinstance(store, Materialized) else Materialized(store)
