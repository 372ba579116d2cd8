"""Run tests against the built wheel, on each Python of this machine that the project names.

`make test-wheel` runs `python -m tests.support.wheel_tests -- PYTEST-ARGUMENTS`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRA = "test"


def named_versions() -> list[str]:
    """Return the minor versions of Python that the classifiers name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = (re.search(r":: Python :: (3\.\d+)$", name) for name in project["classifiers"])
    return [match.group(1) for match in found if match]


def candidates(version: str) -> Iterator[Path]:
    """Yield the places where a minor version of Python may be: on the PATH, and at pyenv."""
    for folder in os.get_exec_path():
        yield Path(folder) / f"python{version}"
    installed = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    yield from installed.glob(f"{version}.*/bin/python{version}")


def find_python(version: str) -> Path | None:
    """Return an interpreter that runs and can create environments, or None."""
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2], sys.version_info[3])"
    for path in candidates(version):
        # pyenv's shim of a version that is not chosen exists, and fails.
        if os.access(path, os.X_OK):
            done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
            if done.stdout.split() == [version, "final"]:
                return path
    return None


def copy_tree(target: Path) -> None:
    """Copy the project without its package: there is nothing to import but the wheel."""
    ignored = shutil.ignore_patterns(".*", "build", "dist", "site", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, target, ignore=ignored, symlinks=True)
    shutil.rmtree(target / "src")


def build_wheel(target: Path) -> Path:
    """Build the wheel of the tree, in a copy of it."""
    copy = target / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, copy]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = target.glob("*.whl")
    return wheel


def install(python: Path, wheel: Path, venv: Path) -> Path:
    """Create an environment with the wheel and what its tests need; return its Python."""
    subprocess.run([python, "-m", "venv", "--without-pip", venv], check=True)
    own = venv / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", own, "install", "--quiet"]
    subprocess.run([*command, f"{wheel}[{EXTRA}]"], check=True)
    return own


def run_tests(python: Path, work: Path, arguments: Sequence[str]) -> int:
    """Run tests of a copy of the project with the wheel that is installed for a Python."""
    tree = work / "tree"
    copy_tree(tree)
    environment = {name: v for name, v in os.environ.items() if not name.startswith("PYTHON")}
    code = "import headrace; print(headrace.__path__[0])"
    found = subprocess.check_output([python, "-c", code], cwd=tree, env=environment, text=True)
    package = Path(found.strip())
    if not package.is_relative_to(python.parents[1]):
        raise SystemExit(f"The tests would import {package}, which is not in {python.parents[1]}.")
    # Tests that read the source read that of the wheel.
    (tree / "src").symlink_to(package.parent)
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-o", "pythonpath=.", *arguments]
    return subprocess.run(command, cwd=tree, env=environment, check=False).returncode


def main() -> None:
    """Test the wheel on each Python, and report which ones failed or were not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", type=Path, help="interpreter (default: all)")
    parser.add_argument("--wheel", type=Path, help="wheel (default: built from this tree)")
    parser.add_argument("arguments", nargs="*", help="arguments of pytest")
    given = parser.parse_args()
    found = {version: find_python(version) for version in named_versions()}
    pythons = given.python or [path for path in found.values() if path]
    results = {}
    with tempfile.TemporaryDirectory(prefix="headrace-wheel-") as name:
        wheel = given.wheel or build_wheel(Path(name))
        for number, path in enumerate(pythons):
            work = Path(name) / str(number)
            print(f"{wheel.name} on {path}", flush=True)
            python = install(path, wheel.resolve(), work / "venv")
            results[str(path)] = run_tests(python, work, given.arguments)
    for path, status in results.items():
        print(f"{'passed' if status == 0 else 'FAILED'}  {path}")
    if not given.python:
        missing = [version for version, path in found.items() if path is None]
        print(f"not on this machine: {', '.join(missing)}" if missing else "all versions tested")
    sys.exit(not results or any(results.values()))


if __name__ == "__main__":
    main()
