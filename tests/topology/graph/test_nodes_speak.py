"""What a node reads, keeps, changes and needs is said by its class, and by no list elsewhere."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import headrace
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.graph.node import Node

ROOT = Path(headrace.__file__).parent
ROOMS = ("topology", "streams", "spark_bridge")
FILES = sorted(
    path.relative_to(ROOT)
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
    if (ROOT / "topology" / "compile") not in path.parents
)


def _below(kind: type) -> Iterator[type]:
    yield kind
    for one in kind.__subclasses__():
        yield from _below(one)


def _kinds() -> frozenset[type]:
    """The classes of all nodes and of all that operators are made from."""
    for name in ("headrace.topology.graph", "headrace.topology.operators"):
        room = importlib.import_module(name)
        for found in pkgutil.walk_packages(room.__path__, f"{name}."):
            importlib.import_module(found.name)
    return frozenset((*_below(Node), *_below(OperatorSpec)))


KINDS = _kinds()


def _names(tree: ast.Module, module: str) -> dict[str, object]:
    """What the names stand for that a file imports or defines, as far as they are such classes."""
    found: dict[str, object] = {one.__name__: one for one in KINDS if one.__module__ == module}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace.topology"):
            source = importlib.import_module(node.module or "")
            for one in node.names:
                found[one.asname or one.name] = getattr(source, one.name, None)
    return {n: value for n, value in found.items() if isinstance(value, type) and value in KINDS}


def _told_apart(code: str, module: str = "") -> list[str]:
    """The places where a file asks which class a node or an operator is of."""
    tree = ast.parse(code)
    names = _names(tree, module)

    def is_kind(node: ast.AST | None) -> bool:
        return any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(node or ast.Pass()))

    def asks(node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            asked = node.args[1] if len(node.args) > 1 else None
            return node.func.id in ("isinstance", "issubclass") and is_kind(asked)
        if isinstance(node, ast.MatchClass):
            return is_kind(node.cls)
        if isinstance(node, ast.Compare):
            return any(isinstance(n, ast.Name) and n.id in names for n in node.comparators)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            listed = node.value
            parts = list(ast.iter_child_nodes(listed)) if _is_list(listed) else []
            return any(isinstance(part, ast.Name) and part.id in names for part in parts)
        return False

    return [ast.unparse(node) for node in ast.walk(tree) if asks(node)]


def _is_list(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_nobody_outside_the_compiler_asks_which_class_a_node_is_of(path: Path) -> None:
    module = ".".join(("headrace", *path.with_suffix("").parts))
    found = _told_apart((ROOT / path).read_text(), module)
    assert not found, f"{path}: let the class say it, as a property: {found}"


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(node, SourceNode)",
        "isinstance(node, (int, SourceNode))",
        "isinstance(node, SourceNode | None)",
        "type(node) is SourceNode",
        "LADDER = (SourceNode, int)",
        "TABLE = {SourceNode: 'read'}",
        "match node:\n    case SourceNode(): pass",
    ],
)
def test_each_way_of_asking_is_found(code: str) -> None:
    imported = "from headrace.topology.graph.graph import SourceNode\n"
    assert _told_apart(imported + code)
    renamed = "from headrace.topology.graph.graph import SourceNode as Reader\n"
    assert _told_apart(renamed + code.replace("SourceNode", "Reader"))
    assert not _told_apart("from elsewhere import SourceNode\n" + code)


def test_the_classes_are_all_known() -> None:
    assert {"SourceNode", "OperatorNode", "ProcessorSpec", "SessionFold"} <= {
        one.__name__ for one in KINDS
    }


def test_every_operator_derives_from_what_speaks_for_it() -> None:
    """A field of a spec that has the name of such a property would answer in its place."""
    said = {name for name in dir(OperatorSpec) if not name.startswith("_")}
    for kind in KINDS:
        if issubclass(kind, OperatorSpec):
            named = {one.name for one in fields(kind)} if is_dataclass(kind) else set[str]()
            assert not named & said, (kind, named & said)
