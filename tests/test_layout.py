"""The layout of the code base: dependencies between packages, and sizes of modules and packages."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.support.places import outside_live
from tests.support.sources import imports_of

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "headrace"
TOPS = ("state", "topology", "streams", "streams_web", "spark_bridge")

ORDER = """
state/
topology/java_names.py
topology/errors.py
topology/windows.py
topology/external_sink.py
topology/functions.py
topology/arguments.py
topology/serdes/
topology/context/
topology/naming.py
topology/processors/
topology/graph/
topology/operators/
topology/operators/windows/
topology/operators/joins/
topology/timestamps.py
topology/compile/
topology/checks/
topology/describe/
topology/topology.py
topology/dsl/steps/ topology/dsl/
topology/payload_time.py
topology/__init__.py
streams/errors.py
streams/config/
streams/kafka/
streams/plan/
streams/states.py
streams/metrics/
streams/tasks/
streams/admin/
streams/queries/
streams/worker/
streams/testing/
streams/bounded_writer.py
streams/logs.py
streams/web.py
streams/stream_threads.py streams/app.py
streams/__init__.py
streams/devbroker/
streams/mirror/
streams/client/
streams/supervisor/
streams/connectors/
streams/cli/
streams/simulation/world/
streams/simulation/
streams_web/stores/
streams_web/
spark_bridge/cleanup.py
spark_bridge/errors.py
spark_bridge/executor_errors.py
spark_bridge/read.py
spark_bridge/plan/
spark_bridge/records/
spark_bridge/dataframes/
spark_bridge/reports.py
spark_bridge/stage_watch.py
spark_bridge/run/
spark_bridge/history/
spark_bridge/session.py
spark_bridge/stages.py
spark_bridge/handover/
spark_bridge/backfill.py
spark_bridge/__init__.py
spark_bridge/cli/
"""
"""A package knows those above it, and none below; what is on one line knows each other."""

ROUND = ("topology/dsl/",)
"""Where files may import each other in circles: what a call returns has calls of its own."""

FOLDER_MAX = 25
LINES_MAX = 1_000
LONGER = {"topology/dsl/kstream.py": 1_260}
"""A class of the public API is one class, whatever its length."""
TESTS_MAX = 45
BESIDE_PACKAGES = ("live", "support")
"""Folders of tests that are no packages: what needs a real Kafka, and what tests share."""
TOUR_FILES, TOUR_LINES_MAX = 7, 2_000


def files() -> list[Path]:
    return [path for top in TOPS for path in sorted((PACKAGE / top).rglob("*.py"))]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _folder_name(folder: Path) -> str:
    return folder.relative_to(PACKAGE if folder.is_relative_to(PACKAGE) else ROOT).as_posix()


def packages() -> dict[str, int]:
    """The places of packages and single files in the order."""
    lines = ORDER.replace("\\\n", " ").strip().splitlines()
    return {name: place for place, line in enumerate(lines) for name in line.split()}


def package_of(name: str, known: dict[str, int]) -> str:
    if name in known:
        return name
    fitting = [package for package in known if package.endswith("/") and name.startswith(package)]
    assert fitting, f"{name} is in no package of the order"
    return max(fitting, key=len)


def imported(path: Path) -> set[str]:
    """The files that a file imports, wherever in it."""
    modules = [
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in imports_of(path)
        for alias in node.names
    ]
    return {file for module in modules if (file := _file_of(module))}


@cache
def _file_of(module: str) -> str | None:
    """The file of ``headrace.package.module`` or of ``headrace.package.module.NAME``."""
    _, *parts = module.split(".")
    if not module.startswith("headrace.") or parts[0] not in TOPS:
        return None
    for length in (len(parts), len(parts) - 1):
        place = PACKAGE.joinpath(*parts[:length])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if length and file.is_file():
                return name_of(file)
    return None


def breaches(name: str, imported: Iterable[str], known: dict[str, int]) -> list[str]:
    mine = package_of(name, known)
    theirs = {other: package_of(other, known) for other in imported}
    return [
        f"{name} imports {o}, which is in {package}, below {mine} in the order: move what it "
        "needs up, or hand it over"
        for o, package in theirs.items()
        if known[package] > known[mine]
    ]


def too_full(paths: Iterable[Path], limit: int, what: str) -> list[str]:
    """What is said of folders with too many of some files."""
    counts = Counter(path.parent for path in paths)
    return [
        f"{_folder_name(folder)}/ has {n} {what}, {limit} are allowed: "
        "move those that belong together into a folder of their own"
        for folder, n in counts.items()
        if n > limit
    ]


def too_long(lengths: Mapping[str, int]) -> list[str]:
    """What is said of files with too many lines."""
    return [
        f"{name} has {n} lines, {LINES_MAX} are allowed: move what belongs together into a file of "
        "its own"
        for name, n in lengths.items()
        if n > LONGER.get(name, LINES_MAX)
    ]


def require_none(found: list[str]) -> None:
    assert not found, "\n" + "\n".join(found)


def test_layout_know_each_other_one_way() -> None:
    known = packages()
    require_none([b for path in files() for b in breaches(name_of(path), imported(path), known)])


def test_a_breach_is_seen() -> None:
    known = packages()
    assert breaches("streams/plan/plan.py", ["streams/tasks/task.py"], known)
    assert breaches("streams/plan/plan.py", ["streams/__init__.py"], known)
    assert not breaches("streams/tasks/task.py", ["streams/plan/plan.py"], known)
    path = PACKAGE / "streams/tasks/tasks.py"
    assert "streams/tasks/task.py" in imported(path)


def test_every_package_of_the_order_is_there() -> None:
    assert [package for package in packages() if not (PACKAGE / package).exists()] == []


def test_files_import_each_other_in_circles_in_the_dsl_alone() -> None:
    edges = {name_of(path): imported(path) - {name_of(path)} for path in files()}
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
    require_none(
        [
            f"{name} is in a circle of imports with {', '.join(sorted(needs & edges.keys()))}: "
            "have what both need in a file that imports neither"
            for name, needs in edges.items()
            if not name.startswith(ROUND)
        ]
    )


def test_a_folder_has_as_many_files_as_one_remembers() -> None:
    require_none(too_full((p for p in files() if p.name != "__init__.py"), FOLDER_MAX, "files"))


def test_what_is_too_much_is_said_with_the_limit_and_what_to_do() -> None:
    paths = [PACKAGE / "state" / f"{n}.py" for n in range(FOLDER_MAX + 1)]
    (said,) = too_full(paths, FOLDER_MAX, "files")
    assert said.startswith(f"state/ has {FOLDER_MAX + 1} files, {FOLDER_MAX} are allowed: move ")
    assert too_full(paths[1:], FOLDER_MAX, "files") == []
    (said,) = too_long({"state/buffer.py": LINES_MAX + 1, "state/rocks.py": LINES_MAX})
    assert said.startswith(f"state/buffer.py has {LINES_MAX + 1} lines, {LINES_MAX} are allowed: ")
    with pytest.raises(AssertionError, match="has 1001 lines, 1000 are allowed: move "):
        require_none([said])


def test_the_tests_mirror_the_packages() -> None:
    tests = [path for top in TOPS for path in sorted((ROOT / "tests" / top).rglob("*.py"))]
    folders = {path.parent.relative_to(ROOT / "tests") for path in tests}
    packages = {Path(*(part for part in f.parts if part not in BESIDE_PACKAGES)) for f in folders}
    require_none(
        [
            f"tests/{package} mirrors no package: tests of {package} stand where its code does"
            for package in packages
            if not (PACKAGE / package / "__init__.py").is_file()
        ]
    )
    require_none(
        too_full((p for p in tests if p.name.startswith("test_")), TESTS_MAX, "files of tests")
    )


@pytest.mark.parametrize(
    ("place", "is_astray"),
    [
        ("tests/streams/tasks/test_restore.py", True),
        ("tests/streams/tasks/live/test_restore.py", False),
        ("tests/test_demo.py", False),
        ("docs/joins.md", False),
    ],
)
def test_what_asks_for_a_broker_stands_in_live(place: str, is_astray: bool) -> None:
    """`tests/conftest.py` refuses it as it is collected, whatever its name is."""
    assert bool(outside_live([ROOT / place])) == is_astray


def test_every_folder_says_what_it_is_for() -> None:
    for folder in {path.parent for path in files()}:
        init = folder / "__init__.py"
        said = ast.get_docstring(ast.parse(init.read_text()))
        assert said, f"{name_of(init)} does not say what the package is for"


def test_files_are_short() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in files()}
    require_none(too_long(lengths))


SMALL = """
topology/context/number.py spark_bridge/cleanup.py spark_bridge/errors.py
streams/devbroker/errors.py
streams/kafka/unreached.py state/buffers.py topology/operators/dead_letters.py
topology/operators/sample.py topology/operators/windows/lateness.py topology/processors/store.py
streams/worker/parts.py

