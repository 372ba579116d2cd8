"""CPU time and memory of processes, their children included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """CPU time and memory of processes.

    Args:
        cpu_s: user and system time since their start.
        memory: resident bytes; shared pages count once for each process.
    """

    cpu_s: float
    memory: int


def resource_usage(pids: Sequence[int]) -> ResourceUsage:
    """Return the CPU time and memory of processes and their children."""
    cpu_s, memory = 0.0, 0
    for process in _family(pids):
        try:
            with process.oneshot():
                times = process.cpu_times()
                cpu_s += times.user + times.system + times.children_user + times.children_system
                memory += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return ResourceUsage(cpu_s, memory)


def _family(pids: Sequence[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        try:
            process = psutil.Process(pid)
            children = process.children(recursive=True)
        except psutil.NoSuchProcess:
            continue
        yield process
        yield from children
