"""Content of a picture of a topology: topics, nodes and stores as boxes, and arrows between them.

It is independent of the drawing in `headrace.topology.describe.mermaid` and
`headrace.topology.describe.drawing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headrace.topology.graph.graph import Node, Sink

if TYPE_CHECKING:
    from headrace.topology.graph.graph import Graph

Kind = Literal["topic", "step", "store"]


@dataclass(frozen=True, slots=True)
class Box:
    """A topic, a node or a store.

    Args:
        id: unique in the picture.
        kind: topic, node ("step") or store.
        text: its name, as in `Topology.describe`.
        lane: the sub-topology that it belongs to; None for a topic, which may connect two.
    """

    id: str
    kind: Kind
    text: str
    lane: int | None = None


@dataclass(frozen=True, slots=True)
class Arrow:
    """Flow of records between two boxes; a node and its store are `tied`."""

    start: str
    end: str
    tied: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """All boxes, and the arrows between them, in the order in which they were added."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    lanes: dict[int, str]
    """Titles by number of the sub-topology."""


def picture_of(topology: Graph) -> Picture:
    """Return the boxes and arrows of a topology.

    Example:
        >>> from headrace.topology.dsl.builder import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> lines = builder.stream("lines")
        >>> lines.filter(lambda key, line: line, name="keep").to("out", name="write")
        >>> [f"{arrow.start} > {arrow.end}" for arrow in picture_of(builder.build()).arrows][1:]
        ['KSTREAM-SOURCE-0000000000 > keep', 'keep > write', 'write > topic out']
    """
    drawn = _Drawn()
    for sub in topology.sub_topologies:
        drawn.lane(sub.id, f"Sub-topology {sub.id}", sub.nodes)
    for store in topology.global_stores:
        drawn.lane(store.id, f"Global table {store.store.name}", (store.source, store.table))
    return Picture(tuple(drawn.boxes.values()), tuple(dict.fromkeys(drawn.arrows)), drawn.lanes)


class _Drawn:
    def __init__(self) -> None:
        self.boxes: dict[str, Box] = {}
        self.arrows: list[Arrow] = []
        self.lanes: dict[int, str] = {}

    def lane(self, number: int, name: str, nodes: tuple[Node, ...]) -> None:
        self.lanes[number] = name
        for node in nodes:
            self._box(Box(node.name, "step", _text(node), number))
            for topic in node.reads_topics:
                self.arrows.append(Arrow(self._topic(topic), node.name))
            self.arrows += [Arrow(parent, node.name) for parent in node.parents]
            for store in node.stores:
                self._box(Box(f"store {store}", "store", store, number))
                self.arrows.append(Arrow(node.name, f"store {store}", tied=True))
            if node.as_sink is not None:
                self.arrows.append(Arrow(node.name, self._topic(_target(node.as_sink))))

    def _topic(self, name: str) -> str:
        return self._box(Box(f"topic {name}", "topic", name))

    def _box(self, box: Box) -> str:
        self.boxes.setdefault(box.id, box)
        return box.id


def _text(node: Node) -> str:
    sink = node.as_sink
    if sink is None or sink.combines is None:
        return node.name
    return f"{node.name} (combines: {sink.combines.fold.word})"


def _target(sink: Sink) -> str:
    """Return the topic of a sink; if a function chooses it, the function's name."""
    if isinstance(sink.topic, str):
        return sink.topic
    return f"chosen by {getattr(sink.topic, '__qualname__', type(sink.topic).__name__)}"
