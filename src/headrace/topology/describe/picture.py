"""Picture of a topology: topics, nodes and stores as boxes, and arrows between them.

It is drawn as a Mermaid flowchart, for Markdown pages and notebooks, or as an SVG picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final, Literal

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


# A Mermaid flowchart.


_SHAPES: Final = {"topic": ('[/"', '"/]'), "step": ('["', '"]'), "store": ('[("', '")]')}


def to_mermaid(topology: Graph) -> str:
    picture = picture_of(topology)
    # Boxes are numbered, because names may contain Mermaid syntax.
    ids = {box.id: f"{box.kind}{index}" for index, box in enumerate(picture.boxes)}
    lines = ["flowchart TD", *_boxes(picture, ids)]
    for arrow in picture.arrows:
        line = "---" if arrow.tied else "-->"
        lines.append(f"  {ids[arrow.start]} {line} {ids[arrow.end]}")
    return "\n".join(lines) + "\n"


def _boxes(picture: Picture, ids: dict[str, str]) -> list[str]:
    lines = [f"  {_box(box, ids)}" for box in picture.boxes if box.lane is None]
    for lane, name in picture.lanes.items():
        lines.append(f'  subgraph lane{lane}["{_escaped(name)}"]')
        lines += [f"    {_box(box, ids)}" for box in picture.boxes if box.lane == lane]
        lines.append("  end")
    return lines


def _box(box: Box, ids: dict[str, str]) -> str:
    left, right = _SHAPES[box.kind]
    return f"{ids[box.id]}{left}{_escaped(box.text)}{right}"


def _escaped(text: str) -> str:
    """Escape characters that could end a label or be read as HTML, as Mermaid entities."""
    named = {'"': "quot", "<": "lt", ">": "gt", "&": "amp", "#": "35"}
    return "".join(f"#{named[letter]};" if letter in named else letter for letter in text)


# An SVG picture: a lane per sub-topology, with records flowing downwards.


_LETTER: Final = 7.3
"""Width of a letter in pixels, at the font size of the picture."""
_HEIGHT: Final = 30.0
_GAP: Final = 22.0
_ROW: Final = 72.0
_MARGIN: Final = 16.0
_TITLE: Final = 26.0
_STYLE: Final = (
    "<style>text{font:12px ui-monospace,monospace;text-anchor:middle;fill:#1c2733}"
    ".lane{fill:#8aa0b5;fill-opacity:.14}.title{fill:#5b6b7a;text-anchor:start}"
    ".step{fill:#fff;stroke:#5b6b7a}.topic{fill:#d7e9ff;stroke:#3b78b8}"
    ".store{fill:#ffe9c7;stroke:#b87d2b}path{fill:none;stroke:#5b6b7a}"
    "path.tied{stroke-dasharray:4 3}</style>"
)
_HEAD: Final = (
    '<defs><marker id="headrace-arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8" style="fill:#5b6b7a"/></marker></defs>'
)


@dataclass(frozen=True, slots=True)
class _BoxPosition:
    """Position of a box: its centre and its width, in pixels."""

    x: float
    y: float
    width: float


def to_svg(topology: Graph) -> str:
    picture = picture_of(topology)
    lanes = _lanes(picture)
    rows = _rows(picture)
    positions, widths = _positions(picture, lanes, rows)
    width = sum(widths.values()) + _GAP * (len(widths) + 1)
    height = _TITLE + _ROW * (max(rows.values(), default=0) + 1) + _MARGIN
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="Topology">'
        ),
        _STYLE,
        _HEAD,
        *_lane_parts(picture, widths, height),
        *_arrow_parts(picture, positions),
        *(_box_part(box, positions[box.id]) for box in picture.boxes),
        "</svg>",
    ]
    return "".join(parts)


def _lanes(picture: Picture) -> dict[str, int]:
    """Return the lane of each box; a topic is in the lane of the first node that uses it."""
    lanes = {box.id: box.lane for box in picture.boxes if box.lane is not None}
    for arrow in picture.arrows:
        for topic, step in ((arrow.start, arrow.end), (arrow.end, arrow.start)):
            if topic.startswith("topic "):
                lanes.setdefault(topic, lanes[step])
    return lanes


def _rows(picture: Picture) -> dict[str, int]:
    """Return the row of each box, below all its inputs; edges that close a loop are ignored."""
    feeds: dict[str, list[str]] = {box.id: [] for box in picture.boxes}
    for arrow in picture.arrows:
        if not arrow.tied:
            feeds[arrow.end].append(arrow.start)
    rows: dict[str, int] = {}

    def row(box: str, above: frozenset[str]) -> int:
        if box not in rows:
            rest = [start for start in feeds[box] if start not in above]
            rows[box] = max((row(start, above | {box}) + 1 for start in rest), default=0)
        return rows[box]

    tied = {arrow.end: arrow.start for arrow in reversed(picture.arrows) if arrow.tied}
    for box in picture.boxes:
        if box.id not in tied:
            row(box.id, frozenset({box.id}))
    # A store is in the row of the first node that uses it.
    return rows | {store: rows[step] for store, step in tied.items()}


def _positions(
    picture: Picture, lanes: dict[str, int], rows: dict[str, int]
) -> tuple[dict[str, _BoxPosition], dict[int, float]]:
    lines: dict[tuple[int, int], list[Box]] = {}
    for box in picture.boxes:
        lines.setdefault((lanes[box.id], rows[box.id]), []).append(box)
    widths = {
        lane: max([_width(name), *(_line_width(b) for (at, _), b in lines.items() if at == lane)])
        for lane, name in picture.lanes.items()
    }
    positions: dict[str, _BoxPosition] = {}
    left = _GAP
    for lane, width in widths.items():
        for (at, row), boxes in lines.items():
            if at == lane:
                x = left + (width - _line_width(boxes)) / 2
                for box in boxes:
                    own = _width(box.text)
                    y = _TITLE + _ROW * row + _ROW / 2
                    positions[box.id] = _BoxPosition(x + _GAP / 2 + own / 2, y, own)
                    x += own + _GAP
        left += width + _GAP
    return positions, widths


def _width(text: str) -> float:
    return len(text) * _LETTER + 20


def _line_width(boxes: list[Box]) -> float:
    return sum(_width(box.text) + _GAP for box in boxes)


def _lane_parts(picture: Picture, widths: dict[int, float], height: float) -> Iterator[str]:
    left = _GAP
    for lane, width in widths.items():
        yield (
            f'<rect class="lane" x="{left:.0f}" y="4" width="{width:.0f}" '
            f'height="{height - 8:.0f}" rx="8"/>'
            f'<text class="title" x="{left + 10:.0f}" y="22">{escape(picture.lanes[lane])}</text>'
        )
        left += width + _GAP


def _arrow_parts(picture: Picture, positions: dict[str, _BoxPosition]) -> Iterator[str]:
    for arrow in picture.arrows:
        start, end = positions[arrow.start], positions[arrow.end]
        if start.y == end.y:
            x1, x2 = sorted((start.x, end.x))
            yield f'<path class="tied" d="M{x1:.0f} {start.y:.0f}L{x2:.0f} {end.y:.0f}"/>'
            continue
        up = arrow.tied and end.y < start.y
        side = -_HEIGHT / 2 if up else _HEIGHT / 2
        y1, y2 = start.y + side, end.y - side
        bend = -20.0 if up else max(abs(y2 - y1) / 2, 20)
        kind = ' class="tied"' if arrow.tied else ' marker-end="url(#headrace-arrow)"'
        yield (
            f'<path{kind} d="M{start.x:.0f} {y1:.0f}C{start.x:.0f} {y1 + bend:.0f} '
            f'{end.x:.0f} {y2 - bend:.0f} {end.x:.0f} {y2:.0f}"/>'
        )


def _box_part(box: Box, at: _BoxPosition) -> str:
    round_by = {"topic": 15, "step": 3, "store": 8}[box.kind]
    return (
        f'<rect class="{box.kind}" x="{at.x - at.width / 2:.0f}" '
        f'y="{at.y - _HEIGHT / 2:.0f}" width="{at.width:.0f}" height="{_HEIGHT:.0f}" '
        f'rx="{round_by}"/><text x="{at.x:.0f}" y="{at.y + 4:.0f}">{escape(box.text)}</text>'
    )
