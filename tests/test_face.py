"""What `headrace` names is there, typed as it is at run time, and loaded when it is used."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

import headrace
from tests.support.processes import ROOT
from tests.support.public_api import public_methods, public_objects

FACE = ROOT / "src/headrace/__init__.py"


def typed() -> dict[str, str]:
    """The names that type checkers see, and where they come from."""
    tree = ast.parse(FACE.read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def test_every_name_is_there_and_typed() -> None:
    # A star import must not need the extra `avro`.
    assert {*typed(), "__version__"} == {*headrace.__all__, "avro"}
    for name, module in typed().items():
        home = import_module(module)
        there = getattr(home, name) if hasattr(home, name) else import_module(f"{module}.{name}")
        assert getattr(headrace, name) is there


def test_it_has_all_that_the_rooms_offer_to_applications() -> None:
    offered = {
        *import_module("headrace.topology").__all__,
        *import_module("headrace.streams").__all__,
    }
    assert offered <= set(headrace.__all__)


def test_public_functions_and_methods_have_docstrings() -> None:
    functions = {}
    for value in public_objects():
        own = public_methods(value) if inspect.isclass(value) else {value.__name__: value}
        for name, function in own.items():
            functions[f"{value.__module__}.{value.__qualname__}: {name}"] = (value, name, function)
    # A method of a subclass may rely on the docstring of the method that it overrides.
    missing = [
        where
        for where, (owner, name, function) in functions.items()
        if not (inspect.getdoc(getattr(owner, name, function)) or inspect.getdoc(function))
    ]
    assert len(functions) > 500
    assert missing == []


SHARED = {"name", "key", "value", "store"}
"""Arguments whose meaning is the same for most operators; a class or page describes them once."""


def documented(function: Callable[..., Any]) -> tuple[set[str], str]:
    """Return the arguments in the section "Args" of a docstring, and the text."""
    text = inspect.getdoc(function) or ""
    section = re.search(r"^Args:\n((?:    .*\n|\n)*)", text + "\n", re.M)
    names = re.findall(r"^    \**([\w]+):", section[1], re.M) if section else []
    return set(names), text


def test_arguments_in_docstrings_are_those_of_the_signatures() -> None:
    """An argument that is documented exists; if one is documented, the others are, too."""
    wrong = []
    for value in public_objects():
        own = public_methods(value) if inspect.isclass(value) else {value.__name__: value}
        for name, function in own.items():
            named, text = documented(function)
            if not named:
                continue
            parameters = inspect.signature(function).parameters.values()
            keywords = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
            every = {p.name for p in parameters}
            shared = documented(value)[0] if inspect.isclass(value) else set()
            lacks = {one for one in keywords - named - shared - {"self", "cls"} if one[0] != "_"}
            if "All other arguments are as in" in text:
                lacks = set()
            elif not named & {"key", "value"}:
                lacks -= SHARED
            else:  # the serdes are documented together
                lacks -= {"name", "store"}
            if lacks or named - every:
                wrong.append((f"{value.__qualname__}: {name}", sorted(lacks), named - every))
    assert wrong == []


def test_a_name_that_is_not_there_is_said_so() -> None:
    code = "from headrace import KTabel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "cannot import name 'KTabel' from 'headrace'" in done.stderr


def test_the_version_is_that_of_the_distribution() -> None:
    assert headrace.__version__ == version("headrace")


def test_it_is_a_command() -> None:
    command = [sys.executable, "-m", "headrace", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.startswith("Usage: "), done.stderr
    assert "headrace" in done.stdout.splitlines()[0]
