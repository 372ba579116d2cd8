"""Stopping an application whose brokers do not answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.streams import KafkaStreams
from headrace.streams.app import State
from tests.support.topologies import key_count


@pytest.fixture
def silent() -> Iterator[str]:
    """A place that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("wait", [5, 0.5, None, "yes"])
def test_a_start_with_a_wrong_wait_starts_nothing(wait: Any, tmp_path: Path) -> None:
    settings = {
        "application.id": "app", "bootstrap.servers": "nowhere:1", "state.dir": str(tmp_path)
    }  # fmt: skip
    app = KafkaStreams(key_count(), settings)
    with pytest.raises(TypeError, match=r"wait must be a timedelta or True, not "):
        app.start(wait=wait)
    assert app.state is State.CREATED
    assert app._thread is None


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_start_that_waits_for_brokers_can_be_stopped(
    guarantee: str, silent: str, tmp_path: Path
) -> None:
    """It is a clean stop, long before task.timeout.ms."""
    settings = {
        "application.id": "app",
        "bootstrap.servers": silent,
        "processing.guarantee": guarantee,
        "state.dir": str(tmp_path),
        "task.timeout.ms": 600_000,
    }
    app = KafkaStreams(key_count(), settings)
    threads = threading.active_count()
    app.start()
    time.sleep(0.5)
    assert threading.active_count() > threads, "it has ended by itself"
    app.close(timedelta(seconds=120))
    assert app.state is State.NOT_RUNNING
