from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.simulation.cores import CORES, keep_to_one_core


@pytest.fixture(autouse=True)
def _one_core(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep what simulates in this process to one core; what a broker is asked by may have all."""
    if request.node.get_closest_marker("broker"):
        yield
        return
    name = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    keep_to_one_core(int(name.removeprefix("gw")), CORES)
    yield
    if CORES:
        os.sched_setaffinity(0, CORES)
