"""What a cluster's executors get of the project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from headrace.spark_bridge.cli.backfill import own_modules, pack, project_modules
from tests.support.processes import ROOT


def module(name: str, file: Path | None) -> ModuleType:
    made = ModuleType(name)
    made.__file__ = None if file is None else str(file)
    return made


def test_the_project_is_what_was_imported_and_is_not_installed(tmp_path: Path) -> None:
    site, home = tmp_path / "site", tmp_path / "home"
    namespace = module("parts", None)
    namespace.__path__ = [str(tmp_path / "hook that is no directory"), str(home / "parts")]
    (home / "parts").mkdir(parents=True)
    loaded = {
        "__main__": module("__main__", home / "script.py"),
        "app": module("app", home / "app.py"),
        "shop": module("shop", home / "shop" / "__init__.py"),
        "shop.orders": module("shop.orders", home / "shop" / "orders.py"),
        "parts": namespace,
        "parts.one": module("parts.one", home / "parts" / "one.py"),
        "numpy": module("numpy", site / "numpy" / "__init__.py"),
        "fast": module("fast", home / "fast.cpython-311.so"),
        "builtin": module("builtin", None),
    }
    assert project_modules(loaded, installed=[site]) == {
        "app": home / "app.py",
        "shop": home / "shop",
        "parts": home / "parts",
    }


def test_nothing_of_this_python_is_part_of_a_project() -> None:
    found = project_modules(sys.modules)
    assert {"pytest", "click", "json", "zipfile"}.isdisjoint(found)
    assert found["tests"] == ROOT / "tests"


def test_a_packed_project_is_imported_from_the_archive(tmp_path: Path) -> None:
    package = tmp_path / "home" / "shop"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "orders.py").write_text(
        "from importlib.resources import files\n"
        "rate = files('shop').joinpath('rate.txt').read_text()\n"
    )
    (package / "rate.txt").write_text("7")
    (tmp_path / "home" / "app.py").write_text("from shop.orders import rate\n")
    named = {"shop": package, "app": tmp_path / "home" / "app.py"}
    archive = pack(named, tmp_path / "project.zip")
    code = "import app; print(app.rate, app.__file__.count('project.zip'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["7", "1"], done.stderr


def test_headrace_itself_can_be_shipped(tmp_path: Path) -> None:
    """An executor's must be the one that made the plan."""
    archive = pack(own_modules(), tmp_path / "own.zip")
    code = "import headrace.spark_bridge.run.task_run, headrace.state as s; print(s.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(archive)!r}); {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert str(archive) in done.stdout, done.stderr
