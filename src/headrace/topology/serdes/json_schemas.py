"""Comparison of JSON Schemas that msgspec generates for classes.

A document of a class can be read into another class if each field without a default is present, and
each value has a valid type. Fields that a class does not have are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SAYS_NOTHING = frozenset({"title", "description", "default", "examples"})
_BY_NAME = frozenset({"properties", "$defs"})
_REF = "#/$defs/"

Schema = Mapping[str, Any]


def stripped(schema: Any) -> Any:
    """Return a schema without descriptions and default values.

    >>> stripped({"title": "Order", "properties": {"title": {"type": "string", "default": ""}}})
    {'properties': {'title': {'type': 'string'}}}
    """
    if isinstance(schema, list):
        return [stripped(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: {key: stripped(item) for key, item in value.items()}
        if name in _BY_NAME
        else value
        if name == "enum"
        else stripped(value)
        for name, value in schema.items()
        if name not in _SAYS_NOTHING
    }


def unreadable_json(new: Schema, old: Schema) -> str | None:
    """Return why some documents of the old schema cannot be read with the new schema, or None.

    >>> old = {"type": "object", "properties": {}, "required": []}
    >>> tax = {"type": "number"}
    >>> new = {"type": "object", "properties": {"tax": tax}, "required": ["tax"]}
    >>> unreadable_json(new, old)
    'field `$.tax` is new and has no default'
    """
    return _Comparison(new.get("$defs", {}), old.get("$defs", {})).compare(new, old, "$")


@dataclass(slots=True)
class _Comparison:
    definitions: Schema
    old_definitions: Schema
    seen: set[tuple[str, str]] = field(default_factory=set)

    def compare(self, new: Any, old: Any, where: str) -> str | None:
        if "$ref" in new and "$ref" in old:
            pair = (new["$ref"], old["$ref"])
            if pair in self.seen:
                return None
            self.seen.add(pair)
        new, old = resolved(new, self.definitions), resolved(old, self.old_definitions)
        readers, writers = new.get("anyOf", [new]), old.get("anyOf", [old])
        for writer in writers:
            reasons = [self._compare_branch(r, writer, where) for r in readers]
            if all(reasons):
                alone = len(readers) == len(writers) == 1
                kind = _named(resolved(writer, self.old_definitions))
                return reasons[0] if alone else f"`{where}` could be {kind}, and no longer can"
        return None

    def _compare_branch(self, new: Any, old: Any, where: str) -> str | None:
        pair = (new.get("$ref", ""), old.get("$ref", ""))
        if not all(pair):
            return self._same_kind(new, old, where)
        if pair in self.seen:
            return None
        self.seen.add(pair)
        reason = self._same_kind(new, old, where)
        if reason:
            # Another reader of the union may accept it, here and at the next location.
            self.seen.discard(pair)
        return reason

    def _same_kind(self, new: Any, old: Any, where: str) -> str | None:
        new, old = resolved(new, self.definitions), resolved(old, self.old_definitions)
        if "anyOf" in new or "anyOf" in old:
            return self.compare(new, old, where)
        if _is_any(new) or _is_any(old):
            return None
        if "enum" in new or "enum" in old:
            return _of_enums(new, old, where)
        kind, before = new.get("type"), old.get("type")
        if kind != before and (kind, before) != ("number", "integer"):
            return f"`{where}` was {_named(old)} and is {_named(new)}"
        if kind == "string" and new.get("format") not in (None, old.get("format")):
            return f"`{where}` was {_named(old)} and is {_named(new)}"
        if kind == "object":
            return self._objects(new, old, where)
        return self._arrays(new, old, where) if kind == "array" else None

    def _objects(self, new: Schema, old: Schema, where: str) -> str | None:
        properties, old_properties = new.get("properties", {}), old.get("properties", {})
        rest, old_rest = new.get("additionalProperties"), old.get("additionalProperties")
        if "properties" in old:
            for name in new.get("required", ()):
                if name not in old_properties:
                    return f"field `{where}.{name}` is new and has no default"
        for name, schema in old_properties.items():
            if name in properties:
                reason = self.compare(properties[name], schema, f"{where}.{name}")
            elif isinstance(rest, dict):
                reason = self.compare(rest, schema, f"{where}.{name}")
            else:
                reason = f"field `{where}.{name}` is no longer allowed" if rest is False else None
            if reason:
                return reason
        if isinstance(rest, dict) and isinstance(old_rest, dict):
            return self.compare(rest, old_rest, f"{where}[...]")
        return None

    def _arrays(self, new: Schema, old: Schema, where: str) -> str | None:
        items, old_items = new.get("prefixItems", ()), old.get("prefixItems", ())
        if old.get("maxItems", 0) < new.get("minItems", 0) and "maxItems" in old:
            return f"item `{where}[{old['maxItems']}]` is new and has no default"
        if "maxItems" in new and old.get("maxItems", new["maxItems"] + 1) > new["maxItems"]:
            return f"`{where}` may have more items than {new['maxItems']}"
        pairs = list(zip(items, old_items, strict=False))
        if isinstance(new.get("items"), dict):
            others = old_items[len(items) :]
            pairs += [(new["items"], old_item) for old_item in others]
            if isinstance(old.get("items"), dict):
                pairs.append((new["items"], old["items"]))
        for number, (item, old_item) in enumerate(pairs):
            reason = self.compare(item, old_item, f"{where}[{number if items else '...'}]")
            if reason:
                return reason
        return None


def resolved(schema: Any, defs: Schema) -> Any:
    """Return the schema, or the schema that it refers to."""
    while "$ref" in schema:
        schema = defs[schema["$ref"].removeprefix(_REF)]
    return schema


def _is_any(schema: Schema) -> bool:
    return not schema.keys() & {"type", "enum", "anyOf"}


def _of_enums(new: Schema, old: Schema, where: str) -> str | None:
    if "enum" not in new:
        kinds: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,)}
        kind = kinds.get(new.get("type", ""), ())
        fits = all(isinstance(item, kind) for item in old["enum"]) and "format" not in new
        return None if fits else f"`{where}` was one of a few values and is {_named(new)}"
    if "enum" not in old:
        return f"`{where}` was {_named(old)} and is one of a few values"
    removed = [str(item) for item in old["enum"] if item not in new["enum"]]
    return f"`{where}` can no longer be {removed[0]}" if removed else None


def _named(schema: Schema) -> str:
    kind = schema.get("format") or schema.get("type") or "one of a few values"
    return (
        kind if kind in ("null", "one of a few values") else f"a{'n' * (kind[0] in 'aio')} {kind}"
    )
