"""What readers see of the pages: built as HTML, with nothing of Markdown left in its text.

`mkdocs build --strict` looks at links alone: a fence that it does not know becomes prose, a list
that follows its sentence without an empty line goes on as the sentence, both without a warning.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.support.processes import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
_FENCE = re.compile(r"^(`{3,}|~{3,})")
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source")
_LEFT_OVER = {
    "a fence": re.compile(r"```|~~~"),
    "code": re.compile(r"`"),
    "a link": re.compile(r"\]\(|\]\["),
    "emphasis": re.compile(r"\*\*"),
    "a heading": re.compile(r"^#{1,6} ", re.M),
    "a list": re.compile(r"^(?:[-*]|\d+\.) ", re.M),
    "a table": re.compile(r"^\||\|$", re.M),
}


@dataclass
class Source:
    """What a page should show, as its Markdown has it; indented blocks are fences too."""

    fences: list[str] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)
    rows: int = 0


def read_source(text: str) -> Source:
    """Tell the fences, the headings and the rows of tables of a page's Markdown."""
    found = Source()
    fence: list[str] | None = None
    mark = before = ""
    for line in text.splitlines():
        opened = _FENCE.match(line.strip())
        if fence is not None:
            if line.strip() == mark:
                found.fences.append("\n".join(fence).rstrip("\n"))
                fence = None
            else:
                fence.append(line)
        elif opened is not None:
            fence, mark = [], opened[1]
        elif line.startswith("    ") and (not before or before.startswith("    ")):
            if not before:
                found.fences.append(line[4:])
            else:
                found.fences[-1] += "\n" + line[4:]
        elif re.match(r"#{1,6} ", line):
            found.headings.append(_plain(line.lstrip("#")))
        elif line.startswith("|") and not re.fullmatch(r"\|(?: *:?-+:? *\|)+", line):
            found.rows += 1
        before = line
    assert fence is None, "a fence without an end"
    return found


def _plain(markdown: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "").strip()


class Page(HTMLParser):
    """What a built page shows: its main part, and the anchors of all of it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.blocks: list[str] = []
        self.headings: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.prose = ""
        self.rows = 0
        self._open: list[tuple[str, bool]] = []
        self._text: str | None = None
        self.feed(html)
        self.close()

    @property
    def _is_main(self) -> bool:
        return any(main for _, main in self._open)

    def _inside(self, *tags: str) -> bool:
        return any(tag in tags for tag, _ in self._open)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag not in _VOID:
            self._open.append((tag, given.get("role") == "main"))
        if not self._is_main:
            return
        self.links += [value for name in ("href", "src") if (value := given.get(name))]
        self.rows += tag == "tr"
        if tag in (*_HEADINGS, "pre"):
            self._text = ""
        if tag in ("p", "li", "td", "th"):
            self.prose += "\n"

    def handle_data(self, data: str) -> None:
        if not self._is_main:
            return
        if self._text is not None:
            self._text += data
        if not self._inside("code", "pre"):
            self.prose += data

    def handle_endtag(self, tag: str) -> None:
        if self._text is not None and tag == "pre":
            self.blocks.append(self._text.rstrip("\n"))
            self._text = None
        elif self._text is not None and tag in _HEADINGS:
            self.headings.append(self._text.strip())
            self._text = None
        while self._inside(tag) and self._open.pop()[0] != tag:
            pass


@cache
def page_at(built: Path) -> Page:
    """Read a page of the site, once however many links lead to it."""
    return Page(built.read_text())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(built)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return built


def _built(site: Path, page: Path) -> Path:
    place = page.relative_to(DOCS).with_suffix("")
    return site / ("" if place.name == "index" else place) / "index.html"


def test_the_pages_build_without_a_warning(site: Path) -> None:
    """Strictly, and without a word: else there is no site for any test."""
    assert (site / "index.html").is_file()


def _with(pages: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(DOCS)))


@_with(PAGES)
def test_every_fence_and_every_heading_is_one(site: Path, page: Path) -> None:
    source, shown = read_source(page.read_text()), page_at(_built(site, page))
    assert shown.blocks == source.fences
    assert shown.headings == source.headings
    assert shown.rows == source.rows


@_with(PAGES)
def test_nothing_of_markdown_is_left_in_the_text(site: Path, page: Path) -> None:
    prose = page_at(_built(site, page)).prose
    assert len(prose) > 100
    left = {what: found for what, mark in _LEFT_OVER.items() if (found := mark.findall(prose))}
    assert not left, prose


@_with(PAGES)
def test_every_link_and_anchor_of_the_site_leads_somewhere(site: Path, page: Path) -> None:
    built = _built(site, page)
    for link in page_at(built).links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (built.parent / path).resolve() if path else built
        target = target / "index.html" if target.is_dir() else target
        assert target.is_file(), link
        if anchor:
            assert anchor in page_at(target).anchors, link
