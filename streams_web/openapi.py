"""The description of the API, made of the types of its answers."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from headrace import __version__
from headrace.streams_web.views import VIEWS

_HEALTH = {
    "live": "Whether to leave the process alone.",
    "ready": "Whether all tasks run; with `within`, whether nothing is further behind than that.",
    "startup": "Whether the application was loaded.",
}


@cache
def described() -> dict[str, Any]:
    """The API as OpenAPI 3.1 has it."""
    answers, components = msgspec.json.schema_components(
        [view.answer for view in VIEWS], ref_template="#/components/schemas/{name}"
    )
    paths = {
        f"/api/{view.name}": _path(view.help, answer)
        for view, answer in zip(VIEWS, answers, strict=True)
    }
    paths |= {f"/health/{name}": _path(text, None) for name, text in _HEALTH.items()}
    paths["/health/ready"]["get"]["parameters"] = [
        {"name": "within", "in": "query", "schema": {"type": "string", "examples": ["30s"]}}
    ]
    paths["/metrics"] = {
        "get": {
            "summary": "Metrics in Prometheus' text format.",
            "responses": {"200": {"description": "The metrics.", "content": {"text/plain": {}}}},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
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
