"""OpenAPI description of interactive queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.streams.queries.answers import Place
from headrace.streams_web.stores import parameters


def store_paths() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the paths, and the schemas that they refer to."""
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
    paths = {
        "/api/hot-keys": _get(
            "The keys of each store that change most, of this host's tasks; see hot.keys.max.",
            parameters.STORES,
            _object(most={"type": "integer"}, stores={"type": "array"}),
            is_of_one=False,
        ),
        "/api/group": _get(
            "The workers of all hosts, and the tasks of each, as the brokers say it.",
            parameters.STORES,
            _object(
                state={"type": "string"},
                host={"type": ["string", "null"]},
                members={"type": "array"},
            ),
            is_of_one=False,
        ),
        "/api/stores": _get(
            "The stores.",
            parameters.STORES,
            _object(stores={"type": "array"}),
            is_of_one=False,
        ),
        store: _get(
            "A store, and how far its partitions here are.", parameters.STORE, {"type": "object"}
        ),
        f"{store}/get": {
            **_get("The row of a key.", parameters.GET, one),
            "post": _many(_object(rows={"type": "array"}, places=places)),
        },
        f"{store}/range": _get(
            "Rows from one key to another, both inclusive; windows and sessions by their times.",
            parameters.RANGE,
            rows,
        ),
        f"{store}/prefix": _get("Rows whose keys' bytes begin so.", parameters.PREFIX, rows),
        f"{store}/count": _get(
            "How many rows there are.",
            parameters.COUNT,
            _object(count={"type": "integer"}, exact={"type": "boolean"}, places=places),
        ),
        f"{store}/changes": _changes("The committed changes of a store."),
        f"{store}/{{key}}/changes": _changes("The committed changes of a key.", key=True),
        f"{store}/{{key}}": _get(
            "The row of a key, or its windows.", parameters.KEY, one, key=True
        ),
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
    known = parameters.CHANGES if key else parameters.CHANGES_OF_ALL
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
    return {**_operation("The rows of many keys.", parameters.MANY, answer), "requestBody": body}
