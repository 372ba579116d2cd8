"""A core for each process that simulates: its threads take strict turns, so more are of no use.

A thread that hands its turn over to one on another core wakes that core up, and waits for Python's
lock there. On one core the same seeds take a quarter less of a processor's time.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized

PROCESSES = 2
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
"""Those that there are when the tests begin; none where nobody can choose."""


def keep_to_one_core(number: int, cores: list[int]) -> None:
    """Keep this thread, and those that it starts, to one of the cores."""
    if cores:
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def _begin(begun: Synchronized[int], cores: list[int]) -> None:
    with begun.get_lock():
        begun.value += 1
        number = begun.value
    keep_to_one_core(number, cores)


def make_pool() -> ProcessPoolExecutor:
    """Make the processes that run seeds, each on a core of its own."""
    # A fork of a process that has used RocksDB has none of its threads and waits for them.
    context = get_context("spawn")
    return ProcessPoolExecutor(
        min(PROCESSES, os.cpu_count() or 1),
        mp_context=context,
        initializer=_begin,
        # A process begins on the core of the thread that starts it.
        initargs=(context.Value("i", 0), CORES),
    )
