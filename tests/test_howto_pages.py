"""The how-to guides have one form: what, when and when not, code, sections, related pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.processes import ROOT

DOCS = ROOT / "docs"
OWN_FORM = ("recipes/", "runbooks/")
"""Guides of a form of their own, which other tests check."""
RELATED_MAX = 4


def guides() -> list[str]:
    """Return the pages of the tab with guides."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    tab = nav.partition("  - How-to guides:\n")[2].partition("\n  - Reference:\n")[0]
    pages: list[str] = re.findall(r"[\w./-]+\.md", tab)
    return [page for page in pages if not page.startswith(OWN_FORM)]


of_each_guide = pytest.mark.parametrize("page", guides())


def _parts(page: str) -> tuple[list[str], str]:
    """Return the paragraphs before the first section, and the sections."""
    text = re.sub(r"^```.*?^```", "```", (DOCS / page).read_text(), flags=re.M | re.S)
    head, mark, sections = text.partition("\n## ")
    return [part for part in head.split("\n\n") if part.strip()], mark + sections


def test_the_tab_has_guides() -> None:
    assert len(guides()) > 30
    assert all((DOCS / page).is_file() for page in guides())


@of_each_guide
def test_a_guide_opens_with_what_it_is_for_and_when_to_use_it(page: str) -> None:
    opening, _ = _parts(page)
    assert re.match(r"# \S", opening[0])
    assert not opening[1].startswith(("#", "|", "```", "![", "**When.**")), "say what it is for"
    (when,) = [part for part in opening if part.startswith("**When.** ")]
    assert opening.index(when) <= 3
    assert len(when.split()) <= 45
    assert re.search(r"[.)] [A-Z]", when.removeprefix("**When.** ")), "and when not to use it"


@of_each_guide
def test_a_guide_shows_code_or_a_table_in_its_sections(page: str) -> None:
    opening, sections = _parts(page)
    assert "```" in sections or "```" in "".join(opening)
    assert sections.count("\n## ") >= 2


@of_each_guide
def test_a_guide_ends_with_related_pages(page: str) -> None:
    _, sections = _parts(page)
    last = sections.rpartition("\n## ")[2]
    title, _, content = last.partition("\n\n")
    assert title == "Related"
    links = re.findall(r"^- \[[^]]+\]\(([^)#]+)(?:#[^)]*)?\)", content, re.M)
    assert 1 <= len(links) <= RELATED_MAX
    assert len(set(links)) == len(links)
    assert all(((DOCS / page).parent / link).is_file() for link in links)
    assert Path(page).name not in links
