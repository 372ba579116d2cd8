"""What a user installs: the four packages, typed, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"state", "topology", "streams", "spark_bridge"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy of the tree, so that old build leftovers cannot slip in."""
    work = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(
        ".*", "build", "dist", "site", "__pycache__", "*.egg-info", "golden"
    )
    shutil.copytree(ROOT, work / "tree", ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    built = subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", work, work / "tree"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = work.glob("headrace-*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_exactly_the_four_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert len(tops) == len(PACKAGES) + 1


def test_the_wheel_holds_every_module_of_the_tree(wheel: zipfile.ZipFile) -> None:
    modules = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert modules == {name for name in wheel.namelist() if name.endswith(".py")}


def test_the_wheel_holds_no_test(wheel: zipfile.ZipFile) -> None:
    parts = {part for name in wheel.namelist() for part in name.split("/")}
    assert not {"tests", "conftest.py"} & parts
    assert not [part for part in parts if part.startswith("test_")]


def test_every_package_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wheel.namelist())


def test_the_wheel_brings_the_command(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "headrace = streams.cli:main" in wheel.read(name).decode()


def test_the_wheel_offers_the_commands_of_the_bridge(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    _, _, offered = wheel.read(name).decode().partition("[headrace.commands]")
    assert "backfill = spark_bridge.cli:backfill" in offered.splitlines()


def test_spark_is_installed_only_with_an_extra(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("dist-info/METADATA")]
    lines = [
        line
        for line in wheel.read(name).decode().splitlines()
        if re.match(r"Requires-Dist: (pyspark|pyarrow|pandas|numpy)\b", line)
    ]
    assert lines
    assert all("; extra == " in line for line in lines)
