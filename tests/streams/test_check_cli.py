"""`headrace check`, which asks no cluster."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from streams.cli import main
from streams.exit_codes import ExitCode

APP = """
from streams import KafkaStreams
from topology import StreamsBuilder

builder = StreamsBuilder()
builder.stream("lines").group_by_key().count({store}).to_stream().to("out")
app = KafkaStreams(builder.build(), {{"application.id": "a", "bootstrap.servers": "localhost:1"}})
"""


def _check(directory: Path, store: str, *arguments: str) -> Result:
    file = directory / f"app_{uuid.uuid4().hex}.py"
    file.write_text(APP.format(store=store))
    return CliRunner().invoke(main, ["check", f"{file}:app", *arguments])


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["--strict"], 1)])
def test_what_has_no_name_is_listed_and_fails_where_that_is_asked_for(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    done = _check(tmp_path, "", *arguments)
    assert done.exit_code == code
    first = done.output.splitlines()[0]
    assert first.startswith("store KSTREAM-AGGREGATE-STATE-STORE-0000000001")
    assert first.endswith('behind lines: write count(store="...")')
    assert "the very name" in done.output


def test_an_application_with_names_passes(tmp_path: Path) -> None:
    done = _check(tmp_path, 'store="counts"', "--strict")
    assert done.exit_code == 0, done.output
    assert "has a name of its own" in done.output


def test_wrong_settings_have_their_exit_code(tmp_path: Path) -> None:
    done = _check(tmp_path, "", "--set", "poll.ms=-1")
    assert done.exit_code == ExitCode.CONFIGURATION
    assert "poll.ms must be at least 0" in done.output
