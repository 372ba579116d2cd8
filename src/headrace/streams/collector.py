"""Python's cycle collector while modules are loaded, and while commands and workers run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

COLLECT_AFTER_OBJECTS = 100_000
"""Python's own is 700, which costs a tenth of the throughput of a counting application."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the cycle collector look less often: rows make many objects and no cycles.

    Modules make many that all stay; to look at them takes up to a tenth of the time of loading.
    """
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
