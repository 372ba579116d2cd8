"""`make release` refuses what is not ready, and builds what users can install and check."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from trove_classifiers import classifiers

from tests.support.release import refusals, version_of
from tests.support.wheel_tests import copy_tree, find_python, named_versions, run_tests
from tests.test_packaging import ROOT, build, copy_of_the_tree

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

CHANGELOG = "# Changelog\n\n## 1.2.0 (2026-05-01)\n\nText.\n\n## 1.1.0 (2026-01-01)\n"


def git(tree: Path, *arguments: str) -> None:
    user = ["-c", "user.name=Tests", "-c", "user.email=tests@example.org"]
    subprocess.run(["git", *user, *arguments], cwd=tree, check=True, capture_output=True)


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "tests: commit")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of a small repository, in which version 1.2.0 is ready."""
    origin = tmp_path / "origin"
    for name, text in {
        "src/headrace/__init__.py": '__version__: Final = "1.2.0"\n',
        "CHANGELOG.md": CHANGELOG,
        "changes/README.md": "# Fragments\n",
        "tests/golden/release-1.2.0/results.jsonl": "",
        ".gitignore": "dist/\n",
    }.items():
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).write_text(text)
    git(origin, "init", "--quiet")
    commit(origin)
    git(tmp_path, "clone", "--quiet", str(origin), str(tmp_path / "clone"))
    return tmp_path / "clone"


def test_a_clean_clone_with_a_dated_section_is_not_refused(clone: Path) -> None:
    assert refusals(clone) == []
    assert refusals(clone, "v1.2.0") == []


def test_a_changed_file_and_a_new_file_are_refused(clone: Path) -> None:
    (clone / "CHANGELOG.md").write_text(CHANGELOG + "More.\n")
    (clone / "new.txt").touch()
    (refused,) = refusals(clone)
    assert refused == (
        "Files are not committed (CHANGELOG.md, new.txt). Commit, stash or delete them."
    )


def test_ignored_files_are_not_refused(clone: Path) -> None:
    (clone / "dist").mkdir()
    (clone / "dist/old.whl").touch()
    assert refusals(clone) == []


def test_a_folder_without_git_is_refused(clone: Path) -> None:
    shutil.rmtree(clone / ".git")
    (refused,) = refusals(clone)
    assert "is not a git work tree. Run make release in a clone" in refused


def test_a_version_without_a_section_is_refused(clone: Path) -> None:
    (clone / "src/headrace/__init__.py").write_text('__version__: Final = "1.3.0"\n')
    commit(clone)
    refused, _ = refusals(clone)
    assert refused == (
        "CHANGELOG.md has no section for version 1.3.0. "
        "Run towncrier build --version 1.3.0, and commit the result."
    )


@pytest.mark.parametrize("heading", ["## 1.2.0 (unreleased)", "## 1.2.0", "## 1.2.0 (May 2026)"])
def test_a_section_without_a_date_is_refused(clone: Path, heading: str) -> None:
    (clone / "CHANGELOG.md").write_text(CHANGELOG.replace("## 1.2.0 (2026-05-01)", heading))
    commit(clone)
    (refused,) = refusals(clone)
    assert "has no date. Write its heading as ## 1.2.0 (YYYY-MM-DD)." in refused


def test_two_sections_of_the_version_are_refused(clone: Path) -> None:
    (clone / "CHANGELOG.md").write_text(CHANGELOG + "\n## 1.2.0 (unreleased)\n")
    commit(clone)
    (refused,) = refusals(clone)
    assert refused == "CHANGELOG.md has 2 sections for version 1.2.0. Merge them into one."


def test_fragments_that_are_left_are_refused(clone: Path) -> None:
    for name in ("speed.added.md", "speed.fixed.1.md", "typo.fxed.md"):
        (clone / "changes" / name).write_text("Text.\n")
    commit(clone)
    left, unknown = refusals(clone)
    assert left == (
        "changes/ has fragments that are not in the changelog (speed.added.md, speed.fixed.1.md). "
        "Move them into the section for version 1.2.0: towncrier build --version 1.2.0."
    )
    assert "changes/ has files that towncrier ignores (typo.fxed.md)." in unknown


def test_a_version_whose_state_is_not_stored_is_refused(clone: Path) -> None:
    shutil.rmtree(clone / "tests/golden/release-1.2.0")
    commit(clone)
    (refused,) = refusals(clone)
    assert refused.startswith("tests/golden/release-1.2.0 does not exist")


def test_a_tag_of_another_version_is_refused(clone: Path) -> None:
    (refused,) = refusals(clone, "v1.2.1")
    assert refused.startswith("The tag is v1.2.1, but the package has version 1.2.0")


def test_the_command_prints_each_refusal_and_builds_nothing(clone: Path) -> None:
    (clone / "changes/speed.added.md").write_text("Text.\n")
    done = release(clone)
    assert done.returncode == 1
    assert [line[:12] for line in done.stderr.splitlines()] == ["No release: "] * 2
    assert not (clone / "dist").exists()


