"""The site as HTML: everything that is Markdown in a page is rendered, and each link has a target.

`mkdocs build --strict` only checks links. A fence that it does not know becomes prose, and a list
that follows its sentence without an empty line becomes part of the sentence, without a warning.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

import pytest

from tests.support.processes import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FENCE = re.compile(r"^(`{3,}|~{3,})")
_BLOCK = re.compile(r"(?:!!!|\?\?\?\+?|===!?) ")
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
    """Content that a page should show; indented code blocks are fences, too."""

    fences: list[str] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)
    rows: int = 0


def read_source(text: str) -> Source:
    """Return the fences, headings and table rows of a page's Markdown."""
    found = Source()
    if text.startswith("---\n"):
        text = text.partition("\n---\n")[2]
    _read(text.splitlines(), found)
    return found


def _read(lines: list[str], found: Source) -> None:
    """Read a page, or the content of a block such as an admonition, which is indented."""
    fence: list[str] | None = None
    mark = before = ""
    indent = index = 0
    is_in_list = False
    while index < len(lines):
        line = lines[index]
        index += 1
        opened = _FENCE.match(line.strip())
        if fence is not None:
            if line.strip() == mark:
                found.fences.append("\n".join(fence).strip("\n"))
                fence = None
            else:
                fence.append(line[indent:] if line[:indent].isspace() else line)
        elif opened is not None:
            fence, mark, indent = [], opened[1], len(line) - len(line.lstrip())
        elif _BLOCK.match(line):
            content = _indented(lines[index:])
            index += len(content)
            _read([inner[4:] for inner in content], found)
        elif line.startswith("    ") and (not before or before.startswith("    ")):
            if not is_in_list and not before:
                found.fences.append(line[4:])
            elif not is_in_list:
                found.fences[-1] += "\n" + line[4:]
        elif re.match(r"#{1,6} ", line):
            found.headings.append(_plain(line.lstrip("#")))
        elif line.startswith("|") and not re.fullmatch(r"\|(?: *:?-+:? *\|)+", line):
            found.rows += 1
        if line and not line.startswith(" "):
            is_in_list = bool(re.match(r"(?:[-*]|\d+\.) ", line))
        before = line
    assert fence is None, "a fence without an end"


def _indented(lines: list[str]) -> list[str]:
    """Return the lines up to the first that is neither empty nor indented."""
    count = next((i for i, line in enumerate(lines) if line and line[:4].strip()), len(lines))
    return lines[:count]


def _plain(markdown: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "").strip()


class Page(HTMLParser):
    """Content of the main part of a built page, and the anchors of the whole page."""

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
        return self._inside("article")

    def _inside(self, *tags: str) -> bool:
        return any(tag in tags for tag, _ in self._open)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag not in _VOID:
            self._open.append((tag, given.get("class") == "headerlink"))
        if not self._is_main:
            return
        self.links += [value for name in ("href", "src") if (value := given.get(name))]
        self.rows += tag == "tr"
        if tag in (*_HEADINGS, "pre"):
            self._text = ""
        if tag in ("p", "li", "td", "th"):
            self.prose += "\n"

    def handle_data(self, data: str) -> None:
        if not self._is_main or any(is_permalink for _, is_permalink in self._open):
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
    """Read a page of the site once, however many links lead to it."""
    return Page(built.read_text())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("material") is None:
        pytest.fail("mkdocs-material is not installed: run make setup")
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(built)]
    # Each of both prints a notice about other generators, which is not about this site.
    notices = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | notices
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return built


def _built(site: Path, page: Path) -> Path:
    path = page.relative_to(DOCS).with_suffix("")
    return site / (path.parent if path.name == "index" else path) / "index.html"


def test_the_pages_build_without_a_warning(site: Path) -> None:
    assert (site / "index.html").is_file()


def _with(pages: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(DOCS)))


@_with(PAGES)
def test_every_fence_and_every_heading_is_one(site: Path, page: Path) -> None:
    source, shown = read_source(page.read_text()), page_at(_built(site, page))
    if page.parent.name == "api":  # the rest of these pages comes from docstrings
        assert set(source.headings) <= set(shown.headings)
        return
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


def test_content_of_an_admonition_is_not_code() -> None:
    page = """
!!! note "Title"
    Text.

        code

    ```python
    print(1)
    ```

    | a |
    |---|

=== "Tab"

    ## Heading

1. Item

    of two paragraphs
"""
    source = read_source(page)
    assert source == Source(["code", "print(1)"], ["Heading"], rows=1)


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    """A link may lead to another site; scripts, styles, fonts and images are part of this one."""
    loaded = re.compile(r"<(?:script|img|iframe|source)[^>]*src=[\"']?(?:https?:)?//")
    styles = re.compile(r"<link[^>]*rel=[\"']?(?:stylesheet|preload|preconnect)[^>]*//")
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text()), page
        assert not styles.search(page.read_text()), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", style.read_text()), style


REDIRECTS = {
    "beyond": "sinks",
    "calls": "async-io",
    "chaos": "how-we-test/chaos",
    "getting-started": "tutorials/first-application",
    "page": "dashboard",
    "query": "interactive-queries",
    "testing-the-core": "how-we-test",
    "versioned": "versioned-tables",
    "watch": "monitoring",
}


@pytest.mark.parametrize("old", REDIRECTS)
def test_old_addresses_lead_to_the_renamed_pages(site: Path, old: str) -> None:
    assert f'url=../{REDIRECTS[old]}/"' in (site / old / "index.html").read_text()
    assert (site / REDIRECTS[old] / "index.html").is_file()


def test_public_classes_and_methods_have_anchors_with_examples(site: Path) -> None:
    streams = page_at(site / "api" / "streams" / "index.html")
    names = ("StreamsBuilder.stream", "KStream.map_async", "KStream.join", "KStream.process")
    assert {f"headrace.{name}" for name in names} <= streams.anchors
    assert any(">>> items.map_async(price_of, concurrency=50)" in code for code in streams.blocks)


def test_the_list_for_language_models_leads_to_pages_of_the_site(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    links = re.findall(r"\]\(https://headrace\.example/([^)]+)\)", text)
    assert "api/streams/index.md" in links
    assert [link for link in links if not (site / link).is_file()] == []


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium")
@pytest.mark.parametrize("path", ["", "windows/", "api/streams/", "configuration/"])
def test_pages_fit_a_phone_and_load_only_the_site(browser: Any, address: str, path: str) -> None:
    """Wide tables and code scroll in their own boxes."""
    page = browser.new_page(viewport={"width": 390, "height": 844})
    requested, problems = [], []
    page.on("request", lambda request: requested.append(request.url))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{address}/{path}")
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert [url for url in requested if not url.startswith((address, "data:"))] == []
    assert problems == []
    page.close()
