"""A worker is made of a cluster, or leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import no_probe
from headrace.streams.plan.plan import plan_application
from headrace.streams.tasks.restore import RestoreListeners
from headrace.streams.testing.memory_clients import MemoryAdmin
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.streams.testing.memory_worker import EventLog, ManualClock, create_topics
from headrace.streams.worker.connections import Connections, HostState
from headrace.streams.worker.protocols import WorkerListeners
from headrace.streams.worker.runtime import WorkerFactory
from tests.support.topologies import key_count


def test_a_start_that_fails_lets_go_of_the_identity(tmp_path: Path) -> None:
    """The same process may start the application again, once what was wrong is put right."""
    config = StreamsConfig.parse(
        {
            "application.id": "app",
            "bootstrap.servers": "nowhere:1",
            "state.dir": str(tmp_path),
            "worker.id": "first",
        }
    )
    plans = plan_application(key_count(), config)
    cluster = MemoryCluster()
    create_topics(cluster, plans, config)

    def no_client(settings: dict[str, Any]) -> Any:
        raise RuntimeError("no client for these settings")

    with pytest.raises(RuntimeError, match="no client"):
        WorkerFactory(
            config=config,
            plans=plans,
            clock=ManualClock(0),
            listener=WorkerListeners(),
            restore_listener=RestoreListeners(),
            probe=no_probe,
            log=EventLog(),
            connections=Connections(
                admin=lambda _, __: MemoryAdmin(cluster), consumer_client=no_client
            ),
        ).make()
    HostState(config).close()