streams/cli/entry.py streams/supervisor/worker_entry.py streams/cli/main.py streams/cli/resend.py
streams/supervisor/worker_process.py spark_bridge/stages.py
spark_bridge/dataframes/changelog_source.py spark_bridge/handover/worker.py

streams/client/stores.py streams/devbroker/jars.py streams/devbroker/process.py
streams/mirror/session.py
streams/simulation/run.py streams/simulation/simulated_worker.py streams/stream_threads.py
streams/tasks/input_queue.py streams/testing/driver_store.py streams/testing/driver_topics.py
streams/worker/commit.py streams_web/metrics.py streams_web/pages.py topology/compile/aggregate.py
topology/compile/attribution.py topology/compile/operator_factory.py topology/compile/sink.py
"""
"""Modules with fewer than 60 lines, or that only one module of their package imports.

First those that break an import circle or have one operator each; then those that are imported
late, in another process or without pyspark; then those that are an idea of their own beside a large
module. This list may only shrink.
"""
SMALL_LINES = 60


def small_modules() -> set[str]:
    importers: dict[str, set[str]] = {name_of(path): set() for path in files()}
    for path in files():
        for other in imported(path) - {name_of(path)}:
            importers[other].add(name_of(path))
    return {
        name
        for path in files()
        for name in [name_of(path)]
        if path.name != "__init__.py"
        and (
            len(path.read_text().splitlines()) < SMALL_LINES
            or (
                {Path(importer).parent for importer in importers[name]} == {Path(name).parent}
                and len(importers[name]) == 1
            )
        )
    }


def test_a_module_is_more_than_a_part_of_another_one() -> None:
    require_none(
        [
            f"{name} has fewer than {SMALL_LINES} lines or one importer in its own package: merge "
            "it into the module that uses it"
            for name in sorted(small_modules() - set(SMALL.split()))
        ]
    )
    assert set(SMALL.split()) - small_modules() == set(), "remove these from the list"


def test_the_page_on_architecture_has_every_package() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    for folder in {path.parent for path in files()}:
        assert f"| `{name_of(folder)}/` | " in page
    named = re.findall(r"`((?:state|topology|streams|streams_web|spark_bridge)/[\w/]+\.py)`", page)
    assert named
    assert [name for name in named if not (PACKAGE / name).is_file()] == []


FOREIGN = re.compile(
    r"\b(?:what|whoever|whatever|those|ones?|others|told|tells?|said|says?|hears?|heard|in vain"
    r"|(?:is|are|was|were) (?:(?:not )?there|to be)|go(?:es)? on|anew|put right|in any case"
    r"|by itself|of (?:its|one's) own|at once|now and then|so many|as far as|stands?|lies|bears?"
    r"|stood)\b",
    re.IGNORECASE,
)
"""Constructions in which summaries hide their subject or their object from native readers."""


def test_summaries_are_plain_technical_english() -> None:
    foreign = [
        f"{name_of(path)}:{getattr(node, 'lineno', 1)}: {summary}"
        for path in files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        for summary in [(ast.get_docstring(node) or "").split("\n\n")[0]]
        if FOREIGN.search(summary)
    ]
    assert foreign == []


FOREIGN_ERRORS_MAX = 17
"""Errors with a construction of `FOREIGN` in their text: lower it when there are fewer."""


def _texts(call: ast.Call) -> Iterator[str]:
    """Yield the string literals in the arguments of a call."""
    for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
        for node in ast.walk(argument):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def foreign_errors(path: Path) -> list[str]:
    raised = [
        node.exc
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    ]
    return [
        f"{name_of(path)}:{call.lineno}: {text}"
        for call in raised
        if FOREIGN.search(text := " ".join(_texts(call)))
    ]


def test_errors_become_plain_technical_english() -> None:
    found = [error for path in files() for error in foreign_errors(path)]
    assert len(found) <= FOREIGN_ERRORS_MAX, (
        f"{len(found)} errors are not in plain technical English, {FOREIGN_ERRORS_MAX} are allowed "
        "(<what is wrong> (<where>). <Imperative fix>.):\n" + "\n".join(found)
    )


BANNED = """
_InVain Answering answering AtOnce Beginning Board Calling Crew Crewed Desk desk Door Effort
effort Fate FewerRecords flip gives_up_order Hand hasten hear_of_partitions Heard heard
HeardMember hears Intake intake is_careful is_unseeing keep_in_touch keeps_nothing KeptStore kin
LastChanges Letters looks_anywhere mend mends NeverBack OfStreams OfTable Pace Patience Question
QuestionLine reacting Recurrence Silences Slot Stamper StumbledError Suspect take_again tells
tells_old Terms to_forgive Told Twin Watched Whereabouts WithNulls
"""
"""Identifiers that have a standard term (docs/glossary.md has those without one)."""


def identifiers(path: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name


def test_no_identifier_is_a_private_word_for_a_standard_term() -> None:
    banned = set(BANNED.split())
    require_none(
        [
            f"{name_of(path)} uses {', '.join(found)}: take Kafka Streams' or Python's term"
            for path in files()
            if (found := sorted(banned.intersection(identifiers(path))))
        ]
    )


PREPARED = {
    "topology/serdes/_json_of.py",
    "topology/serdes/avro.py",
    "streams/client/stores.py",
    "spark_bridge/dataframes/columns.py",
    "spark_bridge/plan/plan.py",
    "streams_web/pages.py",
    "streams_web/stores/parameters.py",
}
"""Modules whose functions have msgspec inspect types: after `prepare_type`, or in one thread."""
INSPECTING = ("Decoder", ".convert", ".type_info", ".schema", ".schema_components")


def conversions(path: Path) -> Iterator[int]:
    """Yield the lines of functions that have msgspec inspect a type."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    for function in (node for node in ast.walk(tree_of(path)) if isinstance(node, functions)):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            has_type = any(word.arg == "type" for word in call.keywords)
            if name.startswith(("msgspec.", "inspect.type_info")) and (
                has_type or name.endswith(INSPECTING)
            ):
                yield call.lineno


