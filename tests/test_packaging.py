"""What a user installs: one package with the five rooms, typed, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("state", "topology", "streams", "streams_web", "spark_bridge")
FACE = ("__init__.py", "__main__.py", "errors.py", "simulation.py", "sources.py", "testing.py")


def copy_of_the_tree(target: Path) -> Path:
    """A copy, so that old build leftovers cannot slip in."""
    ignored = shutil.ignore_patterns(
        ".*", "build", "dist", "site", "__pycache__", "*.egg-info", "golden"
    )
    shutil.copytree(ROOT, target, ignore=ignored, symlinks=True)
    return target


def build(tree: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    return subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", directory, tree],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("wheel")
    done = build(copy_of_the_tree(work / "tree"), work)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = work.glob("headrace-*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(built)


def test_the_wheel_holds_one_package(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"headrace"}
    assert len(tops) == 2


def test_the_wheel_holds_every_module_of_the_tree(wheel: zipfile.ZipFile) -> None:
    rooms = {
        path.relative_to(ROOT / "src").as_posix()
        for room in ROOMS
        for path in (ROOT / "src/headrace" / room).rglob("*.py")
    }
    face = {f"headrace/{name}" for name in FACE}
    assert rooms | face == {name for name in wheel.namelist() if name.endswith(".py")}


def test_the_wheel_holds_no_test(wheel: zipfile.ZipFile) -> None:
    parts = {part for name in wheel.namelist() for part in name.split("/")}
    assert not {"tests", "conftest.py"} & parts
    assert not [part for part in parts if part.startswith("test_")]


def test_the_package_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    assert "headrace/py.typed" in wheel.namelist()


def test_the_wheel_brings_the_command(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "headrace = headrace.streams.cli.entry:main" in wheel.read(name).decode()


def test_the_wheel_offers_the_commands_of_the_bridge(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    _, _, offered = wheel.read(name).decode().partition("[headrace.commands]")
    assert "backfill = headrace.spark_bridge.cli.backfill:backfill" in offered.splitlines()


def test_spark_and_avro_are_installed_only_with_an_extra(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("dist-info/METADATA")]
    lines = [
        line
        for line in wheel.read(name).decode().splitlines()
        if re.match(r"Requires-Dist: (pyspark|pyarrow|pandas|numpy|avro|fastavro)\b", line)
    ]
    assert lines
    assert all("; extra == " in line for line in lines)


def test_avro_without_its_extra_names_the_extra() -> None:
    code = "import sys; sys.modules['fastavro'] = None; from headrace import avro"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: Avro requires fastavro. Install it: pip install 'headrace[avro]'" in (
        done.stderr
    )


def test_a_star_import_requires_no_extra() -> None:
    code = (
        "import sys; sys.modules['fastavro'] = None\n"
        "from headrace import *\n"
        "import headrace\n"
        "print(StreamsBuilder.__name__, 'avro' in globals(), 'avro' in dir(headrace))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "StreamsBuilder False True\n", done.stderr


def test_the_changelog_is_short_and_takes_the_fragments() -> None:
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1:]
    assert releases
    assert max(len(release.splitlines()) for release in releases) <= 60
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "99.0.0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "## 99.0.0" in done.stdout


USERS_MODULES = {
    "topology.py": "RATE = 2\n",
    "streams.py": "TOPICS = ('sentences', 'counts')\n",
    "state/__init__.py": "",
    "state/store.py": "COLOUR = 'blue'\n",
    "count.py": """
from streams import TOPICS
from state.store import COLOUR
from topology import RATE

from headrace import StreamsBuilder, TopologyTestDriver, __version__, serdes

builder = StreamsBuilder()
words = builder.stream(TOPICS[0], value=serdes.string).flat_map_values(str.split)
words.group_by(lambda _, word: word, key=serdes.string).count().to_stream().to(TOPICS[1])
with TopologyTestDriver(builder.build()) as driver:
    driver.input(TOPICS[0], value=serdes.string).send("k", "a b a")
    counts = {r.key: r.value for r in driver.output(TOPICS[1], key=serdes.string).read_all()}
print(counts, RATE, COLOUR, __version__)
""",
    "wrong.py": """
from headrace import StreamsBuilder, serdes

StreamsBuilder().stream("t", value=serdes.string).map_values(lambda word: word + 1)
""",
}


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, and what it needs from this one."""
    home = tmp_path_factory.mktemp("user") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / "bin/python"
    (site,) = home.glob("lib/python*/site-packages")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", built],
        check=True,
    )
    # As a plain path, so that the editable installation there is not heard of.
    (site / "needed.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    return python


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in USERS_MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_user_may_have_modules_named_like_our_rooms(installed: Path, project: Path) -> None:
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [installed, "count.py"], cwd=project, capture_output=True, text=True, env=environment
    )
    assert done.stdout.split() == ["{'a':", "2,", "'b':", "1}", "2", "blue", "0.1.0"], done.stderr


def test_a_users_types_are_checked(installed: Path, project: Path) -> None:
    def checked(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", installed]
        own = ["--cache-dir", project / ".cache", "--config-file", os.devnull]
        return subprocess.run([*command, *own, name], cwd=project, capture_output=True, text=True)

    assert "Success" in (done := checked("count.py")).stdout, done.stdout + done.stderr
    assert 'Unsupported operand types for + ("str" and "int")' in checked("wrong.py").stdout
