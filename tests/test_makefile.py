"""`make setup` says what is wrong before it makes anything; `make test` knows its files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.turns import MEASURED_S

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def setup_with(python: str | Path, venv: Path) -> subprocess.CompletedProcess[str]:
    command = ["make", "setup", f"PYTHON={python}", f"VENV={venv}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_too_old_a_python_is_named_with_its_version(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    refused = setup_with(old, tmp_path / "venv")
    assert refused.returncode != 0
    assert "is Python 3.9.2, but Headrace needs Python >= 3.11" in refused.stderr
    assert not (tmp_path / "venv").exists()


def test_a_missing_python_is_named_with_the_way_out(tmp_path: Path) -> None:
    refused = setup_with("no-such-python", tmp_path / "venv")
    assert refused.returncode != 0
    assert "make setup PYTHON=" in refused.stderr
    assert not (tmp_path / "venv").exists()


def test_every_file_that_was_measured_is_there() -> None:
    """One that has moved would be guessed at, and may be given out last though it takes longest."""
    assert [name for name in MEASURED_S if not (ROOT / name).is_file()] == []