def test_types_are_prepared_before_threads_convert_to_them() -> None:
    found = {name_of(path): line for path in files() for line in conversions(path)}
    require_none(
        [
            f"{name}:{line} has msgspec inspect a type in a function: do so at import, or call "
            "prepare_type first, because two threads could crash the process"
            for name, line in found.items()
            if name not in PREPARED
        ]
    )
    assert found.keys() >= PREPARED


PARAMETERS_MAX = 10
MORE_PARAMETERS = {
    "DeltaSink": 11, "GlobalTables": 13, "IcebergSink": 11, "LiveProducer": 13, "Mirror": 11,
    "MirrorSession": 11, "RecordError": 11, "RepartitionBackpressure": 11, "Tasks": 20,
    "UpstreamTimes": 12,
}  # fmt: skip
"""Constructors that have more parameters; this table may only shrink."""


def parameters(path: Path) -> dict[str, int]:
    """The number of parameters of each `__init__` that is written by hand, by class."""
    return {
        node.name: len(args.posonlyargs) + len(args.args) - 1 + len(args.kwonlyargs)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
        for init in node.body
        if isinstance(init, ast.FunctionDef) and init.name == "__init__"
        for args in [init.args]
    }


def test_constructors_have_few_parameters() -> None:
    require_none(
        [
            f"{name}() in {name_of(path)} has {n} parameters, {limit} are allowed: pass a frozen "
            "dataclass of those that belong together"
            for path in files()
            for name, n in parameters(path).items()
            if n > (limit := MORE_PARAMETERS.get(name, PARAMETERS_MAX))
        ]
    )


