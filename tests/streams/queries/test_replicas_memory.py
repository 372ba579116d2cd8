"""Memory that closed files have used is returned to the operating system."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path

import pytest

from headrace.streams.queries.replicas import ReplicaTrackers

MB = 1 << 20
THREADS = 4
ALLOCATED_MB = 24


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


def _allocate_and_free(pinned: list[bytes], gate: threading.Barrier) -> None:
    gate.wait()  # all at once, so that each thread has an arena of its own
    blocks = [b"x" * (32 << 10) for _ in range(ALLOCATED_MB * MB // (32 << 10))]
    pinned.append(b"x" * (32 << 10))  # at the end of the arena, which therefore cannot shrink
    gate.wait()
    blocks.clear()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_a_sweep_returns_the_memory_of_all_threads(tmp_path: Path) -> None:
    replicas = ReplicaTrackers(tmp_path, monotonic_s=time.monotonic)
    pinned: list[bytes] = []
    gate = threading.Barrier(THREADS)
    threads = [
        threading.Thread(target=_allocate_and_free, args=(pinned, gate)) for _ in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before_mb = _resident_mb()
    replicas._sweep()
    assert before_mb - _resident_mb() > THREADS * ALLOCATED_MB / 2
    replicas.close()
