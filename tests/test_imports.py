"""Data flows one way: state <- topology <- streams <- others, and libraries stay in place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import Function, imports_of, statements

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "headrace"
PACKAGES = ("state", "topology", "streams", "streams_web", "spark_bridge")
FUNCTION_LINES_MAX = 70

# Who may know a library: a package, or one file.
HOMES = {
    "confluent_kafka": ("streams/", "spark_bridge/"),
    "rocksdict": ("state/rocks.py", "state/disk/", "state/secondary.py"),
    "pyspark": ("spark_bridge/",),
    "fastavro": ("topology/serdes/avro.py",),
    "starlette": ("streams_web/",),
    "uvicorn": ("streams_web/",),
    "psycopg": ("streams/connectors/postgres.py",),
    "deltalake": ("streams/connectors/delta.py",),
    "pyiceberg": ("streams/connectors/iceberg.py", "streams/connectors/iceberg.py"),
    "duckdb": ("streams/connectors/duckdb.py",),
    "obstore": ("streams/connectors/locations.py", "streams/connectors/parquet.py"),
}
# Run without a broker, so they must not need its client.
WITHOUT_KAFKA = ("streams/testing/", "streams/plan/plan.py")


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((PACKAGE / package).rglob("*.py"))]


def imported(path: Path) -> Iterator[str]:
    """Libraries and packages by their names; a package without `headrace` is `bare NAME`."""
    for node in imports_of(path):
        if isinstance(node, ast.Import):
            yield from (_named(alias.name) for alias in node.names)
        else:
            assert not node.level, f"{path} imports relatively"
            if node.module == "headrace":
                yield from (_named(f"headrace.{alias.name}") for alias in node.names)
            elif node.module is not None:
                yield _named(node.module)


def _named(module: str) -> str:
    top, *below = module.split(".")
    if top == "headrace":
        return below[0] if below else top
    return f"bare {top}" if top in PACKAGES else top


def breaches(name: str, modules: set[str]) -> list[str]:
    """What a file of the project imports and must not."""
    package = name.split("/")[0]
    above = PACKAGES[PACKAGES.index(package) + 1 :]
    found = [f"{name} imports {other}" for other in above if other in modules]
    # The face is made of the packages, and `headrace.x` is no other name for its parts.
    strange = {"headrace", *(f"bare {other}" for other in PACKAGES)} & modules
    found += [f"{name} imports {other}" for other in strange]
    found += [f"{name} imports headrace.{m}" for m in modules if m[:1].isupper()]
    for library, homes in HOMES.items():
        if library in modules and not name.startswith(homes):
            found.append(f"{name} imports {library}")
    if "confluent_kafka" in modules and name.startswith(WITHOUT_KAFKA):
        found.append(f"{name} imports confluent_kafka")
    return found


def test_no_file_imports_against_the_direction_or_a_library_of_another_package() -> None:
    """Every import of every file of the five packages is looked at."""
    files = sources()
    assert len(files) > 50
    found = [
        breach
        for path in files
        for breach in breaches(path.relative_to(PACKAGE).as_posix(), set(imported(path)))
    ]
    assert not found


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("state/buffer.py", "topology"),
        ("topology/graph/graph.py", "streams"),
        ("streams/tasks/task.py", "spark_bridge"),
        ("topology/graph/graph.py", "confluent_kafka"),
        ("state/memory.py", "rocksdict"),
        ("streams/app.py", "pyspark"),
        ("streams/app.py", "streams_web"),
        ("streams/web.py", "starlette"),
        ("streams/testing/driver.py", "confluent_kafka"),
        ("streams/tasks/task.py", "bare state"),
        ("streams/tasks/task.py", "headrace"),
        ("streams/tasks/task.py", "KafkaStreams"),
    ],
)
def test_a_breach_is_seen(name: str, module: str) -> None:
    """The rule can fail."""
    assert breaches(name, {module})


def test_functions_fit_a_screen() -> None:
    """Seventy lines, docstring and signature included."""
    long = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}"
        for path in sources()
        for node in statements(path)
        if isinstance(node, Function) and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert not long
