"""Real Apache Kafka on this machine for development and tests: see `DevBroker`."""

from __future__ import annotations

from headrace.streams.devbroker.cluster import ClusterStatus, DevBroker, NodeState, NodeStatus
from headrace.streams.devbroker.errors import (
    AlreadyRunningError,
    CertificatesUnavailableError,
    DevBrokerError,
    DirectoryRefusedError,
    JarsUnavailableError,
    JavaNotFoundError,
    NodeFailedError,
    PortTakenError,
)

__all__ = [
    "AlreadyRunningError",
    "CertificatesUnavailableError",
    "ClusterStatus",
    "DevBroker",
    "DevBrokerError",
    "DirectoryRefusedError",
    "JarsUnavailableError",
    "JavaNotFoundError",
    "NodeFailedError",
    "NodeState",
    "NodeStatus",
    "PortTakenError",
]
