"""Split of a stream: each record goes to the first branch whose predicate is true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from headrace.topology.arguments import checked
from headrace.topology.dsl import kstream
from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import Branch, Stateless
from headrace.topology.naming import require_legal_name

K = TypeVar("K")
V = TypeVar("V")


@checked
class BranchedKStream(Generic[K, V]):
    """Split of a stream, returned by `KStream.split`; end it with `default_branch` or
    `no_default_branch`.

    The key of a branch in the result is the split's name followed by the branch's name. The default
    name of a branch is its position: "1", "2" and so on, "0" for the default branch.

    Examples:
        >>> from headrace.topology.dsl.builder import StreamsBuilder
        >>> parts = (
        ...     StreamsBuilder()
        ...     .stream("orders")
        ...     .split(name="orders-")
        ...     .branch(lambda _, order: order["total"] > 100, name="large")
        ...     .branch(lambda _, order: order["total"] > 0)
        ...     .default_branch(name="odd")
        ... )
        >>> list(parts)
        ['orders-large', 'orders-2', 'orders-odd']
        >>> split = StreamsBuilder().stream("orders").split(name="orders-")
        >>> list(split.branch(lambda _, order: order["paid"], name="paid").no_default_branch())
        ['orders-paid']
    """

    __slots__ = ("_done", "_edge", "_name", "_streams")

    def __init__(self, edge: Edge, name: str | None) -> None:
        self._edge = edge
        self._name = edge.draft.names.node("KSTREAM-BRANCH-", name)
        self._streams: dict[str, kstream.KStream[K, V]] = {}
        self._done = False
        edge.draft.add(Branch(self._name, (edge.node,)))

    def __repr__(self) -> str:
        return f"<BranchedKStream of {self._edge}>"

    def branch(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> BranchedKStream[K, V]:
        """Add a stream of the records for which this predicate is true and no earlier predicate is.

        Args:
            predicate: called as ``predicate(key, value)``.
            name: suffix of the branch's name; None uses its position.

        Returns:
            The same split, for further calls.

        Raises:
            TopologyError: the name is not legal or is taken, or the split has ended.
        """
        self._add(predicate, str(len(self._streams) + 1) if name is None else name)
        return self

    def default_branch(self, *, name: str | None = None) -> dict[str, kstream.KStream[K, V]]:
        """End the split with a stream of the records for which no predicate is true.

        Args:
            name: suffix of the branch's name; None uses "0".

        Returns:
            The streams by name, in the order in which they were added.

        Raises:
            TopologyError: the name is not legal or is taken, or the split has ended.
        """
        self._add(None, "0" if name is None else name)
        return self.no_default_branch()

    def no_default_branch(self) -> dict[str, kstream.KStream[K, V]]:
        """End the split; records for which no predicate is true are dropped.

        Returns:
            The streams by name, in the order in which they were added.
        """
        self._done = True
        return dict(self._streams)

    def _add(self, predicate: Callable[[K, V], object] | None, suffix: str) -> None:
        if self._done:
            raise TopologyError(
                f"split {self._name!r} has ended; add branches before default_branch() and "
                "no_default_branch()"
            )
        draft = self._edge.draft
        child = require_legal_name(self._name + suffix)
        draft.names.node(child)  # uses up a number, as in Kafka Streams
        draft.add(Stateless(child, (self._name,), op="pass"))
        draft.extend_branch(self._name, predicate, child)
        self._streams[child] = kstream.KStream(replace(self._edge, node=child))