PUBLIC_CLIENTS = {"SchemaRegistry"}
"""Public clients with the name of the protocol that they implement."""


def test_a_class_name_is_unique() -> None:
    homes: dict[str, list[str]] = {}
    for path in files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name_of(path))
    require_none(
        [
            f"{name} is the name of classes in {', '.join(found)}: say in each name what differs"
            for name, found in homes.items()
            if len(found) > 1 and name not in PUBLIC_CLIENTS
        ]
    )


COMMANDS = "streams/cli/"
"""A module of the command line has the name of its command, whatever else has it."""
SAME_FILE_NAMES = {
    "spark_bridge": {"backfill.py"},
    "streams": {
        "cluster.py", "errors.py", "process.py", "protocols.py", "reactions.py",
        "topics.py", "transactions.py",
    },
    "streams_web": {"pages.py"},
    "topology": {"calls.py", "foreign_key_join.py"},
}  # fmt: skip
"""File names that a package has twice; this table may only shrink."""


def test_a_file_name_is_unique_in_its_package() -> None:
    names = [name for path in files() if not (name := name_of(path)).startswith(COMMANDS)]
    counts = Counter((name.split("/")[0], Path(name).name) for name in names)
    require_none(
        [
            f"{top}/ has {n} files {name}: say in each name what differs"
            for (top, name), n in counts.items()
            if n > 1 and name != "__init__.py" and name not in SAME_FILE_NAMES.get(top, ())
        ]
    )


def test_the_recipes_for_contributors_name_what_exists() -> None:
    """CONTRIBUTING.md names files, tables in them, and pages."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(r"`([\w./-]+/[\w./-]*)`", page)) - {"live/"}
    assert len(paths) > 20
    missing = [p for p in paths if not any((top / p).exists() for top in (ROOT, PACKAGE))]
    assert not missing
    code = {path.read_text() for path in [*files(), PACKAGE / "__init__.py"]}
    tables = set(re.findall(r"`([A-Z_]+)`", page))
    assert {"METRICS", "TABLE"} <= tables
    assert not [t for t in tables if not any(re.search(rf"^{t}\b.*=", c, re.M) for c in code)]


def test_the_tour_is_as_long_as_an_evening() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    tour = re.findall(r"^\d\. `([\w/]+\.py)`: ", page.partition("## A tour")[2], re.M)
    lengths = {name: len((PACKAGE / name).read_text().splitlines()) for name in tour}
    assert len(lengths) == TOUR_FILES
    total = sum(lengths.values())
    assert total <= TOUR_LINES_MAX, (
        f"the tour has {total} lines, {TOUR_LINES_MAX} are allowed: shorten one of {lengths}"
    )
