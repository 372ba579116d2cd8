"""Two clusters: the one that all tests share is west, and one of our own is east."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.streams.devbroker import DevBroker
from tests.support.mirrors import Clusters
from tests.support.topics import Topics
from tests.support.warm import await_coordinators


@pytest.fixture(scope="session")
def eastern(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap servers of a second cluster."""
    with DevBroker(tmp_path_factory.mktemp("east"), port=0) as started:
        await_coordinators(started.bootstrap)
        yield started.bootstrap


@pytest.fixture
def east(eastern: str) -> Iterator[Topics]:
    """Topics of the second cluster."""
    made = Topics(eastern)
    yield made
    made.delete_all()


@pytest.fixture
def west(topics: Topics) -> Topics:
    """Topics of the first cluster."""
    return topics


@pytest.fixture
def clusters(west: Topics, east: Topics, tmp_path: Path) -> Clusters:
    """The settings of both."""
    return Clusters(tmp_path, {"west": west.bootstrap, "east": east.bootstrap})
