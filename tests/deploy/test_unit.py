"""systemd accepts the unit, with the program where the unit has it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, UNIT, unit_command

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"
)


def verify(text: str, directory: Path) -> str:
    """Return what systemd-analyze complains about."""
    program = directory / unit_command()[0].lstrip("/")
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = directory / "headrace@.service"
    unit.write_text(text.replace("/opt/", f"{directory}/opt/"))
    dropped = directory / "headrace@word_count.service.d"
    dropped.mkdir(exist_ok=True)
    shutil.copy(DEPLOY / "systemd/password.conf", dropped)
    command = ["systemd-analyze", "verify", str(directory / "headrace@word_count.service")]
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{directory}:"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    # Other units of the machine are loaded too, and are not of interest.
    complaints = [
        line for line in done.stderr.splitlines() if "headrace" in line or "password.conf" in line
    ]
    return "\n".join(complaints)


def test_the_unit_is_valid(tmp_path: Path) -> None:
    assert verify(UNIT.read_text(), tmp_path) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("KillMode=mixed", "KillMode=some"),
        ("RestartSec=10", "RestartSecs=10"),
        ("bin/headrace run", "bin/headrase run"),
    ],
)
def test_a_mistake_in_the_unit_is_found(right: str, wrong: str, tmp_path: Path) -> None:
    text = UNIT.read_text()
    assert right in text
    assert verify(text.replace(right, wrong), tmp_path) != ""
