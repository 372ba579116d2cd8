"""The choice between the rows in Rust and those in Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from click.testing import CliRunner

from headrace.state import native
from headrace.state.native import PURE_VARIABLE, native_module, rows_in_use, rows_language
from headrace.streams.cli.main import main


@pytest.fixture(autouse=True)
def unknown_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The choice is made once in a process."""
    monkeypatch.delenv(PURE_VARIABLE, raising=False)
    native_module.cache_clear()
    yield
    native_module.cache_clear()


def installed(monkeypatch: pytest.MonkeyPatch, version: str) -> ModuleType:
    module = ModuleType("headrace_native")
    module.__dict__["__version__"] = version
    monkeypatch.setitem(sys.modules, "headrace_native", module)
    return module


def test_rows_in_rust_are_used_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = installed(monkeypatch, native.NATIVE_VERSION)
    assert native_module() is module
    assert rows_language() == "rust"
    assert rows_in_use() == f"Rust (headrace-native {native.NATIVE_VERSION})"


def test_rows_in_python_are_used_where_rust_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "headrace_native", None)  # an import of it fails
    assert native_module() is None
    assert (rows_language(), rows_in_use()) == ("python", "Python")


@pytest.mark.parametrize(("setting", "is_used"), [("1", False), ("0", True), ("", True)])
def test_a_variable_switches_rows_in_rust_off(
    setting: str, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, native.NATIVE_VERSION)
    monkeypatch.setenv(PURE_VARIABLE, setting)
    assert (native_module() is not None) is is_used


def test_another_version_is_reported_and_does_not_break_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch, "99.0.0")
    assert CliRunner().invoke(main, ["--help"]).exit_code == 0
    shown = CliRunner().invoke(main, ["--version"])
    assert shown.exit_code == 1
    assert "headrace-native 99.0.0 is installed" in shown.output
    assert PURE_VARIABLE in shown.output


def test_the_version_has_the_rows_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PURE_VARIABLE, "1")
    shown = CliRunner().invoke(main, ["--version"], prog_name="headrace")
    assert shown.exit_code == 0
    assert shown.output.startswith("headrace, version ")
    assert shown.output.endswith("rows in Python\n")