def release(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.release", "--tree", tree]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release files of this tree, as if it were committed with a finished changelog."""
    tree = copy_of_the_tree(tmp_path_factory.mktemp("release") / "tree")
    shutil.copy(ROOT / ".gitignore", tree)
    changelog = (tree / "CHANGELOG.md").read_text()
    (tree / "CHANGELOG.md").write_text(changelog.replace("(unreleased)", "(2026-05-01)"))
    for path in (tree / "changes").glob("*.*.md"):
        path.unlink()
    stored = f"tests/golden/release-{version_of(tree)}"
    shutil.copytree(ROOT / stored, tree / stored)
    git(tree, "init", "--quiet")
    commit(tree)
    done = release(tree)
    assert done.returncode == 0, done.stdout + done.stderr
    return tree / "dist"


def test_a_release_has_an_sdist_a_wheel_an_sbom_and_their_sums(released: Path) -> None:
    names = {re.sub(r"\d+\.\d+\.\d+", "V", path.name) for path in released.iterdir()}
    assert names == {
        "SHA256SUMS",
        "headrace-V-py3-none-any.whl",
        "headrace-V.cdx.json",
        "headrace-V.tar.gz",
    }
    sums = dict(
        reversed(line.split("  ")) for line in (released / "SHA256SUMS").read_text().splitlines()
    )
    assert len(sums) == 3
    for name, found in sums.items():
        assert hashlib.sha256((released / name).read_bytes()).hexdigest() == found


def test_the_sbom_is_valid_and_names_the_dependencies_with_their_versions(released: Path) -> None:
    (path,) = released.glob("*.cdx.json")
    sbom = json.loads(path.read_text())
    valid = JsonStrictValidator(SchemaVersion.from_version(sbom["specVersion"]))
    assert valid.validate_str(path.read_text()) is None
    versions = {part["name"]: part["version"] for part in sbom["components"]}
    assert re.fullmatch(r"2\.16\.\d+", versions["confluent-kafka"])
    assert re.fullmatch(r"0\.3\.\d+", versions["rocksdict"])
    assert "headrace" in versions
    # What only developers install is not in it.
    assert not {"pytest", "pyspark", "pip", "cyclonedx-bom"} & versions.keys()


def test_neither_file_has_tests_or_what_is_beside_the_package(released: Path) -> None:
    (wheel,), (sdist,) = released.glob("headrace-*.whl"), released.glob("headrace-*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    with tarfile.open(sdist) as archive:
        names += [name.partition("/")[2] for name in archive.getnames()]
    assert "src/headrace/streams_web/grafana/headrace.json" in names
    assert not [n for n in names if {"tests", "conftest.py"} & set(n.split("/"))]
    assert not [name for name in names if Path(name).name.startswith("test_")]


def test_the_sdist_builds_the_same_wheel_as_the_tree(released: Path, tmp_path: Path) -> None:
    (wheel,), (sdist,) = released.glob("headrace-*.whl"), released.glob("headrace-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    from_sdist = _contents(_built(tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path / "a"))
    from_tree = _contents(_built(copy_of_the_tree(tmp_path / "tree"), tmp_path / "b"))
    assert from_sdist == from_tree == _contents(wheel)


def _built(tree: Path, target: Path) -> Path:
    done = build(tree, target)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = target.glob("*.whl")
    return wheel


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def declared() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["classifiers"])


def test_every_classifier_is_a_published_one() -> None:
    assert [name for name in declared() if name not in classifiers] == []
    assert "Programming Language :: Python :: 3.99" not in classifiers


def test_the_named_versions_of_python_are_those_that_ci_tries() -> None:
    """CI tries the sources, and the wheel, with each of them; the changelog names the range."""
    named = [name.rpartition(" ")[2] for name in declared() if re.search(r":: 3\.\d+$", name)]
    ci = (ROOT / ".github/workflows/ci.yml").read_text()
    tried = re.findall(r"^ +python: \[(.*)\]$", ci, re.M)
    assert [re.findall(r'"(.+?)"', versions) for versions in tried] == [named, named]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"Python {named[0]} to {named[-1]} on Linux" in changelog


def test_the_wheel_is_tested_by_a_python_of_each_version_that_is_there() -> None:
    running = f"3.{sys.version_info.minor}"
    assert running in named_versions()
    found = find_python(running)
    assert found is not None
    code = "import sys; print(sys.version_info[:2] == " + str(sys.version_info[:2]) + ")"
    assert subprocess.check_output([found, "-c", code], text=True) == "True\n"
    assert find_python("3.99") is None


def test_the_tests_of_the_wheel_have_no_package_in_their_tree(tmp_path: Path) -> None:
    copy_tree(tmp_path / "tree")
    assert (tmp_path / "tree/tests/golden/names").is_dir()
    assert not list((tmp_path / "tree").glob("**/headrace/state"))


def test_the_tests_of_the_wheel_refuse_an_environment_that_has_the_sources(tmp_path: Path) -> None:
    """This environment has the sources, as an editable installation."""
    with pytest.raises(SystemExit, match=r"The tests would import .*headrace, which is not in"):
        run_tests(Path(sys.executable), tmp_path, ["--version"])
