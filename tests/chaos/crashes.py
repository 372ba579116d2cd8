"""What is left of a process that a signal has ended: its core, read by gdb where there is one.

`faulthandler` says nothing of a fault in one of librdkafka's own threads: they have every signal
blocked, so the process ends without its handler.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

_READ_WITHIN_S = 60
_LINES_MAX = 40


def let_dump() -> None:
    """Have this process leave a core behind, where the machine lets it."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))


def take_core(directory: Path, log: Path) -> Path | None:
    """Read the core in a process' directory into its log; returns where the core is kept.

    Returns:
        None where there is none, as its place is another one on this machine, or nobody writes it.
    """
    found = sorted(directory.glob("core*"), key=lambda path: path.stat().st_mtime)
    if not found:
        return None
    kept = found[-1].rename(directory / f"kept-{len(list(directory.glob('kept-*')))}")
    gdb = shutil.which("gdb")
    if gdb is not None:
        with log.open("ab") as out:
            out.write(f"\n{_stack_of(gdb, kept)}\n".encode())
    return kept


def _stack_of(gdb: str, core: Path) -> str:
    asked = ["-ex", "info threads", "-ex", "bt 25", sys.executable, str(core)]
    try:
        done = subprocess.run(
            [gdb, "-batch", "-nx", *asked],
            capture_output=True,
            timeout=_READ_WITHIN_S,
            check=False,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"gdb has not read {core} within {_READ_WITHIN_S} s"
    stack = done.stdout.splitlines()
    return "\n".join([f"core {core}, as gdb has it:", *stack[-2 * _LINES_MAX :]])
