"""Whatever a bad disk makes of a file of local state, its rows are right, or refused, at once."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import hosts
from tests.support.processes import ROOT

SEEDS, DAMAGES = 60, 20


def child(what: str, directory: Path, seed: int) -> str:
    command = [sys.executable, "-m", "tests.state.damage_child", what, str(directory), str(seed)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def damage(directory: Path, choose: random.Random) -> str | None:
    """Most often of the list of files: what RocksDB cannot read of it, it does without."""
    if choose.random() < 0.4:
        return hosts.corrupt(directory, choose)
    (manifest,) = directory.glob("MANIFEST-*")
    size = manifest.stat().st_size
    begin = choose.randrange(size)
    with manifest.open("r+b") as file:
        file.seek(begin)
        file.write(choose.randbytes(min(64, size - begin)))
    return f"64 bytes of {manifest.name} overwritten at {begin} of {size}"


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(SEEDS))
def test_damaged_files_lose_no_rows_in_silence(tmp_path: Path, seed: int) -> None:
    child("build", tmp_path, seed)
    told = {}
    for number in range(DAMAGES):
        damaged = tmp_path / f"damaged-{number:02}"
        shutil.copytree(tmp_path / "db", damaged)
        told[damaged.name] = damage(damaged, random.Random(f"{seed}/{number}"))
    looked = [line.split(" ", 1) for line in child("look", tmp_path, seed).splitlines()]
    wrong = {told[name]: found for name, found in looked if found != "[]"}
    assert not wrong
    assert len(looked) == DAMAGES
