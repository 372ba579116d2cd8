"""Topologies as pictures: all of them can be drawn, and what is drawn is what describe tells."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from headrace.topology import StreamsBuilder, Topology, serdes
from headrace.topology.describe.picture import picture_of
from tests.topology.describe import golden_joins, golden_sessions, golden_windows
from tests.topology.describe.golden_cases import CASES

assert golden_joins.WINDOWS  # the modules register their cases
assert golden_sessions.SESSIONS
assert golden_windows.TUMBLING
SVG = "{http://www.w3.org/2000/svg}"


def topology_of(name: str) -> Topology:
    builder = StreamsBuilder()
    CASES[name](builder)
    return builder.build()


@pytest.mark.parametrize("name", CASES)
def test_each_box_and_each_arrow_is_drawn(name: str) -> None:
    topology = topology_of(name)
    picture = picture_of(topology)
    told = {node.name for sub in topology.sub_topologies for node in sub.nodes}
    assert told <= {box.text for box in picture.boxes if box.kind == "step"}
    stores = {store.name for store in topology.stores}
    assert stores == {box.text for box in picture.boxes if box.kind == "store"}

    drawn = ElementTree.fromstring(topology.to_svg())
    texts = [text.text for text in drawn.iter(f"{SVG}text") if text.get("class") != "title"]
    assert sorted(map(str, texts)) == sorted(box.text for box in picture.boxes)
    lines = [path for path in drawn.iter(f"{SVG}path") if "style" not in path.attrib]
    assert len(lines) == len(picture.arrows)

    chart = topology.to_mermaid().splitlines()
    assert len([line for line in chart if re.search(r" (-->|---) ", line)]) == len(lines)


@pytest.mark.parametrize("name", CASES)
def test_no_box_lies_upon_another_or_outside(name: str) -> None:
    drawn = ElementTree.fromstring(topology_of(name).to_svg())
    boxes = [
        tuple(float(rect.attrib[side]) for side in ("x", "y", "width", "height"))
        for rect in drawn.iter(f"{SVG}rect")
        if rect.attrib["class"] != "lane"
    ]
    width, height = float(drawn.attrib["width"]), float(drawn.attrib["height"])
    for index, (x, y, w, h) in enumerate(boxes):
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
        for x2, y2, w2, h2 in boxes[index + 1 :]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


def test_names_cannot_end_what_they_are_in() -> None:
    builder = StreamsBuilder()
    builder.stream("lines").to(type('a"<b>&#', (), {"__call__": lambda *_: "t"})())
    topology = builder.build()
    assert "chosen by a#quot;#lt;b#gt;#amp;#35;" in topology.to_mermaid()
    assert 'a"&lt;b&gt;&amp;#' in topology.to_svg().replace("&quot;", '"')
    ElementTree.fromstring(topology.to_svg())


def test_what_a_console_shows_says_what_it_is() -> None:
    builder = StreamsBuilder()
    lines = builder.stream("lines", key=serdes.string, value=serdes.string)
    counts = lines.group_by(lambda _, line: line, key=serdes.string).count(store="counts")
    counts.to_stream().to("out")
    assert repr(lines) == "<KStream of KSTREAM-SOURCE-0000000000 key=string value=string>"
    assert repr(counts).startswith("<KTable of KSTREAM-AGGREGATE-")
    assert repr(counts).endswith(" key=string value=long>")
    shown = "<Topology: 2 sub-topologies; reads lines; writes out; keeps counts>"
    assert repr(builder.build()) == shown
