"""Warnings of what a worker puts right by itself say whether anything is to be done."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.processes import ROOT

PLACES = ("streams/worker", "streams/tasks/home.py", "streams/supervisor/supervisor.py")
SAID_ELSEWHERE = {
    "last_commit_failed": "it has what is left, and the process ends",
    "close_failed": "the process ends",
}
NO_ADVICE = {
    "brokers_not_reached",
    "offsets_retention_short",
    "offsets_retention_unknown",
    "purge_failed",
    "sink_record_rejected",
    "shutdown_request_received",
    "shutdown_requested",
    "sink_fenced",
    "worker_crashed",
    "worker_ended",
    "worker_replaced",
}
"""Events of the application as a whole that have no advice yet; no event may be added."""


def warnings_of(place: str) -> Iterator[tuple[str, set[str | None]]]:
    """The events that are logged as warnings there, and their fields."""
    path = ROOT / "src/headrace" / place
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = node.args[0] if node.args else None
                if node.func.attr == "warning" and isinstance(name, ast.Constant):
                    yield str(name.value), {keyword.arg for keyword in node.keywords}


@pytest.mark.parametrize("place", PLACES)
def test_each_warning_has_an_advice(place: str) -> None:
    found = list(warnings_of(place))
    assert found
    without = {event for event, fields in found if "advice" not in fields}
    assert without - SAID_ELSEWHERE.keys() - NO_ADVICE == set()


def test_events_listed_without_advice_have_none() -> None:
    found = [event for place in PLACES for event in warnings_of(place)]
    assert {event for event, fields in found if "advice" not in fields} >= NO_ADVICE
