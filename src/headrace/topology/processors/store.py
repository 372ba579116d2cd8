"""A store as a topology declares it."""

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
    """A store of the topology: its spec and the serdes of its keys and values."""

    spec: StoreSpec
    key: AnySerde | None = None
    value: AnySerde | None = None
    face: Function | None = None
    """Makes what a processor sees of it (see `stores.open_store`); None goes by the layout."""
    source_topic: str | None = None
    """The topic that its rows are read from, if that is its changelog too (see `optimizer`)."""

    def __str__(self) -> str:
        return " ".join([self.name, *_named(key=self.key, value=self.value)])

    @property
    def name(self) -> str:
        """The store's name, unique in the topology."""
        return self.spec.name


def _named(**serdes: AnySerde | None) -> list[str]:
    return [f"{part}={serde.name}" for part, serde in serdes.items() if serde is not None]
