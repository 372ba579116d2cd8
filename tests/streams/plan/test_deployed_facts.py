"""What is deployed is told of every golden program as it was: else a start would refuse it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.plan import plan_application
from headrace.topology.dsl.builder import StreamsBuilder
from tests.topology.describe import golden_joins, golden_programs, golden_sessions, golden_windows
from tests.topology.describe.golden_cases import CASES

assert golden_joins.WINDOWS  # the modules register their cases
assert golden_sessions.SESSIONS
assert golden_windows.TUMBLING

GOLDEN = Path(__file__).parents[2] / "golden"
DIGESTS = dict(line.split() for line in (GOLDEN / "deployed.txt").read_text().splitlines())
CONFIG = StreamsConfig.parse({"application.id": "a", "bootstrap.servers": "localhost:1"})


def _digest(name: str) -> str:
    if name in CASES:
        builder = StreamsBuilder()
        CASES[name](builder)
    else:
        program = (GOLDEN / "kafka_streams" / "random" / f"{name}.program").read_text()
        builder = golden_programs.build(program)
    deployed = Deployment.of(plan_application(builder.build(), CONFIG), CONFIG)
    return hashlib.sha256(repr(deployed).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", DIGESTS)
def test_what_is_told_of_a_program_stays(name: str) -> None:
    """A new case gets a line of its own; a line that is there never changes."""
    assert _digest(name) == DIGESTS[name]
