"""Public names change only on purpose, and packages grow only on purpose."""

from __future__ import annotations

import pytest

from tests.support.golden_names import (
    GOLDEN,
    NAMES,
    lines_of,
    package_lines,
    recorded_lines,
)

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


def test_no_package_has_more_lines_than_are_recorded() -> None:
    recorded = recorded_lines()
    larger = [
        f"{package} has {lines} lines, {recorded.get(package, 0)} are recorded. A later feature "
        f"may raise the record in the same commit: {AGAIN}"
        for package, lines in package_lines().items()
        if lines > recorded.get(package, 0)
    ]
    assert not larger, "\n" + "\n".join(larger)


def test_the_recorded_packages_are_those_that_exist() -> None:
    assert recorded_lines().keys() == package_lines().keys(), f"run {AGAIN}"
