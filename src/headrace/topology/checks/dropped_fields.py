"""Fields of stored values that a new class or schema does not have, and so drops when it reads.

This is not an error, because the values are complete without these fields. It is reported, because
the fields are lost when a row is written again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.topology.serdes.json_schemas import resolved, unreadable_json


def dropped_fields(new: str, old: str) -> list[str]:
    """Return the fields of old values that a new serde drops, from the results of `schema_of`.

    >>> old = '{"json":{"type":"object","properties":{"paid":{"type":"number"}}}}'
    >>> dropped_fields(old.replace("paid", "payed"), old)
    ['$.paid']
    """
    if not new or not old or new == old:
        return []
    return list(dict.fromkeys(_forms(json.loads(new), json.loads(old))))


def _forms(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[str]:
    (kind,), (old_kind,) = new, old
    if kind != old_kind:
        return
    mine, theirs = new[kind], old[kind]
    if kind == "of":
        for part in mine:
            if part in theirs:
                yield from _forms(mine[part], theirs[part])
    elif kind == "json":
        yield from _Json(mine.get("$defs", {}), theirs.get("$defs", {})).look(mine, theirs, "$")
    elif kind == "registered":
        yield from _Avro({}, {}).look(mine, theirs, "$")


@dataclass(slots=True)
class _Json:
    mine: Mapping[str, Any]
    theirs: Mapping[str, Any]
    seen: set[tuple[str, str]] = field(default_factory=set)

    def look(self, new: Any, old: Any, where: str) -> Iterator[str]:
        pair = (new.get("$ref", ""), old.get("$ref", ""))
        if all(pair) and pair in self.seen:
            return
        self.seen.add(pair)
        new, old = resolved(new, self.mine), resolved(old, self.theirs)
        if "anyOf" in new or "anyOf" in old:
            yield from self._unions(new, old, where)
        elif new.get("type") == old.get("type") == "object":
            yield from self._objects(new, old, where)
        elif new.get("type") == old.get("type") == "array":
            yield from self._arrays(new, old, where)

    def _unions(self, new: Any, old: Any, where: str) -> Iterator[str]:
        for writer in old.get("anyOf", [old]):
            for reader in new.get("anyOf", [new]):
                if self._reads(reader, writer):
                    yield from self.look(reader, writer, where)
                    break

    def _reads(self, reader: Any, writer: Any) -> bool:
        mine, theirs = resolved(reader, self.mine), resolved(writer, self.theirs)
        whole = {**mine, "$defs": self.mine}, {**theirs, "$defs": self.theirs}
        return mine.get("type") == theirs.get("type") and unreadable_json(*whole) is None

    def _objects(self, new: Any, old: Any, where: str) -> Iterator[str]:
        mine, rest = new.get("properties", {}), new.get("additionalProperties")
        for name, schema in old.get("properties", {}).items():
            if name in mine:
                yield from self.look(mine[name], schema, f"{where}.{name}")
            elif isinstance(rest, dict):
                yield from self.look(rest, schema, f"{where}.{name}")
            elif "properties" in new:
                yield f"{where}.{name}"
        others = old.get("additionalProperties")
        if isinstance(rest, dict) and isinstance(others, dict):
            yield from self.look(rest, others, f"{where}[...]")

    def _arrays(self, new: Any, old: Any, where: str) -> Iterator[str]:
        mine, theirs = new.get("prefixItems", []), old.get("prefixItems", [])
        for number, (one, other) in enumerate(zip(mine, theirs, strict=False)):
            yield from self.look(one, other, f"{where}[{number}]")
        rest, others = new.get("items"), old.get("items")
        if isinstance(rest, dict) and isinstance(others, dict):
            yield from self.look(rest, others, f"{where}[...]")
        elif mine and not isinstance(rest, dict):
            yield from (f"{where}[{number}]" for number in range(len(mine), len(theirs)))


@dataclass(slots=True)
class _Avro:
    """Comparison of two Avro schemas; a named record is remembered for later references."""

    mine: dict[str, Any]
    theirs: dict[str, Any]
    seen: set[tuple[int, int]] = field(default_factory=set)

    def look(self, new: Any, old: Any, where: str) -> Iterator[str]:
        new, old = _known(new, self.mine), _known(old, self.theirs)
        if (id(new), id(old)) in self.seen:
            return
        self.seen.add((id(new), id(old)))
        if isinstance(new, list) or isinstance(old, list):
            yield from self._unions(new, old, where)
            return
        kind = _kind(new)
        if kind != _kind(old):
            return
        if kind == "record":
            yield from self._records(new, old, where)
        elif kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            yield from self.look(new[part], old[part], f"{where}[...]")

    def _unions(self, new: Any, old: Any, where: str) -> Iterator[str]:
        readers = [_known(r, self.mine) for r in (new if isinstance(new, list) else [new])]
        for writer in old if isinstance(old, list) else [old]:
            known = _known(writer, self.theirs)
            alike = [r for r in readers if _kind(r) == _kind(known)]
            named = [r for r in alike if _name(r) == _name(known)]
            for reader in (named or alike)[:1]:
                yield from self.look(reader, known, where)

    def _records(self, new: Any, old: Any, where: str) -> Iterator[str]:
        mine = {
            name: one["type"]
            for one in new["fields"]
            for name in (one["name"], *one.get("aliases", ()))
        }
        for one in old["fields"]:
            name = one["name"]
            if name in mine:
                yield from self.look(mine[name], one["type"], f"{where}.{name}")
            else:
                _known(one["type"], self.theirs)
                yield f"{where}.{name}"


def _known(schema: Any, names: dict[str, Any]) -> Any:
    if isinstance(schema, str):
        return names.get(schema, schema)
    if isinstance(schema, dict) and "name" in schema:
        names[schema["name"]] = schema
        if schema.get("namespace"):
            names[f"{schema['namespace']}.{schema['name']}"] = schema
    return schema


def _kind(schema: Any) -> Any:
    return schema.get("type") if isinstance(schema, dict) else schema


def _name(schema: Any) -> Any:
    return schema.get("name") if isinstance(schema, dict) else None
