"""Format of a serde's bytes as text, and the check whether new code reads data of old code.

A format is one of

    {"json": JSON Schema}        the documents of `serdes.json_of`
    {"avro": schema}             bare Avro, which is readable only with exactly this schema
    {"registered": schema}       Avro with a registry, which has the schema of each value
    {"of": {part: form}}         a serde made of others: windowed keys, lists, sides of a join
    {"serde": name}              any other serde inside of such a serde

and empty for a serde that is completely described by its name. Titles, descriptions and default
values are omitted because they may change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.topology.serdes._serde import Serde
from headrace.topology.serdes.json_schemas import unreadable_json

EXCLUSIVE = frozenset({"string", "integer", "long", "double", "json"})
"""Serdes that cannot read each other's bytes."""

_PARTS = ("inner", "windowed", "left", "right")


def schema_of(serde: Serde[Any]) -> str:
    """Return the format of a serde as JSON, or "" if its name describes it completely.

    >>> from headrace import serdes
    >>> schema_of(serdes.json_of(dict[str, int]))
    '{"json":{"additionalProperties":{"type":"integer"},"type":"object"}}'
    >>> schema_of(serdes.string), schema_of(serdes.list_of(serdes.long))
    ('', '{"of":{"inner":{"serde":"long"}}}')
    """
    form = _form(serde)
    return "" if "serde" in form else json.dumps(form, separators=(",", ":"), sort_keys=True)


def _form(serde: Any) -> dict[str, Any]:
    own = getattr(serde, "written_form", None)
    if own is not None:
        form: dict[str, Any] | None = own()
        if form is not None:
            return form
    parts = {part: getattr(serde, part, None) for part in _PARTS}
    forms = {part: _form(inner) for part, inner in parts.items() if hasattr(inner, "serialize")}
    return {"of": forms} if forms else {"serde": serde.name}


def unreadable(new: str, old: str) -> str | None:
    """Return why `new` cannot read all data of `old`, two results of `schema_of`; None if unknown.

    >>> unreadable('{"json":{"type":"string"}}', '{"json":{"type":"integer"}}')
    '`$` was an integer and is a string'
    """
    if not new or not old or new == old:
        return None
    return _unreadable(json.loads(new), json.loads(old))


def _unreadable(new: Mapping[str, Any], old: Mapping[str, Any]) -> str | None:
    (kind,), (old_kind,) = new, old
    if kind != old_kind:
        return None
    new_form, old_form = new[kind], old[kind]
    if kind == "of":
        reasons = (_unreadable(new_form[p], old_form[p]) for p in new_form if p in old_form)
        return next(filter(None, reasons), None)
    if kind == "serde":
        if new_form != old_form and {new_form, old_form} <= EXCLUSIVE:
            return f"serde {old_form} wrote them and {new_form} reads them"
        return None
    if kind == "json":
        return unreadable_json(new_form, old_form)
    return _unreadable_avro(new_form, old_form, registered=kind == "registered")


def _unreadable_avro(new: Any, old: Any, *, registered: bool) -> str | None:
    if not registered:
        # Bare Avro does not contain the schema or its id.
        return (
            None if new == old else f"bare Avro is read with its own schema; {_differs(new, old)}"
        )
    from headrace.topology.serdes.schema_registry import incompatibility

    return incompatibility(json.dumps(new), json.dumps(old))


def _differs(new: Any, old: Any) -> str:
    fields, old_fields = _fields(new), _fields(old)
    names = [name for name in [*fields, *old_fields] if fields.get(name) != old_fields.get(name)]
    if names:
        return f"field {names[0]!r} differs"
    return "its fields are in another order" if fields else "it differs"


def _fields(schema: Any) -> dict[str, Any]:
    fields = schema.get("fields", ()) if isinstance(schema, dict) else ()
    return {field["name"]: field for field in fields}
