"""English text that every machine has: the documentation in Python's standard library."""

from __future__ import annotations

import ast
import inspect
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_NO_PROSE = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})


@dataclass(frozen=True)
class Text:
    """Text to count: non-empty lines, and their origin."""

    lines: list[str]
    origin: str

    @property
    def size(self) -> int:
        """Bytes in UTF-8."""
        return sum(len(line.encode()) for line in self.lines)

    def counts(self) -> Counter[str]:
        """Count the words plainly, split as the word count splits them."""
        return Counter(word for line in self.lines for word in line.split())


def read_file(path: Path) -> Text:
    """Read a text file in UTF-8."""
    return Text(_lines([path.read_text(encoding="utf-8", errors="replace")]), str(path))


def standard_library(cache: Path, *, report: Callable[[str], None]) -> Text:
    """Take the docstrings of the running Python's standard library.

    Args:
        cache: a directory that keeps the lines, as it takes seconds to collect them.
        report: called before the lines are collected.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    kept = cache / f"standard-library-{version}.txt"
    if not kept.exists():
        report("Collecting the text, some seconds and only once ...")
        lines = _lines(_docstrings(Path(sysconfig.get_path("stdlib"))))
        draft = kept.with_suffix(".new")
        draft.write_text("\n".join(lines), encoding="utf-8")
        draft.rename(kept)
    origin = f"the documentation inside Python {version}'s standard library"
    return Text(read_file(kept).lines, origin)


def _lines(texts: Iterable[str]) -> list[str]:
    lines = (line.strip() for text in texts for line in text.splitlines())
    # A lone surrogate, as an escape in a docstring may make it, has no UTF-8.
    return [line.encode(errors="replace").decode() for line in lines if line]


def _docstrings(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*.py")):
        if _NO_PROSE.isdisjoint(path.relative_to(root).parts):
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):
                continue  # some files are invalid on purpose
            yield from _docstrings_in(tree)


def _docstrings_in(scope: ast.Module | ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """Yield the docstrings of a scope and of its direct definitions."""
    docstring = ast.get_docstring(scope, clean=False)
    if docstring:
        yield inspect.cleandoc(docstring)
    for statement in scope.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            yield from _docstrings_in(statement)
