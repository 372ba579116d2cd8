"""Protocol of schema registries, and two registries without a server, for tests.

A registry assigns an id to each schema. Records contain the id, and readers look the schema up. A
subject is a list of versions, each checked for compatibility with earlier versions.

>>> registry = MemoryRegistry()
>>> registry.register("orders-value", '"int"')
1
>>> registry.register("orders-value", '"long"')
2
>>> registry.register("orders-value", '"string"')
Traceback (most recent call last):
...
headrace.topology.errors.SchemaRefusedError: the schema is not BACKWARD compatible with version 2 \
of subject 'orders-value': type mismatch: reader type: string not compatible with writer type: \
long; change the schema so that it reads the existing data (new fields need defaults, renamed \
fields aliases), or use another subject
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, get_args

import msgspec

from headrace.topology.arguments import require_choice
from headrace.topology.errors import (
    RegistryError,
    SchemaRefusedError,
    SchemaUnknownError,
    TopologyError,
)

Compatibility = Literal[
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
]


class SchemaRegistry(Protocol):
    """Protocol of schema registries. Schemas are Avro schemas as JSON text."""

    def register(self, subject: str, schema: str, /) -> int:
        """Add a version to a subject unless it exists, and return the schema's id.

        Raises:
            SchemaRefusedError: the schema is not compatible with earlier versions.
            RegistryError: the registry does not answer, or rejects the request.
        """

    def id_of(self, subject: str, schema: str, /) -> int:
        """Return the id of a schema that is registered under a subject.

        Raises:
            SchemaUnknownError: it is not registered.
            RegistryError: the registry does not answer, or rejects the request.
        """

    def schema(self, schema_id: int, /) -> str:
        """Return the schema with an id.

        Raises:
            SchemaUnknownError: no schema has that id.
            RegistryError: the registry does not answer, or rejects the request.
        """


def incompatibility(reader: str, writer: str) -> str | None:
    """Return why `reader` cannot read data of `writer` by Apache Avro's rules, or None.

    >>> incompatibility('"long"', '"int"') is None
    True
    >>> incompatibility('"int"', '"long"')
    'type mismatch: reader type: int not compatible with writer type: long'
    """
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
    from avro.schema import parse

    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(parse(reader), parse(writer))
    if result.compatibility is SchemaCompatibilityType.compatible:
        return None
    kinds = sorted({kind.value.replace("_", " ") for kind in result.incompatibilities})
    locations = ", ".join(sorted(location for location in result.locations if location != "/"))
    return (
        f"{', '.join(kinds)}: {'; '.join(sorted(result.messages))}"
        f"{f' (at {locations})' if locations else ''}"
    )


@dataclass(slots=True)
class _Content:
    """Content of a registry without a server: ids start at 1, and equal schemas share an id."""

    schemas: list[str] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)

    def register(self, subject: str, schema: str, level: Compatibility) -> int:
        text = _normal(schema)
        versions = self.subjects.get(subject, [])
        for schema_id in versions:
            if self.schemas[schema_id - 1] == text:
                return schema_id
        self._check(subject, text, versions, level)
        if text not in self.schemas:
            self.schemas.append(text)
        schema_id = self.schemas.index(text) + 1
        self.subjects[subject] = [*versions, schema_id]
        return schema_id

    def _check(self, subject: str, text: str, versions: list[int], level: Compatibility) -> None:
        if level == "NONE":
            return
        numbered = list(enumerate(versions, start=1))
        for number, schema_id in numbered if level.endswith("TRANSITIVE") else numbered[-1:]:
            existing = self.schemas[schema_id - 1]
            why = None
            if level.startswith(("BACKWARD", "FULL")):
                why = incompatibility(text, existing)
            if why is None and level.startswith(("FORWARD", "FULL")):
                why = incompatibility(existing, text)
            if why is not None:
                raise SchemaRefusedError(
                    f"the schema is not {level} compatible with version {number} of subject "
                    f"{subject!r}: {why}; change the schema so that it reads the existing data "
                    "(new fields need defaults, renamed fields aliases), or use another subject"
                )

    def id_of(self, subject: str, schema: str) -> int:
        text = _normal(schema)
        for schema_id in self.subjects.get(subject, []):
            if self.schemas[schema_id - 1] == text:
                return schema_id
        raise SchemaUnknownError(f"subject {subject!r} does not have the schema; register it")

    def schema(self, schema_id: int) -> str:
        if 0 < schema_id <= len(self.schemas):
            return self.schemas[schema_id - 1]
        raise SchemaUnknownError(f"schema id {schema_id} does not exist")


_CONTENT = msgspec.json.Decoder(_Content)


def _normal(schema: str) -> str:
    return json.dumps(json.loads(schema), sort_keys=True, separators=(",", ":"))


@dataclass(slots=True)
class MemoryRegistry(SchemaRegistry):
    """Schema registry in memory, for tests.

    Args:
        compatibility: required compatibility of a new version with earlier versions.
    """

    compatibility: Compatibility = "BACKWARD"
    _content: _Content = field(default_factory=_Content, repr=False)

    def __post_init__(self) -> None:
        require_choice("compatibility", self.compatibility, get_args(Compatibility))

    def register(self, subject: str, schema: str, /) -> int:
        return self._content.register(subject, schema, self.compatibility)

    def id_of(self, subject: str, schema: str, /) -> int:
        return self._content.id_of(subject, schema)

    def schema(self, schema_id: int, /) -> str:
        return self._content.schema(schema_id)


@dataclass(frozen=True, slots=True)
class FileRegistry(SchemaRegistry):
    """Schema registry in a JSON file, for tests with several processes, and for development.

    Args:
        path: the file; created with the first schema.
        compatibility: required compatibility of a new version with earlier versions.
    """

    path: str | Path
    compatibility: Compatibility = "BACKWARD"
    _file: Path = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_choice("compatibility", self.compatibility, get_args(Compatibility))
        object.__setattr__(self, "_file", Path(self.path))
        if self._file.is_dir():
            raise TopologyError(
                f"FileRegistry requires a file, and {self._file} is a directory. "
                f"Name a file in it: {str(self._file / 'schemas.json')!r}"
            )

    def register(self, subject: str, schema: str, /) -> int:
        with self._explained(), self._locked():
            content = self._read()
            schema_id = content.register(subject, schema, self.compatibility)
            written = self._file.with_suffix(self._file.suffix + ".new")
            text = {"schemas": content.schemas, "subjects": content.subjects}
            written.write_text(json.dumps(text, indent=1))
            written.replace(self._file)
        return schema_id

    def id_of(self, subject: str, schema: str, /) -> int:
        return self._read().id_of(subject, schema)

    def schema(self, schema_id: int, /) -> str:
        return self._read().schema(schema_id)

    def _read(self) -> _Content:
        with self._explained():
            try:
                return _CONTENT.decode(self._file.read_bytes())
            except FileNotFoundError:
                return _Content()
            except ValueError as error:
                raise RegistryError(
                    f"{self._file} is not a file of FileRegistry: {error}. Name another file."
                ) from error

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RegistryError(
                f"FileRegistry cannot use {self._file}: {error.strerror} ({error.filename}). "
                "Name another file, or correct its permissions."
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.with_suffix(self._file.suffix + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
