"""What mypy says, from a process of its own: in the one of the tests its memory would stay."""

from __future__ import annotations

import subprocess
import sys

from tests.support.processes import ROOT


def type_check(*arguments: str) -> tuple[str, str, int]:
    """Run mypy as `make lint` does, with its cache.

    Returns:
        Its report, its other troubles, and its exit status.
    """
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout, done.stderr, done.returncode
