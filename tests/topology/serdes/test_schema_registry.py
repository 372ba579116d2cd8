"""The registries without a server number schemas as a real one does, and refuse what cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.topology.errors import (
    RegistryError,
    SchemaRefusedError,
    SchemaUnknownError,
    TopologyError,
)
from headrace.topology.serdes.schema_registry import (
    Compatibility,
    FileRegistry,
    MemoryRegistry,
    SchemaRegistry,
    incompatibility,
)


def record(*fields: dict[str, Any], name: str = "R") -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


A = record({"name": "a", "type": "int"})
WIDER = record({"name": "a", "type": "long"})
WITH_B = record({"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 0})
NEEDS_B = record({"name": "a", "type": "int"}, {"name": "b", "type": "int"})
OTHER = record({"name": "a", "type": "string"})


@pytest.fixture(params=["memory", "file"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> SchemaRegistry:
    return MemoryRegistry() if request.param == "memory" else FileRegistry(tmp_path / "s.json")


def test_a_schema_has_one_id_in_all_subjects(registry: SchemaRegistry) -> None:
    assert registry.register("x-value", A) == 1
    assert registry.register("x-value", WITH_B) == 2
    assert registry.register("y-value", WITH_B) == 2
    assert registry.register("x-value", A) == 1
    assert registry.id_of("y-value", WITH_B) == 2
    assert json.loads(registry.schema(2)) == json.loads(WITH_B)


def test_spaces_and_the_order_of_attributes_make_no_other_schema(
    registry: SchemaRegistry,
) -> None:
    assert registry.register("x", A) == 1
    turned = dict(reversed(json.loads(A).items()))
    assert registry.register("x", json.dumps(turned, indent=4)) == 1


def test_what_is_not_there_is_an_error_that_says_so(registry: SchemaRegistry) -> None:
    registry.register("x", A)
    for schema_id in (0, 2, -1):
        with pytest.raises(SchemaUnknownError, match=f"id {schema_id}"):
            registry.schema(schema_id)
    with pytest.raises(SchemaUnknownError, match="subject 'y' does not have the schema"):
        registry.id_of("y", A)


def test_a_version_that_cannot_read_the_one_before_is_refused(registry: SchemaRegistry) -> None:
    registry.register("x", A)
    with pytest.raises(SchemaRefusedError) as caught:
        registry.register("x", NEEDS_B)
    assert "not BACKWARD compatible with version 1 of subject 'x'" in str(caught.value)
    assert "default value: b (at /fields/1)" in str(caught.value)
    assert isinstance(caught.value, RegistryError)
    assert registry.register("z", NEEDS_B) == 2


@pytest.mark.parametrize(
    ("level", "before", "new", "taken"),
    [
        ("NONE", [A], OTHER, True),
        ("BACKWARD", [A], WIDER, True),
        ("BACKWARD", [A], WITH_B, True),
        ("BACKWARD", [NEEDS_B], A, True),
        ("BACKWARD", [WIDER], A, False),
        ("BACKWARD", [A, WITH_B], NEEDS_B, True),
        ("BACKWARD_TRANSITIVE", [A, WITH_B], NEEDS_B, False),
        ("FORWARD", [A], NEEDS_B, True),
        ("FORWARD", [A], WIDER, False),
        ("FORWARD", [NEEDS_B], A, False),
        ("FORWARD_TRANSITIVE", [NEEDS_B, WITH_B], A, False),
        ("FULL", [A], WITH_B, True),
        ("FULL", [A], WIDER, False),
        ("FULL", [A], NEEDS_B, False),
        ("FULL_TRANSITIVE", [A, WITH_B], A, True),
    ],
)
def test_the_level_decides_which_versions_are_taken(
    level: Compatibility, before: list[str], new: str, taken: bool
) -> None:
    registry = MemoryRegistry()
    for schema in before:
        registry.compatibility = "NONE"
        registry.register("x", schema)
    registry.compatibility = level
    if taken:
        registry.register("x", new)
    else:
        with pytest.raises(SchemaRefusedError, match=level):
            registry.register("x", new)


@pytest.mark.slow
def test_a_file_is_read_by_another_process_and_none_overwrites_another(tmp_path: Path) -> None:
    path = tmp_path / "schemas" / "s.json"
    code = (
        "import sys; from pathlib import Path\n"
        "from headrace.topology.serdes.schema_registry import FileRegistry\n"
        "r = FileRegistry(Path(sys.argv[1]))\n"
        "for i in range(20): r.register(f'{sys.argv[2]}-{i}', f'\"int\"')\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(path), str(n)]) for n in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    registry = FileRegistry(path)
    assert {registry.id_of(f"{n}-{i}", '"int"') for n in range(3) for i in range(20)} == {1}


def test_why_a_schema_cannot_read_another_is_said_with_its_place() -> None:
    assert incompatibility(WITH_B, A) is None
    said = incompatibility(NEEDS_B, A)
    assert said == "reader field missing default value: b (at /fields/1)"


def test_the_path_of_a_file_registry_may_be_a_str(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    assert FileRegistry(str(path)).register("orders-value", '"int"') == 1
    assert FileRegistry(path).schema(1) == '"int"'


def test_a_directory_is_not_a_file_registry(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"is a directory. Name a file in it: .*schemas\.json"):
        FileRegistry(tmp_path)


@pytest.mark.parametrize("text", [b"", b"not JSON", b"[]", b'{"schemas": 5}', b"\xff\xfe"])
def test_a_file_of_another_format_is_named(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(text)
    for call in (lambda: FileRegistry(path).schema(1), lambda: FileRegistry(path).register("s", A)):
        with pytest.raises(RegistryError, match=f"{path} is not a file of FileRegistry: "):
            call()
    assert path.read_bytes() == text


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    registry = FileRegistry(tmp_path / "file" / "s.json")  # a directory cannot be created there
    for call in (lambda: registry.schema(1), lambda: registry.register("s", A)):
        with pytest.raises(RegistryError, match=r"FileRegistry cannot use .*s\.json: "):
            call()
