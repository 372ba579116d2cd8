"""The API reference: each public name is on exactly one page."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import headrace
from tests.support.kafka_names import COUNTERPARTS, NONE, table
from tests.support.processes import ROOT
from tests.support.public_api import public_methods

API = ROOT / "docs" / "api"
PUBLIC = (
    "headrace",
    "headrace.errors",
    "headrace.simulation",
    "headrace.sources",
    "headrace.spark_bridge",
    "headrace.testing",
)


def _directives() -> list[str]:
    pages = sorted(API.glob("*.md"))
    return [path for page in pages for path in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]


def _identity(path: str) -> int:
    """Return the identity of an object, which may have several public names."""
    module, _, name = path.rpartition(".")
    return id(getattr(import_module(module), name))


def test_each_public_name_is_on_exactly_one_page() -> None:
    directives = _directives()
    shown = [_identity(path) for path in directives]
    twice = [path for path in directives if shown.count(_identity(path)) > 1]
    names = [f"{module}.{name}" for module in PUBLIC for name in import_module(module).__all__]
    names.append("headrace.avro")
    missing = [name for name in names if _identity(name) not in shown]
    assert len(names) > 150
    assert twice == []
    assert missing == []


def test_each_name_in_a_table_is_described_on_its_page() -> None:
    for page in API.glob("*.md"):
        named = re.findall(r"^\| \[`[^`]+`\]\[([\w.]+)\]", page.read_text(), re.M)
        shown = re.findall(r"^::: (\S+)$", page.read_text(), re.M)
        assert set(named) <= set(shown), page.name


_FILTERS = re.findall(
    r'^ +- "!(\^.*)"$', (ROOT / "mkdocs.yml").read_text().partition("filters:")[2], re.M
)
HIDDEN = re.compile("|".join(_FILTERS))
"""Names of members that the pages do not show."""

NOT_OF_THE_DSL = {"StreamsConfig", "State", "UncaughtErrorResponse"}


def _classes(page: str) -> dict[str, type]:
    """Return the classes of a page, except settings and states."""
    paths = re.findall(r"^::: headrace\.(\w+)$", (API / f"{page}.md").read_text(), re.M)
    values = {name: getattr(headrace, name) for name in paths if name not in NOT_OF_THE_DSL}
    return {name: value for name, value in values.items() if inspect.isclass(value)}


def _member(path: str) -> object:
    """Return a method, or the name of a field."""
    owner, _, name = path.partition(".")
    found = getattr(headrace, owner)
    if hasattr(found, name):
        value = getattr(found, name)
        return getattr(value, "__func__", value)
    assert name in {field.name for field in dataclasses.fields(found)}, path
    return path


def _methods(of: type) -> dict[str, object]:
    """Return the methods and properties of a class and its bases that its page shows."""
    names = {
        name
        for base in of.__mro__
        if base.__module__.startswith("headrace")
        for name in public_methods(base)
        if not HIDDEN.search(name)
    }
    return {name: _member(f"{of.__name__}.{name}") for name in names}


@pytest.mark.parametrize("page", COUNTERPARTS)
def test_each_method_has_the_name_of_kafka_streams_or_none(page: str) -> None:
    """A method that several classes inherit needs one row."""
    rows = [*COUNTERPARTS[page], *NONE[page]]
    listed = {id(_member(path)) for path in rows}
    missing = [
        f"{name}.{method}"
        for name, value in _classes(page).items()
        for method, function in _methods(value).items()
        if id(function) not in listed
    ]
    assert missing == []
    assert len(rows) == len({*rows})
    assert {path.partition(".")[0] for path in rows} <= {*_classes(page)}


@pytest.mark.parametrize("page", COUNTERPARTS)
def test_the_page_has_the_names_of_kafka_streams(page: str) -> None:
    assert table(page) in (API / f"{page}.md").read_text(), (
        f"python -m tests.support.kafka_names {page} prints the table"
    )


EXECUTED_BY = {
    "application": "tests/streams/live/test_api_pages_on_broker.py",
    "queries": "tests/streams/live/test_api_pages_on_broker.py",
    "serdes": "tests/streams/kafka/test_schema_registry.py",
    "sources": "tests/streams/live/test_api_pages_on_broker.py",
    "spark": "tests/spark_bridge/live/test_api_page_on_broker.py",
    "testing": "tests/streams/live/test_api_pages_on_broker.py",
}
"""By page: the test that runs its Python blocks, which need Kafka, Spark or a server."""


def _python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)


def test_a_test_runs_the_python_blocks_of_each_page() -> None:
    assert {page.stem for page in API.glob("*.md") if _python_blocks(page)} == {*EXECUTED_BY}
    for page, test in EXECUTED_BY.items():
        assert re.search(rf'"{page}(\.md)?"', (ROOT / test).read_text()), page


def _examples(text: str | None) -> str:
    """Return the code and the output of the examples in a docstring or on a page."""
    examples = doctest.DocTestParser().get_examples(text or "")
    return "".join(example.source + example.want for example in examples)


def _shown(page: Path) -> dict[str, Any]:
    return {
        path: getattr(import_module(path.rpartition(".")[0]), path.rpartition(".")[2])
        for path in re.findall(r"^::: (\S+)$", page.read_text(), re.M)
    }


def _docstrings(value: Any) -> Iterator[str | None]:
    """Return the docstrings of an object and of its members, which are on the same page."""
    yield value.__doc__
    if inspect.ismodule(value):
        yield from (member.__doc__ for member in vars(value).values())
    elif inspect.isclass(value):
        for base in value.__mro__:
            if base.__module__.startswith("headrace"):
                yield base.__doc__
                yield from (method.__doc__ for method in public_methods(base).values())


def _members(of: type) -> set[str]:
    """Return the methods and properties of a class that need an example.

    The example of a protocol is an implementation of it.
    """
    if getattr(of, "_is_protocol", False) and _examples(of.__doc__):
        return set()
    return {
        name
        for base in of.__mro__
        if base.__module__.startswith("headrace")
        for name, method in public_methods(base).items()
        if method.__doc__ and not HIDDEN.search(name)
    }


def _without_example(page: Path) -> list[str]:
    values = _shown(page)
    code = "".join([_examples(page.read_text()), *_python_blocks(page)])
    code += "".join(_examples(text) for value in values.values() for text in _docstrings(value))
    missing = []
    for path, value in values.items():
        if inspect.isclass(value) and issubclass(value, BaseException):
            continue  # docs/reference/errors.md describes when each is raised
        name = path.rpartition(".")[2]
        is_named = re.search(rf"\b{name}\b", code)
        if callable(value) and not is_named and not _examples(value.__doc__):
            missing.append(name)
        if inspect.isclass(value):
            missing += [
                f"{name}.{member}"
                for member in sorted(_members(value))
                if not re.search(rf"(?:\.|def ){member}\b", code)
            ]
    return missing


@pytest.mark.parametrize("page", sorted(API.glob("*.md")), ids=lambda page: page.stem)
def test_each_class_function_and_method_is_used_in_an_executed_example(page: Path) -> None:
    """Of a class without a public constructor, the example in its docstring is enough."""
    assert _without_example(page) == []


def test_a_missing_example_is_reported(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("::: headrace.testing.DevBroker\n")
    assert {"DevBroker", "DevBroker.start"} <= {*_without_example(page)}
    page.write_text("::: headrace.Record\n")
    assert _without_example(page) == []


TIME = re.compile(
    r"(?:^|_)(?:timestamp|time|as_of|now|start|end|timeout|duration|interval|size|age)(?:_|$)"
)
"""Names of parameters that are a time, a duration or a size."""
UNIT = re.compile(r"milliseconds|\bseconds|\bbytes|\boffsets?\b")
_UNIT_IN_NAME = re.compile(r"_(?:ms|s|seconds|bytes)$")


def _functions(value: Any) -> dict[str, Any]:
    """Return a function, or the constructor and the methods of a class, by name."""
    if inspect.isfunction(value):
        return {value.__name__: value}
    if not inspect.isclass(value) or issubclass(value, BaseException):
        return {}
    functions = {}
    for base in reversed(value.__mro__):
        if base.__module__.startswith("headrace"):
            functions |= public_methods(base)
    constructor = {"__init__": value.__init__} if "__init__" in vars(value) else {}
    return {name: f for name, f in functions.items() if not HIDDEN.search(name)} | constructor


def _prose(*values: Any) -> str:
    """Return the docstrings of objects without their examples."""
    text = "\n".join(inspect.getdoc(value) or "" for value in values)
    return "\n".join(line for line in text.splitlines() if ">>>" not in line and "... " not in line)


@pytest.mark.parametrize("page", sorted(API.glob("*.md")), ids=lambda page: page.stem)
def test_the_docstring_names_the_unit_of_each_time_and_size(page: Path) -> None:
    """In the parameter's name, or in the docstring of the function or of its class."""
    missing = [
        f"{path}.{name}: {parameter}"
        for path, value in _shown(page).items()
        for name, function in _functions(value).items()
        for parameter, type_ in getattr(function, "__annotations__", {}).items()
        if TIME.search(parameter)
        and re.search(r"\b(?:int|float|Time)\b", str(type_))
        and not _UNIT_IN_NAME.search(parameter)
        and not UNIT.search(_prose(function, value))
    ]
    assert missing == []
