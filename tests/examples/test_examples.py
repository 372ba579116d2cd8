"""What all examples have in common that `headrace run` runs."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.streams.cli.main import main
from headrace.streams.supervisor.app_loader import load_app
from headrace.topology import Topology
from headrace.topology.graph.graph import Sink, SourceNode
from tests.support.processes import ROOT

NAMES = sorted(
    path.stem for path in (ROOT / "examples").glob("*.py") if "\ndef app(" in path.read_text()
)
"""Those that `headrace run` runs; the others bring a broker of their own."""


def topology_of(name: str) -> Topology:
    made: Any = getattr(importlib.import_module(f"examples.{name}"), name)()
    assert isinstance(made, Topology)
    return made


def topics_of(topology: Topology) -> set[str]:
    """The topics that an application reads and writes and does not make itself."""
    read = {
        t for n in topology.nodes if isinstance(n, SourceNode) and not n.internal for t in n.topics
    }
    written = {n.topic for n in topology.nodes if isinstance(n, Sink) and not n.internal}
    return read | {topic for topic in written if isinstance(topic, str)}


def test_these_are_the_examples() -> None:
    """A new one belongs into docs/examples.md and has tests of its own."""
    page = (ROOT / "docs/examples.md").read_text()
    for name in NAMES:
        assert f"examples/{name}.py" in page, name
        assert Path(__file__).with_name(f"test_{name}.py").exists(), name
    assert len(NAMES) == 10


@pytest.mark.parametrize("name", NAMES)
def test_headrace_run_finds_it_and_runs_it_exactly_once(name: str) -> None:
    app = load_app(f"examples.{name}:app")
    assert app.config.exactly_once
    assert app.config.application_id == name.replace("_", "-")


@pytest.mark.parametrize("name", NAMES)
def test_headrace_check_finds_nothing_without_a_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(main, ["check", "--strict", f"examples.{name}:app"])
    assert done.exit_code == 0, done.output
    assert done.output == "All stores and repartition topics are named.\n"


@pytest.mark.parametrize("name", NAMES)
def test_it_is_short_and_its_docstring_says_how_to_run_it(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.py").read_text()
    assert len(text.splitlines()) < 80
    docstring = importlib.import_module(f"examples.{name}").__doc__ or ""
    assert f"headrace run examples.{name}:app" in docstring
    (created,) = re.findall(
        r"headrace topics create ([\w -]+?)(?: --partitions 4)?$", docstring, re.M
    )
    assert set(created.split()) == topics_of(topology_of(name))


PICTURES = {
    "enrich_by_http": "enrich-by-http",
    "orders_into_postgres": "orders-into-postgres",
    "score_in_batches": "score-in-batches",
    "year_of_files": "year-of-files",
}


@pytest.mark.parametrize("name", PICTURES)
def test_its_picture_is_that_of_its_topology(name: str) -> None:
    """Made by `headrace describe examples.NAME:app --svg`."""
    path = ROOT / "docs/images" / f"{PICTURES[name]}.svg"
    assert path.read_text() == topology_of(name).to_svg() + "\n", f"make {path.name} anew"
    assert f"(images/{path.name})" in (ROOT / "docs/examples.md").read_text()
