"""The optional rows in Rust: whether they are installed, and whether they are used.

The distribution `headrace-native` (directory `native/`) has them. Their counterparts in Python are
the reference, and they run where `headrace-native` is not installed or `HEADRACE_PURE=1` is set.
Both give the same results, files and changelog records, so a worker can change from one to the
other at any restart.
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
    """Return the module `headrace_native`, or None if the rows in Python are used.

    Raises:
        ImportError: This release works with another version of `headrace-native`.
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
            f"works with {NATIVE_VERSION}. Run pip install 'headrace[speed]', or set "
            f"{PURE_VARIABLE}=1"
        )
    return module


def rows_language() -> str:
    """Return the language of the rows in use, as in the log and in the metrics.

    >>> rows_language() in ("rust", "python")
    True
    """
    return "python" if native_module() is None else "rust"


def rows_in_use() -> str:
    """Describe the rows in use, for people.

    >>> rows_in_use().split(" ")[0] in ("Rust", "Python")
    True
    """
    module = native_module()
    return "Python" if module is None else f"Rust (headrace-native {module.__version__})"
