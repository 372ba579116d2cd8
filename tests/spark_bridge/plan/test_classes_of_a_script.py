"""Classes of the main script go wherever its functions go: here to another process."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.spark_bridge.support.script_of_a_user import OBJECTS
from tests.support.processes import IMPORT_PATH, ROOT

SCRIPT = ROOT / "tests/spark_bridge/support/script_of_a_user.py"


def run_script(*arguments: str, timeout: float = 60) -> str:
    """Run the script of a user as such; returns what it prints."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "PYTHONPATH": IMPORT_PATH},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_classes_of_a_script_are_the_same_where_the_script_is_not() -> None:
    lines = run_script("classes").splitlines()
    here, there = lines[: len(OBJECTS)], lines[len(OBJECTS) :]
    assert len(here) == len(OBJECTS)
    assert there == here
