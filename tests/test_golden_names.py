"""Public names change only on purpose, and packages grow only on purpose."""

from __future__ import annotations

import pytest

from tests.support.golden_names import GOLDEN, NAMES, lines_of

AGAIN = "python -m tests.support.golden_names"


@pytest.mark.parametrize("name", NAMES)
def test_the_names_are_those_that_are_recorded(name: str) -> None:
    recorded = (GOLDEN / f"{name}.txt").read_text().splitlines()
    found = lines_of(name).splitlines()
    gone, new = sorted({*recorded} - {*found}), sorted({*found} - {*recorded})
    assert found == recorded, (
        f"{name}: {gone} are gone, {new} are new. Users rely on these names. If the change is "
        f"intended, run {AGAIN} and add a fragment to changes/"
    )
