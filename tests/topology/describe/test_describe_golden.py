"""`describe` prints what Kafka Streams prints for the same calls, to the last character."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.topology.dsl.builder import StreamsBuilder
from tests.topology.describe import golden_joins, golden_programs, golden_sessions, golden_windows
from tests.topology.describe.golden_cases import CASES, WAITING

assert golden_joins.WINDOWS  # the module registers its cases
assert golden_sessions.SESSIONS  # and so does this one
assert golden_windows.TUMBLING  # and this one
GOLDEN = Path(__file__).parents[2] / "golden" / "kafka_streams"
PROGRAMS = sorted(path.stem for path in (GOLDEN / "random").glob("*.program"))


def test_every_golden_file_has_its_calls_here() -> None:
    files = {path.stem for path in GOLDEN.glob("*.txt")}
    assert files == CASES.keys() | WAITING.keys()
    assert not CASES.keys() & WAITING.keys()


def test_every_golden_file_has_its_calls_in_the_readme() -> None:
    readme = (GOLDEN / "README.md").read_text()
    for path in GOLDEN.glob("*.txt"):
        assert f"- `{path.stem}`: " in readme


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_that_of_kafka_streams(name: str) -> None:
    """Trap 20: numbers, names of stores and topics, and the order of sub-topologies are its own."""
    builder = StreamsBuilder()
    CASES[name](builder)
    assert builder.build().describe() == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_of_random_calls_is_that_of_kafka_streams(name: str) -> None:
    program = (GOLDEN / "random" / f"{name}.program").read_text()
    text = (GOLDEN / "random" / f"{name}.txt").read_text()
    assert golden_programs.build(program).build().describe() == text
