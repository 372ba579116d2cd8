"""Files of a release in dist/: sdist, wheel, SBOM and SHA256SUMS. Nothing is uploaded.

`make release` runs `python -m tests.support.release`; CONTRIBUTING.md describes a release.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

_VERSION = re.compile(r'^__version__\b.*= "(.+)"$', re.M)
_FRAGMENT = re.compile(r".+\.(added|changed|fixed|removed)(\.\d+)?\.md")


def refusals(tree: Path, tag: str | None = None) -> list[str]:
    """Return the reasons why the tree cannot be released, each with its fix."""
    return [
        *_uncommitted(tree),
        *_other_tag(tree, tag),
        *_changelog(tree),
        *_fragments(tree),
        *_stored_state(tree),
    ]


def version_of(tree: Path) -> str:
    """Return the version that the package in the tree has."""
    (found,) = _VERSION.findall((tree / "src/headrace/__init__.py").read_text())
    return str(found)


def make_release(tree: Path, target: Path) -> list[Path]:
    """Build the committed files of the tree, check the results, and replace `target` by them."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        exported, files = work / "tree", work / "dist"
        _export(tree, exported)
        # The wheel is built from the sdist, so the sdist is complete.
        _run("build", "--no-isolation", "--outdir", files, exported)
        built = sorted(files.iterdir())
        _run("twine", "check", "--strict", *built)
        (wheel,) = files.glob("*.whl")
        write_sbom(wheel, files / f"headrace-{version_of(exported)}.cdx.json", work / "venv")
        sums = [f"{_sha256(path)}  {path.name}\n" for path in sorted(files.iterdir())]
        (files / "SHA256SUMS").write_text("".join(sums))
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(files, target)
    return sorted(target.iterdir())


def write_sbom(wheel: Path, target: Path, venv: Path) -> None:
    """Install a wheel into a new environment, and write what is there as CycloneDX JSON."""
    _run("venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    _run("pip", "--python", python, "install", "--quiet", wheel)
    form = ("--output-format", "JSON", "--output-reproducible")
    _run("cyclonedx_py", "environment", *form, "--output-file", target, python)


def _uncommitted(tree: Path) -> Iterator[str]:
    done = subprocess.run(
        ["git", "status", "--porcelain"], cwd=tree, capture_output=True, text=True, check=False
    )
    if done.returncode:
        yield f"{tree} is not a git work tree. Run make release in a clone of the repository."
    elif files := [line[3:] for line in done.stdout.splitlines()]:
        yield f"Files are not committed ({_shortened(files)}). Commit, stash or delete them."


def _other_tag(tree: Path, tag: str | None) -> Iterator[str]:
    version = version_of(tree)
    if tag is not None and tag != f"v{version}":
        yield (
            f"The tag is {tag}, but the package has version {version} "
            "(src/headrace/__init__.py). Change __version__, or tag another commit."
        )


def _changelog(tree: Path) -> Iterator[str]:
    version = version_of(tree)
    headings = re.findall(r"^## (\S+)(.*)$", (tree / "CHANGELOG.md").read_text(), re.M)
    found = [rest.strip() for name, rest in headings if name == version]
    if not found:
        yield (
            f"CHANGELOG.md has no section for version {version}. "
            f"Run towncrier build --version {version}, and commit the result."
        )
    elif len(found) > 1:
        yield f"CHANGELOG.md has {len(found)} sections for version {version}. Merge them into one."
    elif not re.fullmatch(r"\(\d{4}-\d{2}-\d{2}\)", found[0]):
        yield (
            f"The section for version {version} in CHANGELOG.md has no date. "
            f"Write its heading as ## {version} (YYYY-MM-DD)."
        )


def _fragments(tree: Path) -> Iterator[str]:
    version = version_of(tree)
    names = [path.name for path in sorted((tree / "changes").glob("*"))]
    if left := [name for name in names if _FRAGMENT.fullmatch(name)]:
        yield (
            f"changes/ has fragments that are not in the changelog ({_shortened(left)}). Move them "
            f"into the section for version {version}: towncrier build --version {version}."
        )
    if unknown := [name for name in names if name != "README.md" and name not in left]:
        yield (
            f"changes/ has files that towncrier ignores ({_shortened(unknown)}). Rename them as "
            "changes/README.md describes, or delete them."
        )


def _stored_state(tree: Path) -> Iterator[str]:
    directory = f"tests/golden/release-{version_of(tree)}"
    if not (tree / directory).is_dir():
        yield (
            f"{directory} does not exist, so later releases could not be tested with the state of "
            "this one. Run python -m tests.support.release_state, and commit the result."
        )


def _shortened(names: list[str], shown: int = 5) -> str:
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def _export(tree: Path, target: Path) -> None:
    """Write the committed files alone: ignored files such as build/ could get into the wheel."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=tree, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(target, filter="tar")


def _run(module: str, *arguments: str | Path) -> None:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:])} failed:\n{done.stdout}{done.stderr}")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    """Print the files of the release, or the reasons why there are none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=ROOT, help="work tree (default: this one)")
    parser.add_argument("--tag", help="tag of the release, which must fit the version")
    given = parser.parse_args()
    if found := refusals(given.tree, given.tag):
        raise SystemExit("\n".join(f"No release: {reason}" for reason in found))
    for path in make_release(given.tree, given.tree / "dist"):
        print(f"{path.stat().st_size:>10,}  {path}")


if __name__ == "__main__":
    main()
