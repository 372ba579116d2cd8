"""`headrace describe`, which asks no cluster."""

from __future__ import annotations

import uuid
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from headrace.streams.cli.main import main
from headrace.topology import StreamsBuilder

APP = """
from headrace import KafkaStreams, StreamsBuilder

builder = StreamsBuilder()
builder.stream("lines").group_by_key().count(store="counts").to_stream().to("out")
settings = {"application.id": "shop", "bootstrap.servers": "localhost:1"}
app = KafkaStreams(builder.build(), settings)
"""


TWICE = """
from headrace import KafkaStreams, StreamsBuilder

builder = StreamsBuilder()
keyed = builder.stream("lines").select_key(lambda k, v: v)
keyed.group_by_key().count(store="counts").to_stream().to("out")
keyed.group_by_key().reduce(max, store="largest").to_stream().to("max")
settings = {"application.id": "shop", "bootstrap.servers": "localhost:1"}
app = KafkaStreams(builder.build(), settings)
"""


@pytest.fixture
def app(tmp_path: Path) -> str:
    file = tmp_path / f"app_{uuid.uuid4().hex}.py"
    file.write_text(APP)
    return f"{file}:app"


def described(app: str, *arguments: str) -> Result:
    result = CliRunner().invoke(main, ["describe", app, *arguments])
    assert result.exit_code == 0, result.output
    return result


def test_the_text_is_that_of_the_topology(app: str) -> None:
    builder = StreamsBuilder()
    builder.stream("lines").group_by_key().count(store="counts").to_stream().to("out")
    assert described(app).output == builder.build().describe().rstrip() + "\n"


@pytest.mark.parametrize("command", ["describe", "check", "try"])
def test_what_asks_no_broker_needs_to_know_of_none(command: str, tmp_path: Path) -> None:
    file = tmp_path / f"app_{uuid.uuid4().hex}.py"
    file.write_text(APP.replace('{"application.id": "shop", "bootstrap.servers": "localhost:1"}',
                                "{}"))  # fmt: skip
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"key": "a", "value": 1}\n')
    more = ["--input", f"lines={lines}"] if command == "try" else []
    result = CliRunner().invoke(main, [command, f"{file}:app", *more])
    assert result.exit_code == 0, result.output
    asking = CliRunner().invoke(main, ["check", "--deployed", f"{file}:app"])
    assert asking.exit_code == 3
    assert "bootstrap.servers is required" in asking.output


def test_the_code_is_that_of_the_settings(app: str) -> None:
    held_back = described(app, "--code").output
    at_once = described(app, "--code", "--set", "statestore.cache.max.bytes=0").output
    assert "# Sub-topology 0" in held_back
    compile(held_back, "code", "exec")
    assert held_back != at_once


def test_all_forms_are_those_of_the_topology_that_runs(tmp_path: Path) -> None:
    """Two repartition topics are one where the settings say so."""
    file = tmp_path / f"app_{uuid.uuid4().hex}.py"
    file.write_text(TWICE)
    app = f"{file}:app"
    for form in ((), ("--code",), ("--mermaid",), ("--svg",)):
        plain = described(app, *form).output
        merged = described(app, *form, "--set", "topology.optimization=merge.repartition.topics")
        assert merged.output != plain, form


def test_it_can_be_drawn(app: str) -> None:
    assert described(app, "--mermaid").output.startswith("flowchart TD\n")
    ElementTree.fromstring(described(app, "--svg").output)


def test_two_forms_at_once_are_refused(app: str) -> None:
    result = CliRunner().invoke(main, ["describe", app, "--code", "--svg"])
    assert result.exit_code == 2
    assert "exclude each other" in result.output


def test_an_application_that_is_not_there_is_named() -> None:
    result = CliRunner().invoke(main, ["describe", "no_such_module:app"])
    assert result.exit_code != 0
    assert "no_such_module" in result.output


def test_it_says_of_each_fold_whether_partial_results_are_written(tmp_path: Path) -> None:
    """Not so of a fold without a repartition topic, where there are none."""
    file = tmp_path / f"app_{uuid.uuid4().hex}.py"
    file.write_text(TWICE)
    app = f"{file}:app"
    _, _, said = described(app).output.partition("\n\nPartial results:\n")
    assert said.splitlines() == [
        "  count into counts: written to counts-repartition in place of single records",
        "  reduce into largest: none, as it has no merger= for partial aggregates",
    ]
    off = described(app, "--set", "statestore.cache.max.bytes=0").output
    assert "  count into counts: none, as statestore.cache.max.bytes is 0\n" in off
    for form in ("--code", "--mermaid", "--svg"):
        assert "Partial results" not in described(app, form).output
