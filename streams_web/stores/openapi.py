"""The part of the API's description that is there where stores may be asked for."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.streams.queries.answers import Place

_TIME = "Milliseconds since 1970, or a time such as 2026-01-31T09:00:00Z."
_SAME = {
    "min_position": "Wait until a partition is so far: PARTITION:OFFSET, as places have them, or "
    "TOPIC-PARTITION:OFFSET of a record that was written to an input.",
    "wait": "For how long, such as 2s.",
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


def store_paths() -> tuple[dict[str, Any], dict[str, Any]]:
    """The paths, and the schemas that they refer to."""
    (place,), schemas = msgspec.json.schema_components(
        [Place], ref_template="#/components/schemas/{name}"
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
    keyed = {**_SAME, **_PAGED, **_WINDOWS, "as_of": f"As of when, of a versioned store. {_TIME}"}
    paths = {
        "/api/stores": _get("The stores.", {}, _object(stores={"type": "array"})),
        store: _get("A store, and how far its partitions here are.", {}, {"type": "object"}),
        f"{store}/get": {
            **_get("The row of a key.", {"key": "The key.", **keyed}, one),
            "post": _many(_object(rows={"type": "array"}, places=places)),
        },
        f"{store}/range": _get(
            "Rows from one key to another, both inclusive; windows and sessions by their times.",
            {
                **_SAME,
                **_PAGED,
                "from": "The first.",
                "to": "The last.",
                "reverse": "true or false",
            },
            rows,
        ),
        f"{store}/prefix": _get(
            "Rows whose keys begin so.", {**_SAME, **_PAGED, "prefix": "How."}, rows
        ),
        f"{store}/count": _get(
            "How many rows there are.",
            {**_SAME, "exact": "true looks at all of them."},
            _object(count={"type": "integer"}, exact={"type": "boolean"}),
        ),
        f"{store}/changes": _changes("The committed changes of a store."),
        f"{store}/{{key}}/changes": _changes("The committed changes of a key.", key=True),
        f"{store}/{{key}}": _get("The row of a key, or its windows.", keyed, one, key=True),
    }
    return paths, schemas


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


def _get(
    summary: str, parameters: dict[str, str], answer: dict[str, Any], *, key: bool = False
) -> dict[str, Any]:
    return {"get": _operation(summary, parameters, answer, key=key)}


def _operation(
    summary: str, parameters: dict[str, str], answer: dict[str, Any], *, key: bool = False
) -> dict[str, Any]:
    is_of_one = summary != "The stores."
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
            "501": {"description": "The store is in the workers' memory."},
            "503": {"description": "The rows cannot be read now, or are too old; ask again."},
        },
    }


def _changes(summary: str, *, key: bool = False) -> dict[str, Any]:
    told = (
        "Events position, row, change, compacted and closed. A change has key, value, deleted, "
        "timestamp, partition and offset as JSON; its id is where to go on."
    )
    operation = _operation(summary, _CHANGES, {}, key=key)
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
    return {**_operation("The rows of many keys.", _SAME, answer), "requestBody": body}
