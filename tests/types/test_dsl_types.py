"""The types that `dsl_types.py` asserts are those that a type checker infers, each of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.type_checker import type_check

TYPES = Path(__file__).with_name("dsl_types.py")


class Wrong(ast.NodeTransformer):
    """Asserts another type everywhere."""

    def __init__(self) -> None:
        self.count = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "assert_type":
            self.count += 1
            node.args[1] = ast.Name("Never")
        return node


def _errors(file: Path) -> list[str]:
    """What mypy says with the settings that `make lint` uses."""
    config = f"--config-file={ROOT / 'pyproject.toml'}"
    report, trouble, _ = type_check(config, "--no-error-summary", str(file))
    assert not trouble
    return report.splitlines()


@pytest.mark.slow
def test_a_type_checker_agrees_and_would_not_with_any_other_type(tmp_path: Path) -> None:
    """Whatever is inferred, `Never` is not: so each assertion is one that can fail."""
    assert _errors(TYPES) == []
    tree = ast.parse(TYPES.read_text().replace("assert_type\n", "Never, assert_type\n", 1))
    wrong = Wrong()
    copy = tmp_path / "wrong_types.py"
    copy.write_text(ast.unparse(ast.fix_missing_locations(wrong.visit(tree))))
    refused = [error for error in _errors(copy) if "[assert-type]" in error]
    assert len(refused) == wrong.count > 150
