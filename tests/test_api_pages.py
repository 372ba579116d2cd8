"""The API reference: each public name is on exactly one page."""

from __future__ import annotations

import dataclasses
import inspect
import re
from importlib import import_module

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
