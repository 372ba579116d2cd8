"""Code blocks of the recipes, for tests that run them on real systems."""

from __future__ import annotations

import doctest
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.processes import ROOT

RECIPES = ROOT / "docs" / "recipes"


def blocks(page: Path | str, kind: str) -> list[str]:
    """The blocks of one kind on a page, such as ``sh``."""
    path = RECIPES / f"{page}.md" if isinstance(page, str) else page
    return re.findall(rf"^```{kind}\n(.*?)^```$", path.read_text(), re.M | re.S)


def renamed(code: str, names: Mapping[str, str]) -> str:
    """Replace the texts of a block that are different in a test."""
    for name, own in names.items():
        assert name in code, name
        code = code.replace(name, own)
    return code


def scope_of(page: str, *, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run the first interactive block of a page; returns the names that it defines."""
    scope: dict[str, Any] = {"__name__": f"recipe_{page.replace('-', '_')}"}
    code = renamed(blocks(page, "pycon")[0], names or {})
    for example in doctest.DocTestParser().get_examples(code):
        exec(compile(example.source, f"{page}.md", "exec"), scope)
    return scope
