"""The description of the API, made of the types of its answers."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from headrace import __version__
from headrace.streams.logs import LEVELS
from headrace.streams_web.changes import LOG_LEVEL
from headrace.streams_web.stores.openapi import store_paths
from headrace.streams_web.views import VIEWS, TopologyAnswer

_HEALTH = {
    "live": "Whether to leave the process alone.",
    "ready": "Whether all tasks run; with `within`, whether each did so no longer ago, and no "
    "input is further behind.",
    "startup": "Whether the application was loaded.",
}


@cache
def described(*, with_stores: bool = False) -> dict[str, Any]:
    """The API as OpenAPI 3.1 has it."""
    answers, components = msgspec.json.schema_components(
        [*(view.answer for view in VIEWS), TopologyAnswer],
        ref_template="#/components/schemas/{name}",
    )
    paths = {
        f"/api/{view.name}": _path(view.help, answer)
        for view, answer in zip(VIEWS, answers[:-1], strict=True)
    }
    paths["/api/topology"] = _path("What the topology looks like.", answers[-1])
    paths |= {f"/health/{name}": _path(text, None) for name, text in _HEALTH.items()}
    paths["/health/ready"]["get"]["parameters"] = [
        {"name": "within", "in": "query", "schema": {"type": "string", "examples": ["30s"]}}
    ]
    paths[LOG_LEVEL] = {"post": _log_level()}
    paths["/metrics"] = {
        "get": {
            "summary": "Metrics in Prometheus' text format.",
            "responses": {"200": {"description": "The metrics.", "content": {"text/plain": {}}}},
        }
    }
    if with_stores:
        of_stores, schemas = store_paths()
        paths |= of_stores
        components = {**components, **schemas}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _log_level() -> dict[str, Any]:
    asked = {
        "type": "object",
        "required": ["level"],
        "properties": {"level": {"type": "string", "enum": list(LEVELS)}},
    }
    said = {"type": "object", "properties": {"said": {"type": "string"}}}
    return {
        "summary": "Log from a level on, in all workers, until the process ends.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
        "responses": {
            "200": {"description": "Done.", "content": {"application/json": {"schema": said}}},
            "400": {"description": "There is no such level, or it is no JSON."},
            "403": {"description": "It is served without a token to other machines."},
            "415": {"description": "The body is not said to be application/json."},
            "503": {"description": "Nobody listens any more."},
        },
    }


def _path(summary: str, answer: dict[str, Any] | None) -> dict[str, Any]:
    content = {} if answer is None else {"application/json": {"schema": answer}}
    return {
        "get": {
            "summary": summary,
            "responses": {
                "200": {"description": "The answer.", "content": content},
                "503": {"description": "Not yet, or not any more, with the reasons."},
            },
        }
    }
