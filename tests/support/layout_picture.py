"""The map of the packages, drawn from their order: ``python -m tests.support.layout_picture``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

from tests.test_layout import ROOT, TOPS, packages

PICTURE = ROOT / "docs/images/packages.svg"

SAID = {
    "state": "bytes and time",
    "topology": "what to compute",
    "streams": "how it runs on Kafka",
    "streams_web": "how it is seen from outside",
    "spark_bridge": "the same over history",
}
USES = {
    "topology": ("state",),
    "streams": ("topology",),
    "streams_web": ("streams",),
    "spark_bridge": ("streams",),
}
"""Whom each knows next to itself; what that knows it may know as well."""

_WIDTH, _PAD, _GAP = 960, 14, 8
_BOX_HEIGHT, _TITLE_HEIGHT, _BETWEEN = 28, 30, 34
_SIGN, _ROOM_PAD = 7.2, 18

_STYLE = """
    .band { fill: #f6f8fa; stroke: #d0d7de; }
    .package { fill: #ddf4ff; stroke: #0969da; }
    text { fill: #1f2328; }
    text { font: 12.5px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
    .name { text-anchor: middle; }
    .title { font-size: 15px; font-weight: 600; }
    .said { fill: #59636e; font-weight: 400; }
    .arrow { stroke: #59636e; stroke-width: 1.8; }
    .head { fill: #59636e; }
    @media (prefers-color-scheme: dark) {
      .band { fill: #151b23; stroke: #3d444d; }
      .package { fill: #0c2d6b; stroke: #4493f8; }
      text { fill: #f0f6fc; }
      .said { fill: #9198a1; }
      .arrow { stroke: #9198a1; }
      .head { fill: #9198a1; }
    }
"""


def packages_of(top: str) -> tuple[str, ...]:
    """The packages within a top folder, those that know fewest first."""
    within = (name for name in packages() if name.endswith("/") and name.startswith(f"{top}/"))
    return tuple(name.removeprefix(f"{top}/").rstrip("/") for name in within if name != f"{top}/")


def drawn() -> str:
    """The picture, as SVG: who stands higher knows who is below."""
    half = (_WIDTH - _GAP) / 2
    layers = (
        (("streams_web", 0.0, half), ("spark_bridge", half + _GAP, half)),
        (("streams", 0.0, _WIDTH),),
        (("topology", 0.0, _WIDTH),),
        (("state", 0.0, _WIDTH),),
    )
    parts: list[str] = []
    top = 1.0
    for depth, layer in enumerate(layers):
        height = max(_height(name, width) for name, _, width in layer)
        for name, left, width in layer:
            parts += _band(name, left, top, width, height)
            if depth < len(layers) - 1:
                parts += _arrow(left + width / 2, top + height)
        top += height + _BETWEEN
    height = top - _BETWEEN + 1
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 0 {_WIDTH + 2} {height:g}" '
        'role="img" aria-labelledby="title desc">\n'
        '  <title id="title">The packages of Headrace</title>\n'
        f'  <desc id="desc">{escape(_said_in_words())}</desc>\n'
        f"  <style>{_STYLE}  </style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _said_in_words() -> str:
    assert set(SAID) == set(TOPS)
    known = (f"{name} knows {' and '.join(others)}" for name, others in USES.items())
    return "; ".join(known) + ". Within each, a package knows those to its left."


def _places(names: Iterable[str], width: float) -> Iterator[tuple[str, float, int, float]]:
    """The names with left edge, row, and width."""
    x, row = float(_PAD), 0
    for name in names:
        wide = len(name) * _SIGN + _ROOM_PAD
        if x + wide > width - _PAD:
            x, row = float(_PAD), row + 1
        yield name, x, row, wide
        x += wide + _GAP


def _height(name: str, width: float) -> float:
    last = max((row for _, _, row, _ in _places(packages_of(name), width)), default=0)
    return _TITLE_HEIGHT + (last + 1) * (_BOX_HEIGHT + _GAP) + _PAD / 2


def _band(name: str, left: float, top: float, width: float, height: float) -> Iterator[str]:
    yield (
        f'  <rect class="band" x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" '
        'rx="6"/>'
    )
    yield (
        f'  <text class="title" x="{left + _PAD:g}" y="{top + 20:g}">{name}/'
        f'<tspan class="said" dx="10">{SAID[name]}</tspan></text>'
    )
    for package, x, row, wide in _places(packages_of(name), width):
        y = top + _TITLE_HEIGHT + row * (_BOX_HEIGHT + _GAP)
        yield (
            f'  <rect class="package" x="{left + x:g}" y="{y:g}" width="{wide:g}" '
            f'height="{_BOX_HEIGHT}" rx="4"/>'
        )
        yield f'  <text class="name" x="{left + x + wide / 2:g}" y="{y + 18.5:g}">{package}</text>'


def _arrow(x: float, top: float) -> Iterator[str]:
    tip = top + _BETWEEN - 2
    yield f'  <line class="arrow" x1="{x:g}" y1="{top:g}" x2="{x:g}" y2="{tip - 8:g}"/>'
    back, left, right = tip - 9, x - 6, x + 6
    yield f'  <path class="head" d="M {left:g} {back:g} L {right:g} {back:g} L {x:g} {tip:g} Z"/>'


def main() -> None:
    """Write the picture where the page has it."""
    Path(PICTURE).write_text(drawn())


if __name__ == "__main__":
    main()
