"""The notebooks of the documentation have outputs, and each has a page that is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.notebooks import NOTEBOOKS, page, pictures, read

ALL = sorted(NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_page_is_that_of_its_notebook(path: Path) -> None:
    assert path.with_suffix(".md").read_text() == page(path), "python -m tests.support.notebooks"
    for name, svg in pictures(path).items():
        assert path.with_name(name).read_text() == svg


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_notebook_was_executed_from_its_beginning(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert any(pictures(path))


def test_a_topology_draws_the_picture_that_the_notebook_keeps() -> None:
    (path,) = ALL
    first = next(cell for cell in read(path).cells if cell.cell_type == "code")
    scope: dict[str, object] = {}
    exec(first.source, scope)
    assert scope["topology"]._repr_html_() in pictures(path).values()  # type: ignore[attr-defined]
