"""Other processes that hold locks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a task or an identity, and what it said about it."""

    process: subprocess.Popen[str]
    said: str

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def holding(what: str, root: Path) -> Iterator[Holder]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.state.lock_child", what, str(root)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Holder(process, process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
