"""The dashboard and the rules ask for metrics and labels that a scrape has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.streams_web.metrics import METRICS

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "src/headrace/streams_web/grafana"
RULES = yaml.safe_load((GRAFANA / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "headrace.json").read_text())
FROM_PROMETHEUS = {"job", "instance", "le"}


def expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*panels, *(rule["expr"] for rule in RULES)]


def samples() -> dict[str, set[str]]:
    """The names of all samples of a scrape, with their labels."""
    from prometheus_client.parser import text_string_to_metric_families

    from headrace.streams_web.pages import scrape
    from tests.support.snapshots import application_snapshot

    text = scrape(application_snapshot(), 101.0).decode()
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_asks_for_what_there_is(expression: str) -> None:
    known = samples()
    named = set(re.findall(r"\bheadrace_\w+", expression))
    assert named <= known.keys()
    assert named or expression.startswith("up{")
    for grouped in re.findall(r"by \(([^)]*)\)", expression):
        asked = {label.strip() for label in grouped.split(",")} - FROM_PROMETHEUS
        for name in named:
            assert asked <= known[name], f"{name} has no label {asked - known[name]}"
    assert expression.count("(") == expression.count(")")
    for name in named:
        is_counted = re.search(rf"(rate|increase)\({name}", expression) is not None
        assert is_counted == name.endswith(("_total", "_bucket", "_count", "_sum"))


def test_each_panel_has_its_labels_and_a_place() -> None:
    known = samples()
    places = set()
    for panel in DASHBOARD["panels"]:
        places.add((panel["gridPos"]["x"], panel["gridPos"]["y"]))
        for target in panel["targets"]:
            (name, *_) = re.findall(r"\bheadrace_\w+", target["expr"])
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert shown <= known[name] | FROM_PROMETHEUS
    assert len(places) == len(DASHBOARD["panels"])


def test_the_page_has_every_alert() -> None:
    page = (ROOT / "docs/monitoring.md").read_text()
    assert re.findall(r"^\| `(Headrace\w+)` \|", page, re.M) == [rule["alert"] for rule in RULES]
    for rule in RULES:
        shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        grouped = re.search(r"by \(([^)]*)\)", rule["expr"])
        if grouped is not None:
            assert shown <= {label.strip() for label in grouped[1].split(",")}


def test_the_dashboard_shows_most_metrics() -> None:
    shown = set(re.findall(r"\bheadrace_\w+", " ".join(expressions())))
    unseen = [m.name for m in METRICS if not any(name.startswith(m.name) for name in shown)]
    assert len(unseen) < len(METRICS) / 3
