"""Store as declared in a topology."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.state.spec import StoreSpec
from headrace.topology.serdes import Serde

Function = Callable[..., Any]
AnySerde = Serde[Any]


@dataclass(frozen=True, slots=True)
class Store:
    """Store of a topology: its spec and the serdes of its keys and values."""

    spec: StoreSpec
    key: AnySerde | None = None
    value: AnySerde | None = None
    factory: Function | None = None
    """Creates the wrapper for processors (see `stores.open_store`); None uses the layout's."""
    source_topic: str | None = None
    """Input topic that is also the store's changelog, or None (see `optimizer`)."""

    def __str__(self) -> str:
        return " ".join([self.name, *_named(key=self.key, value=self.value)])

    @property
    def name(self) -> str:
        """The store's name, unique in the topology."""
        return self.spec.name


def _named(**serdes: AnySerde | None) -> list[str]:
    return [f"{part}={serde.name}" for part, serde in serdes.items() if serde is not None]
