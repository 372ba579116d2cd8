"""The optional rows in Rust: whether they are installed, and whether they are used.

The distribution `headrace-native` (directory `native/`) has them. Their counterparts in Python are
the reference, and they run where `headrace-native` is not installed or `HEADRACE_PURE=1` is set.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any

PURE_VARIABLE = "HEADRACE_PURE"
"""Environment variable that switches the rows in Rust off if it is neither empty nor 0."""

NATIVE_VERSION = "0.1.0"
"""The version of `headrace-native` that this release works with."""


@cache
def native_module() -> Any:
    """Return the module `headrace_native` if it is to be used, else None.

    Raises:
        ImportError: Another version of it is installed than this release works with.
    """
    if os.environ.get(PURE_VARIABLE, "") not in ("", "0"):
        return None
    try:
        module = importlib.import_module("headrace_native")
    except ModuleNotFoundError:
        return None
    if module.__version__ != NATIVE_VERSION:
        raise ImportError(
            f"headrace-native {module.__version__} is installed, but this release of headrace "
            f"works with {NATIVE_VERSION}. Run pip install 'headrace[speed]', or set {PURE_VARIABLE}=1"
        )
    return module


def rows_in_use() -> str:
    """Describe which rows are used, for people.

    >>> rows_in_use().split(" ")[0] in ("Rust", "Python")
    True
    """
    module = native_module()
    return "Python" if module is None else f"Rust (headrace-native {module.__version__})"
