"""A topology as a Mermaid flowchart, which Markdown pages and notebooks draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.topology.describe.picture import Box, Picture, picture_of

if TYPE_CHECKING:
    from headrace.topology.graph.graph import Graph

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
