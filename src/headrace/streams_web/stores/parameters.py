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
    "min_position": "Wait until a partition is so far: PARTITION:OFFSET, as places have them, or "
    "TOPIC-PARTITION:OFFSET of a record that was written to an input.",
    "wait": "For how long, such as 2s; 30s at most.",
    "max_age": "Refuse rows that may lack changes of a longer time, such as 10s; 60s unless given. "
    "Where it is given, what a task has left behind on a host is taken too while it moves.",
    "route": "What becomes of a question whose rows other hosts have: proxy asks them, redirect "
    "sends whoever asks for one key there, none answers from here alone.",
    "partial": "true gives what there is where a host does not answer, with what is missing.",
    "json_keys": "true takes keys in parameters for JSON, also where they are text.",
}
_PAGED = {
    "limit": "Rows of a page, 100 unless it is given, 10000 at most.",
    "after": "What the page before has there.",
}
_CHANGES = {
    "from": "end, which it is unless given, or beginning: of each key what compaction has left.",
    "position": "Begin there: PARTITION:OFFSET,PARTITION:OFFSET, as events have it as their id.",
    "snapshot": "true tells the rows first, and then the changes that are not in them.",
}
_WINDOWS = {
    "from": f"Of windows the earliest start, of sessions the earliest end. {_TIME}",
    "to": f"The latest start. {_TIME}",
}
_KEYED = {**_SAME, **_PAGED, **_WINDOWS, "as_of": f"As of when, of a versioned store. {_TIME}"}
_UNREAD = ("json_keys",)

STORES: Mapping[str, str] = {}
STORE = {name: text for name, text in _SAME.items() if name not in _UNREAD}
KEY = _KEYED
GET = {"key": "The key.", **_KEYED}
MANY = STORE
RANGE = {
    **_SAME,
    **_PAGED,
    "from": "The first.",
    "to": "The last.",
    "reverse": "true or false",
}
PREFIX = {
    **_SAME,
    **_PAGED,
    "prefix": "The bytes that keys begin with, such as the first letters of texts.",
}
COUNT = {**STORE, "exact": "true looks at all of them."}
CHANGES = _CHANGES
CHANGES_OF_ALL = {
    **_CHANGES,
    "key": "Of this key alone.",
    "json_keys": "true takes it for JSON, also where keys are text.",
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
    (place,), schemas = msgspec.json.schema_components(
        [PartitionPosition], ref_template="#/components/schemas/{name}"
    )
    places = {"type": "array", "items": place}
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
        rows={"type": "array", "items": row}, after={"type": ["string", "null"]}, places=places
    )
    one = {**row, "properties": {**row["properties"], "places": places}}
    store = "/api/stores/{name}"
    paths = {
        "/api/hot-keys": _get(
            "The keys of each store that change most, of this host's tasks; see hot.keys.max.",
            STORES,
            _object(max_keys={"type": "integer"}, stores={"type": "array"}),
            is_of_one=False,
        ),
        "/api/group": _get(
            "The workers of all hosts, and the tasks of each, as the brokers say it.",
            STORES,
            _object(
                state={"type": "string"},
                host={"type": ["string", "null"]},
                members={"type": "array"},
            ),
            is_of_one=False,
        ),
        "/api/stores": _get(
            "The stores.",
            STORES,
            _object(stores={"type": "array"}),
            is_of_one=False,
        ),
        store: _get("A store, and how far its partitions here are.", STORE, {"type": "object"}),
        f"{store}/get": {
            **_get("The row of a key.", GET, one),
            "post": _many(_object(rows={"type": "array"}, places=places)),
        },
        f"{store}/range": _get(
            "Rows from one key to another, both inclusive; windows and sessions by their times.",
            RANGE,
            rows,
        ),
        f"{store}/prefix": _get("Rows whose keys' bytes begin so.", PREFIX, rows),
        f"{store}/count": _get(
            "How many rows there are.",
            COUNT,
            _object(count={"type": "integer"}, exact={"type": "boolean"}, places=places),
        ),
        f"{store}/changes": _changes("The committed changes of a store."),
        f"{store}/{{key}}/changes": _changes("The committed changes of a key.", key=True),
        f"{store}/{{key}}": _get("The row of a key, or its windows.", KEY, one, key=True),
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
                "description": "The answer.",
                "content": {"application/json": {"schema": answer}},
            },
            "307": {"description": "With route=redirect: the host that has the key."},
            "400": {"description": "The question is wrong, with what would be right."},
            "404": {"description": "There is no such store, or no row of this key."},
            "421": {"description": "With route=none: another host has it, and which."},
            "501": {"description": "The store is in the memory of workers, and none can be asked."},
            "503": {"description": "The rows cannot be read now, or are too old; ask again."},
        },
    }


def _changes(summary: str, *, key: bool = False) -> dict[str, Any]:
    told = (
        "Events position, row, change, compacted and closed. A change has key, value, deleted, "
        "timestamp, partition and offset as JSON; its id is where to go on."
    )
    known = CHANGES if key else CHANGES_OF_ALL
    operation = _operation(summary, known, {}, key=key)
    last = _parameter("Last-Event-ID", "header", "Go on behind this event, over all else.")
    operation["parameters"].append(last)
    operation["responses"] |= {
        "200": {"description": told, "content": {"text/event-stream": {}}},
        "410": {"description": "What comes at this position is not there any more."},
        "501": {"description": "The store keeps no changelog."},
    }
    return {"get": operation}


def _parameter(name: str, place: str, text: str) -> dict[str, Any]:
    made = {"name": name, "in": place, "schema": {"type": "string"}}
    return {**made, "required": True} if place == "path" else {**made, "description": text}


def _many(answer: dict[str, Any]) -> dict[str, Any]:
    schema = _object(keys={"type": "array"})
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {**_operation("The rows of many keys.", MANY, answer), "requestBody": body}
