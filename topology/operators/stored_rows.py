"""Rows of a store by their key objects, and one receiver in the place of several."""

from __future__ import annotations

from typing import Any

from headrace.state.buffer import Buffer
from headrace.topology.context.context import Headers, Receive
from headrace.topology.graph.graph import AnySerde

__all__ = ["StoredRows", "to_all"]


class StoredRows:
    """The rows of a store, by their key objects."""

    __slots__ = ("_encode", "_get")

    def __init__(self, buffer: Buffer, key: AnySerde) -> None:
        self._get = buffer.get
        self._encode = key.serialize

    def get(self, key: Any, /) -> tuple[Any, int]:
        """The value and timestamp of a key, or (None, -1)."""
        return self._get(self._encode(key))


def to_all(receivers: tuple[Receive, ...]) -> Receive:
    """One receiver that hands each record to several, in their order."""
    if len(receivers) == 1:
        return receivers[0]

    def forward(key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        for receive in receivers:
            receive(key, value, old, timestamp, headers)

    return forward
