"""Parameters of each query with their descriptions, and the OpenAPI description of all queries.

An unknown parameter is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.streams.queries.answers import PartitionPosition
from headrace.streams.queries.errors import WrongQueryError

_TIME = "Milliseconds since 1970, or a time such as 2026-01-31T09:00:00Z."
_SAME = {
    "min_position": "Minimum position to wait for: PARTITION:OFFSET of the `positions` of an "
    "answer, or TOPIC-PARTITION:OFFSET of a record written to an input.",
    "wait": "Maximum wait for min_position, such as 2s. Default 2s, at most 30s.",
    "max_age": "Maximum time of which rows may lack changes, such as 10s; older rows are refused. "
    "Default 60s. If given, rows that a task has left on a host are used while it moves.",
    "route": "Handling of queries for rows of other hosts: proxy queries those hosts, redirect "
    "redirects a query for a single key, none answers from this host only. Default proxy.",
    "partial": "true to accept an incomplete answer if a host does not answer; it has the missing "
    "partitions.",
    "json_keys": "true to parse keys in parameters as JSON, even if the store has text keys.",
}
_PAGED = {
    "limit": "Rows per page. Default 100, at most 10000.",
    "after": "Cursor `after` of the previous page.",
}
_CHANGES = {
    "from": "Start: end, the default, or beginning, with the changes that compaction has left.",
    "position": "Start position: PARTITION:OFFSET,PARTITION:OFFSET, the id of an event.",
    "snapshot": "true to send the rows first, then the later changes.",
}
_WINDOWS = {
    "from": f"Earliest start of windows, earliest end of sessions. {_TIME}",
    "to": f"Latest start. {_TIME}",
}
_KEYED = {
    **_SAME,
    **_PAGED,
    **_WINDOWS,
    "as_of": f"Time in the past, for a versioned store. {_TIME}",
}
_UNREAD = ("json_keys",)

STORES: Mapping[str, str] = {}
STORE = {name: text for name, text in _SAME.items() if name not in _UNREAD}
KEY = _KEYED
GET = {"key": "Key of the row.", **_KEYED}
MANY = STORE
RANGE = {
    **_SAME,
    **_PAGED,
    "from": "First key.",
    "to": "Last key, inclusive.",
    "reverse": "true for descending order. Default false.",
}
PREFIX = {
    **_SAME,
    **_PAGED,
    "prefix": "First bytes of the keys, such as the first letters of a text.",
}
COUNT = {
    **STORE,
    "exact": "true to count all rows. By default, large stores are estimated.",
}
CHANGES = _CHANGES
CHANGES_OF_ALL = {
    **_CHANGES,
    "key": "Key whose changes are sent. By default, those of all keys.",
    "json_keys": "true to parse the key as JSON, even if the store has text keys.",
}

_INNER = frozenset({"partitions", "of", "left", "piece", "piece_of"})
"""Parameters between hosts."""
_REPEATED = frozenset({"min_position"})
_REFUSED_LATER = {"prefix": frozenset({"from", "to", "reverse"})}
"""Parameters that conflict with a parameter; the error is raised when they are read."""


def require_known(given: Iterable[str], known: Mapping[str, str]) -> None:
    """Raise WrongQueryError for a parameter that is ignored, or is given more than once."""
    later = frozenset[str]().union(*(_REFUSED_LATER.get(name, frozenset()) for name in known))
    for name, count in Counter(given).items():
        if count > 1 and name not in _REPEATED:
            raise WrongQueryError(f"{name[:40]} is given more than once. Give it once")
        if name not in known and name not in _INNER and name not in later:
            allowed = ", ".join(sorted(known)) or "no parameters"
            raise WrongQueryError(f"the parameter {name[:40]!r} is unknown. Use: {allowed}")


# OpenAPI description of the queries.


def store_paths() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the paths, and the schemas that they refer to."""
    (position,), schemas = msgspec.json.schema_components(
        [PartitionPosition], ref_template="#/components/schemas/{name}"
    )
    positions = {"type": "array", "items": position}
    row: dict[str, Any] = {
        "type": "object",
        "properties": {
            "key": {},
            "value": {},
            "timestamp": {"type": "integer"},
            "partition": {"type": ["integer", "null"]},
        },
        "required": ["key", "value", "timestamp", "partition"],
    }
    rows = _object(
        rows={"type": "array", "items": row},
        after={"type": ["string", "null"]},
        positions=positions,
    )
    one = {**row, "properties": {**row["properties"], "positions": positions}}
    store = "/api/stores/{name}"
    paths = {
        "/api/hot-keys": _get(
            "Most frequently changed keys of each store, in tasks of this host; see hot.keys.max.",
            STORES,
            _object(max_keys={"type": "integer"}, stores={"type": "array"}),
            is_of_one=False,
        ),
        "/api/group": _get(
            "Workers of all hosts with their tasks, as reported by the brokers.",
            STORES,
            _object(
                state={"type": "string"},
                host={"type": ["string", "null"]},
                members={"type": "array"},
            ),
            is_of_one=False,
        ),
        "/api/stores": _get(
            "Stores of the application.",
            STORES,
            _object(stores={"type": "array"}),
            is_of_one=False,
        ),
        store: _get("A store, with the positions of its partitions.", STORE, {"type": "object"}),
        f"{store}/get": {
            **_get("Row of a key.", GET, one),
            "post": _many(_object(rows={"type": "array"}, positions=positions)),
        },
        f"{store}/range": _get(
            "Rows of a range of keys, both inclusive; windows and sessions by time.",
            RANGE,
            rows,
        ),
        f"{store}/prefix": _get("Rows whose keys start with a prefix.", PREFIX, rows),
        f"{store}/count": _get(
            "Number of rows.",
            COUNT,
            _object(count={"type": "integer"}, exact={"type": "boolean"}, positions=positions),
        ),
        f"{store}/changes": _changes("Committed changes of a store, as server-sent events."),
        f"{store}/{{key}}/changes": _changes(
            "Committed changes of a key, as server-sent events.", key=True
        ),
        f"{store}/{{key}}": _get("Row of a key, or its windows.", KEY, one, key=True),
    }
    return paths, schemas


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


