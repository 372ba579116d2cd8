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
    new_form, old_form = new[kind], old[kind]
    if kind == "of":
        for part in new_form:
            if part in old_form:
                yield from _forms(new_form[part], old_form[part])
    elif kind == "json":
        schemas = _Json(new_form.get("$defs", {}), old_form.get("$defs", {}))
        yield from schemas.dropped(new_form, old_form, "$")
    elif kind == "registered":
        yield from _Avro({}, {}).dropped(new_form, old_form, "$")


@dataclass(slots=True)
class _Json:
    new_definitions: Mapping[str, Any]
    old_definitions: Mapping[str, Any]
    seen: set[tuple[str, str]] = field(default_factory=set)

    def dropped(self, new: Any, old: Any, where: str) -> Iterator[str]:
        pair = (new.get("$ref", ""), old.get("$ref", ""))
        if all(pair) and pair in self.seen:
            return
        self.seen.add(pair)
        new, old = resolved(new, self.new_definitions), resolved(old, self.old_definitions)
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
                    yield from self.dropped(reader, writer, where)
                    break

    def _reads(self, reader: Any, writer: Any) -> bool:
        new = resolved(reader, self.new_definitions)
        old = resolved(writer, self.old_definitions)
        schemas = {**new, "$defs": self.new_definitions}, {**old, "$defs": self.old_definitions}
        return new.get("type") == old.get("type") and unreadable_json(*schemas) is None

    def _objects(self, new: Any, old: Any, where: str) -> Iterator[str]:
        properties, rest = new.get("properties", {}), new.get("additionalProperties")
        for name, schema in old.get("properties", {}).items():
            if name in properties:
                yield from self.dropped(properties[name], schema, f"{where}.{name}")
            elif isinstance(rest, dict):
                yield from self.dropped(rest, schema, f"{where}.{name}")
            elif "properties" in new:
                yield f"{where}.{name}"
        others = old.get("additionalProperties")
        if isinstance(rest, dict) and isinstance(others, dict):
            yield from self.dropped(rest, others, f"{where}[...]")

    def _arrays(self, new: Any, old: Any, where: str) -> Iterator[str]:
        items, old_items = new.get("prefixItems", []), old.get("prefixItems", [])
        for number, (item, old_item) in enumerate(zip(items, old_items, strict=False)):
            yield from self.dropped(item, old_item, f"{where}[{number}]")
        rest, others = new.get("items"), old.get("items")
        if isinstance(rest, dict) and isinstance(others, dict):
            yield from self.dropped(rest, others, f"{where}[...]")
        elif items and not isinstance(rest, dict):
            yield from (f"{where}[{number}]" for number in range(len(items), len(old_items)))


@dataclass(slots=True)
class _Avro:
    """Comparison of two Avro schemas; a named record is remembered for later references."""

    new_definitions: dict[str, Any]
    old_definitions: dict[str, Any]
    seen: set[tuple[int, int]] = field(default_factory=set)

    def dropped(self, new: Any, old: Any, where: str) -> Iterator[str]:
        new, old = _resolved(new, self.new_definitions), _resolved(old, self.old_definitions)
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
            yield from self.dropped(new[part], old[part], f"{where}[...]")

    def _unions(self, new: Any, old: Any, where: str) -> Iterator[str]:
        readers = [
            _resolved(r, self.new_definitions) for r in (new if isinstance(new, list) else [new])
        ]
        for writer in old if isinstance(old, list) else [old]:
            resolved_writer = _resolved(writer, self.old_definitions)
            alike = [r for r in readers if _kind(r) == _kind(resolved_writer)]
            named = [r for r in alike if _name(r) == _name(resolved_writer)]
            for reader in (named or alike)[:1]:
                yield from self.dropped(reader, resolved_writer, where)

    def _records(self, new: Any, old: Any, where: str) -> Iterator[str]:
        types = {
            name: member["type"]
            for member in new["fields"]
            for name in (member["name"], *member.get("aliases", ()))
        }
        for member in old["fields"]:
            name = member["name"]
            if name in types:
                yield from self.dropped(types[name], member["type"], f"{where}.{name}")
            else:
                _resolved(member["type"], self.old_definitions)
                yield f"{where}.{name}"


def _resolved(schema: Any, names: dict[str, Any]) -> Any:
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
