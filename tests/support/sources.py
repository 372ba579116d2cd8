"""What files import and define, read once a process however many tests ask."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

Import = ast.Import | ast.ImportFrom
Function = ast.FunctionDef | ast.AsyncFunctionDef

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


@cache
def statements(path: Path) -> tuple[Import | Function, ...]:
    """The imports and the functions of a file, wherever in it."""
    return tuple(_found_in(ast.parse(path.read_text())))


def _found_in(tree: ast.AST) -> Iterator[Import | Function]:
    """Walks statements alone: most of a tree is expressions, which have neither."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Import | Function):
            yield node
        for block in _BLOCKS:
            waiting += getattr(node, block, ())


def imports_of(path: Path) -> list[Import]:
    """The imports of a file, wherever in it."""
    return [node for node in statements(path) if isinstance(node, Import)]