def _get(
    summary: str,
    parameters: Mapping[str, str],
    answer: dict[str, Any],
    *,
    key: bool = False,
    is_of_one: bool = True,
) -> dict[str, Any]:
    return {"get": _operation(summary, parameters, answer, key=key, is_of_one=is_of_one)}


def _operation(
    summary: str,
    parameters: Mapping[str, str],
    answer: dict[str, Any],
    *,
    key: bool = False,
    is_of_one: bool = True,
) -> dict[str, Any]:
    given = [_parameter(name, "path", "") for name in ("name",) * is_of_one + ("key",) * key]
    given += [_parameter(name, "query", text) for name, text in parameters.items()]
    return {
        "summary": summary,
        "parameters": given,
        "responses": {
            "200": {
                "description": "The result of the query.",
                "content": {"application/json": {"schema": answer}},
            },
            "307": {"description": "Redirect to the host of the key, with route=redirect."},
            "400": {"description": "The query is invalid; the error contains the fix."},
            "404": {"description": "The store does not exist, or the key has no row."},
            "421": {"description": "Another host has the partition, and route=none."},
            "501": {"description": "The store is in memory, and no worker can be queried."},
            "503": {"description": "The rows cannot be read now, or are too old."},
        },
    }


def _changes(summary: str, *, key: bool = False) -> dict[str, Any]:
    description = (
        "Events position, row, change, compacted and closed. A change has key, value, deleted, "
        "timestamp, partition and offset as JSON; its id is the position after it."
    )
    known = CHANGES if key else CHANGES_OF_ALL
    operation = _operation(summary, known, {}, key=key)
    last = _parameter(
        "Last-Event-ID", "header", "Id of the last received event; overrides the parameters."
    )
    operation["parameters"].append(last)
    operation["responses"] |= {
        "200": {"description": description, "content": {"text/event-stream": {}}},
        "410": {"description": "The changes at this position have been deleted."},
        "501": {"description": "The store has no changelog."},
    }
    return {"get": operation}


def _parameter(name: str, location: str, text: str) -> dict[str, Any]:
    made = {"name": name, "in": location, "schema": {"type": "string"}}
    return {**made, "required": True} if location == "path" else {**made, "description": text}


def _many(answer: dict[str, Any]) -> dict[str, Any]:
    schema = _object(keys={"type": "array"})
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {**_operation("Rows of many keys.", MANY, answer), "requestBody": body}
