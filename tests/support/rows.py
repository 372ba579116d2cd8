"""Rows of stores in Python and in Rust, for tests that run on both.

A test module does it with ``pytestmark = pytest.mark.usefixtures("rows_of_stores")``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.state import buffers, native

LANGUAGES = ("python", "rust")


@contextmanager
def rows_in(language: str) -> Iterator[None]:
    """Have new stores use the rows of a language; skip the test where they are not installed."""
    module: Any = None
    if language == "rust":
        module = pytest.importorskip("headrace_native", reason="headrace-native is not installed")
        if module.__version__ != native.NATIVE_VERSION:
            pytest.skip("another version of headrace-native is installed: run make setup")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffers, "native_module", lambda: module)
        yield


def is_rust_installed() -> bool:
    try:
        module = importlib.import_module("headrace_native")
    except ModuleNotFoundError:
        return False
    return bool(module.__version__ == native.NATIVE_VERSION)


@contextmanager
def rows_of_seed(seed: int) -> Iterator[None]:
    """Alternate between both languages from seed to seed, as far as they are installed."""
    with rows_in(LANGUAGES[seed % 2] if is_rust_installed() else "python"):
        yield
