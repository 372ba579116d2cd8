from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from streams.devbroker import DevBroker
from tests.support.topics import Topics

_REUSE_VARIABLE = "HEADRACE_TEST_BOOTSTRAP"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for the broker is marked, so that `-m 'not broker'` leaves no one out."""
    for item in items:
        if "broker" in getattr(item, "fixturenames", ()):
            item.add_marker("broker")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of a real Kafka: that of HEADRACE_TEST_BOOTSTRAP, else one of our own."""
    reused = os.environ.get(_REUSE_VARIABLE)
    if reused:
        yield reused
        return
    own = DevBroker(tmp_path_factory.mktemp("broker"), port=0)
    yield own.start()
    # Clients of tests that nobody holds any more would go on looking for the broker.
    gc.collect()
    own.stop()


@pytest.fixture
def topics(broker: str) -> Iterator[Topics]:
    """Makes topics, and names for topics, that no other test uses; deletes them at the end."""
    made = Topics(broker)
    yield made
    made.delete_all()
