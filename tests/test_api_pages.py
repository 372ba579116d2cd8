"""The API reference: each public name is on exactly one page."""

from __future__ import annotations

import re
from importlib import import_module

from tests.support.processes import ROOT

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
