"""The house: which room may know which, how large files and folders are, what rooms are for."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = ("state", "topology", "streams", "spark_bridge")

ORDER = """
state/
topology/arguments.py topology/blame.py topology/errors.py topology/first_result.py \
    topology/functions.py topology/java_names.py topology/naming.py topology/timestamps.py \
    topology/windows.py
topology/serdes/
topology/context/
topology/processors/
topology/graph/
topology/operators/
topology/operators/windows/
topology/operators/joins/
topology/compile/
topology/checks/
topology/show/
topology/processor_topology.py topology/topology.py
topology/dsl/
topology/__init__.py
streams/client_names.py streams/errors.py streams/loading.py streams/logs.py streams/secrets.py \
    streams/settings.py streams/start_errors.py streams/worker_errors.py
streams/contact/
streams/seams/
streams/kafka/
streams/records/
streams/config/
streams/plan/
streams/deployed/
streams/local/
streams/task/
streams/tasks/
streams/commit/
streams/upkeep/
streams/upgrade/
streams/global_tables/
streams/worker/
streams/app.py
streams/testing/
streams/simulation/world/
streams/simulation/
streams/supervise/
streams/devbroker/
streams/cli/
streams/__init__.py
spark_bridge/cleanup.py spark_bridge/driver_memory.py spark_bridge/errors.py spark_bridge/read.py \
    spark_bridge/range_consumer.py
spark_bridge/program/
spark_bridge/plan/
spark_bridge/records/
spark_bridge/run/
spark_bridge/history/
spark_bridge/dataframes/
spark_bridge/handover/
spark_bridge/reports.py spark_bridge/session.py spark_bridge/backfill.py
spark_bridge/cli/
spark_bridge/__init__.py
"""
"""A room knows those above it, and none below; what is on one line knows each other."""

ROUND = ("topology/dsl/",)
"""Where files may import each other in circles: what a call returns has calls of its own."""

FOLDER_MAX = 15
LINES_MAX = 500
TESTS_MAX = 20
BESIDE_ROOMS = ("live", "support")
"""Folders of tests that are no rooms: what needs a real Kafka, and what tests share."""
TOUR_FILES, TOUR_LINES_MAX = 7, 1500


def files() -> list[Path]:
    return [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def rooms() -> dict[str, int]:
    """The places of rooms and single files in the order."""
    lines = ORDER.replace("\\\n", " ").strip().splitlines()
    return {name: place for place, line in enumerate(lines) for name in line.split()}


def room_of(name: str, known: dict[str, int]) -> str:
    if name in known:
        return name
    fitting = [room for room in known if room.endswith("/") and name.startswith(room)]
    assert fitting, f"{name} is in no room of the order"
    return max(fitting, key=len)


def imports_of(path: Path) -> Iterator[str]:
    """The files that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield from _file_of(name)


def _file_of(module: str) -> Iterator[str]:
    """The file of ``headrace.room.module`` or of ``headrace.room.module.NAME``."""
    _, *parts = module.split(".")
    if not module.startswith("headrace.") or parts[0] not in TOPS:
        return
    for length in (len(parts), len(parts) - 1):
        place = ROOT.joinpath(*parts[:length])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if length and file.is_file():
                yield name_of(file)
                return


def breaches(name: str, imported: Iterator[str] | list[str], known: dict[str, int]) -> list[str]:
    mine = room_of(name, known)
    theirs = {other: room_of(other, known) for other in imported}
    return [f"{name} imports {o}" for o, room in theirs.items() if known[room] > known[mine]]


def test_rooms_know_each_other_one_way() -> None:
    known = rooms()
    found = [b for path in files() for b in breaches(name_of(path), imports_of(path), known)]
    assert not found


def test_a_breach_is_seen() -> None:
    known = rooms()
    assert breaches("streams/plan/plan.py", ["streams/task/task.py"], known)
    assert breaches("streams/plan/plan.py", ["streams/__init__.py"], known)
    assert not breaches("streams/task/task.py", ["streams/plan/plan.py"], known)
    path = ROOT / "streams/tasks/tasks.py"
    assert "streams/task/task.py" in set(imports_of(path))


def test_every_room_of_the_order_is_there() -> None:
    assert [room for room in rooms() if not (ROOT / room).exists()] == []


def test_files_import_each_other_in_circles_in_the_dsl_alone() -> None:
    edges = {name_of(path): set(imports_of(path)) - {name_of(path)} for path in files()}
    while True:
        # What imports nothing that is left is in no circle.
        free = [name for name, needs in edges.items() if not needs & edges.keys()]
        if not free:
            break
        for name in free:
            del edges[name]
    while True:
        # Nor is what nothing that is left imports.
        needed = {other for needs in edges.values() for other in needs}
        free = [name for name in edges if name not in needed]
        if not free:
            break
        for name in free:
            del edges[name]
    assert [name for name in edges if not name.startswith(ROUND)] == []


def test_a_folder_has_as_many_files_as_one_remembers() -> None:
    counts = Counter(path.parent for path in files() if path.name != "__init__.py")
    full = {name_of(folder): n for folder, n in counts.items() if n > FOLDER_MAX}
    assert not full


def test_the_tests_mirror_the_rooms() -> None:
    tests = [path for top in TOPS for path in sorted((ROOT / "tests" / top).rglob("*.py"))]
    folders = {path.parent.relative_to(ROOT / "tests") for path in tests}
    rooms = {Path(*(part for part in f.parts if part not in BESIDE_ROOMS)) for f in folders}
    assert [str(room) for room in rooms if not (ROOT / room / "__init__.py").is_file()] == []
    counts = Counter(path.parent for path in tests if path.name.startswith("test_"))
    assert {name_of(folder): n for folder, n in counts.items() if n > TESTS_MAX} == {}
    astray = [name_of(p) for p in tests if "on_broker" in p.name and p.parent.name != "live"]
    assert astray == []


def test_every_folder_says_what_it_is_for() -> None:
    for folder in {path.parent for path in files()}:
        init = folder / "__init__.py"
        said = ast.get_docstring(ast.parse(init.read_text()))
        assert said, f"{name_of(init)} does not say what the room is for"


def test_files_are_short() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in files()}
    long = {name: count for name, count in lengths.items() if count > LINES_MAX}
    assert not long


def test_the_page_on_architecture_has_every_room() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    for folder in {path.parent for path in files()}:
        assert f"| `{name_of(folder)}/` | " in page
    named = re.findall(r"`((?:state|topology|streams|spark_bridge)/[\w/]+\.py)`", page)
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_tour_is_as_long_as_an_evening() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    tour = re.findall(r"^\d\. `([\w/]+\.py)`: ", page.partition("## A tour")[2], re.M)
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in tour}
    assert len(lengths) == TOUR_FILES
    assert sum(lengths.values()) <= TOUR_LINES_MAX, lengths
