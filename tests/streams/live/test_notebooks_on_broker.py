"""The notebooks of the documentation, executed in a kernel against a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.notebooks import NAMES, NOTEBOOKS, columns, executed, picture, read, texts
from tests.support.topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_each_cell_gives_the_output_that_the_notebook_keeps(
    topics: Topics, tmp_path: Path, path: Path
) -> None:
    """The size of a picture depends on the names, so another test compares it."""
    own = {name: topics.name(name) for name in NAMES}
    kept, now = read(path), executed(read(path), tmp_path, topics.bootstrap, own)
    for before, after in zip(kept.cells, now.cells, strict=True):
        shown = [columns(text) for text in texts(before, {})]
        assert [columns(text) for text in texts(after, own)] == shown, before.source
        assert (picture(after) is None) == (picture(before) is None)
