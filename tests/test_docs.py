"""The pages say what is so: links lead somewhere, tables match the code, nothing is left out."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streams import reactions
from tests.support.processes import ROOT
from topology import BranchedKStream, KGroupedStream, KStream, KTable, StreamsBuilder

DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
_LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)", re.S)


def _rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ")]


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text()):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), target
        if anchor:
            assert anchor in _anchors(linked), f"{target}#{anchor}"


def test_the_page_on_guarantees_has_the_table_of_reactions() -> None:
    """It stands in streams/reactions.py, where it is read by who changes the code."""
    table = _rows(reactions.__doc__ or "")
    page = _rows((DOCS / "guarantees.md").read_text())
    begin = page.index(table[0])
    assert page[begin : begin + len(table)] == table, "copy the table to docs/guarantees.md"
    named = set(re.findall(r"`([A-Z]+)`", "\n".join(table)))
    assert named == {reaction.name for reaction in reactions.Reaction}
    for reaction in reactions.Reaction:
        assert f"| `{reaction.name}` | {reaction.value} |" in page


def test_every_test_that_a_page_names_exists() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    assert named
    missing = [name for name in sorted(named) if f"def {name}(" not in tests]
    assert not missing


@pytest.mark.parametrize("face", [StreamsBuilder, KStream, KGroupedStream, KTable, BranchedKStream])
def test_the_page_on_the_dsl_uses_every_method(face: type) -> None:
    page = (DOCS / "dsl.md").read_text()
    methods = [name for name, _ in inspect.getmembers(face, inspect.isfunction)]
    public = [name for name in methods if not name.startswith("_")]
    assert public
    missing = [name for name in public if f".{name}(" not in page and f"`{name}`" not in page]
    assert not missing


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    missing = [page.name for page in DOCS.rglob("*.md") if f"{page.relative_to(DOCS)}" not in nav]
    assert not missing


def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_example_of_logs_runs() -> None:
    (code,) = re.findall(
        r"^```python\n(.*?)^```$", (DOCS / "operations.md").read_text(), re.M | re.S
    )
    event = "structlog.get_logger().warning('task_started', task='0_1')"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{event}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"event": "task_started"' in done.stdout
