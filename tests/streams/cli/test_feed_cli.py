"""What `headrace feed` says of sources that cannot be read, before or after it asks a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.streams.cli.main import main


def feed(*arguments: str) -> Any:
    nowhere = ("--bootstrap-servers", "127.0.0.1:1")
    return CliRunner().invoke(main, ["feed", "--to", "rows", *arguments, *nowhere])


def test_a_pattern_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    found = feed("--files", f"{tmp_path}/*.jsonl")
    assert found.exit_code == 1, found.output
    assert f"Error: no file matches {tmp_path}/*.jsonl. Correct the pattern" in found.stderr
    assert "--follow" in found.stderr


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("none.py:connect", "file none.py does not exist"),
        ("shop_db.py:none", "has no attribute 'none'; it must be a function without arguments"),
        ("shop_db.py:NUMBER", "is a int. Name a function"),
        ("shop_db:connect2", "has no attribute 'connect2'"),
        ("connect", "does not name a function. Write module:function or path/to/file.py:function"),
    ],
)
def test_what_makes_no_connection_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, said: str
) -> None:
    (tmp_path / "shop_db.py").write_text("NUMBER = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*os.sys.path])  # type: ignore[attr-defined]
    found = feed("--sql", "SELECT 1", "--column", "id", "--connect", target)
    assert found.exit_code == 3, found.output
    assert said in found.stderr
