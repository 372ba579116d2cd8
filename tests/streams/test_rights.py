from __future__ import annotations

from pathlib import Path

from streams.rights import rows

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_page_has_this_very_table() -> None:
    assert "\n".join(rows()) in PAGE.read_text(), "run python -m streams.rights"
