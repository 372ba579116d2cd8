"""The chapters of the tutorial, block by block, as far as they need no broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.reader import Reader
from tests.support.tutorials import CHAPTERS, TUTORIALS, Block, comparable, files_before, steps


def test_every_chapter_is_tested() -> None:
    assert sorted(page.stem for page in TUTORIALS.glob("*.md")) == sorted(CHAPTERS)


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_commands_of_a_chapter_print_what_it_shows(chapter: str, tmp_path: Path) -> None:
    me = Reader(tmp_path, "localhost:1", {})
    for block in files_before(chapter):
        me.save(block)
    for step in steps(chapter):
        if isinstance(step, Block):
            me.save(step)
        elif step.is_offline:
            printed = [me.run(line) for line in step.lines][-1]
            assert step.output is None or comparable(printed) == comparable(step.output)
