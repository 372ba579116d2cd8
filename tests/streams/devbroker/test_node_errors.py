"""Why a node of the dev broker ended: its errors and what to do, not its last words."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headrace.streams.devbroker import DevBroker, NodeFailedError, PortTakenError
from headrace.streams.devbroker.cluster import (
    LOG_NAME,
    BrokerNode,
    ClusterRecord,
    log_directory,
    logged_errors,
    save,
    why_taken,
)

NODE = BrokerNode(id=1, port=20_001, controller_port=21_001)
STAMP = "2026-01-31 09:00:00,123"
EARLIER = f"{STAMP} ERROR [KafkaServer id=1] of an earlier start (kafka.Kafka$)\n"
SHUTDOWN = "".join(f"{STAMP} INFO stopping part {n} (kafka.Kafka$)\n" for n in range(50))
BIND = (
    f"{STAMP} ERROR [KafkaServer id=1] Fatal error during startup (kafka.server.KafkaServer)\n"
    "org.apache.kafka.common.KafkaException: Socket server failed to bind to localhost:20001: "
    "Address already in use.\n"
    "\tat kafka.network.Acceptor.openServerSocket(SocketServer.scala:738)\n"
    "Caused by: java.net.BindException: Address already in use\n"
)


def died(directory: Path, log: str = "", console: str = "") -> str:
    save(directory, ClusterRecord(cluster_id="A" * 22, nodes=(NODE,)))
    logs = log_directory(directory, NODE)
    logs.mkdir(parents=True)
    logs.joinpath(LOG_NAME).write_text(EARLIER + log + SHUTDOWN)
    logs.joinpath("console.log").write_text(console)
    broker = DevBroker(directory)
    broker._log_ends[1] = len(EARLIER)
    return str(broker._failed(NODE, "ended"))


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        (
            f"{STAMP} ERROR x (kafka)\njava.io.IOException: No space left on device\n",
            "The disk with {directory} is full. Free some space",
        ),
        (
            f"{STAMP} ERROR x (kafka)\nKafkaException: Failed to acquire lock on file .lock\n",
            "Another process uses the data in {directory}. Stop it: headrace broker stop",
        ),
        (
            f"{STAMP} ERROR x (kafka)\nRuntimeException: No readable meta.properties files.\n",
            "are of another version of Kafka",
        ),
        (f"{STAMP} ERROR odd (kafka)\n", "Complete log: {directory}/node-1/logs"),
    ],
    ids=["disk", "lock", "version", "unknown"],
)
def test_an_error_is_shown_with_what_to_do(tmp_path: Path, log: str, advice: str) -> None:
    said = died(tmp_path, log)
    assert advice.format(directory=tmp_path) in said
    assert all(line.strip() in said for line in log.splitlines())
    assert "stopping part" not in said
    assert "earlier start" not in said


def test_the_error_that_ended_it_is_shown_before_those_of_a_slow_start(tmp_path: Path) -> None:
    slow = "".join(f"{STAMP} ERROR Exceptionally slow event {n} (kafka)\n" for n in range(20))
    cause = "ERROR Shutting down because we were unable to register with the controller quorum."
    said = died(tmp_path, f"{slow}{STAMP} {cause} (kafka)\n")
    assert cause in said.splitlines()[1]
    assert "The machine is too busy for the nodes. Start them again" in said


def test_the_console_tells_that_java_is_too_old(tmp_path: Path) -> None:
    error = 'Exception in thread "main" java.lang.UnsupportedClassVersionError: kafka/Kafka'
    assert "Set JAVA_HOME to a Java 17 or newer" in died(tmp_path, console=f"{error}\n")


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    save(tmp_path, ClusterRecord(cluster_id="A" * 22, nodes=(NODE,)))
    logs = log_directory(tmp_path, NODE)
    logs.mkdir(parents=True)
    logs.joinpath(LOG_NAME).write_text(BIND + SHUTDOWN)
    error = DevBroker(tmp_path)._failed(NODE, "ended")
    assert isinstance(error, PortTakenError)
    assert "port 20001 is taken by another process.\nStop that process, or choose" in str(error)


def test_without_any_error_the_last_words_are_shown(tmp_path: Path) -> None:
    save(tmp_path, ClusterRecord(cluster_id="A" * 22, nodes=(NODE,)))
    logs = log_directory(tmp_path, NODE)
    logs.mkdir(parents=True)
    logs.joinpath(LOG_NAME).write_text(SHUTDOWN)
    error = DevBroker(tmp_path)._failed(NODE, "ended")
    assert isinstance(error, NodeFailedError)
    assert "stopping part 49" in str(error)


def test_a_node_without_logs_has_no_errors(tmp_path: Path) -> None:
    assert logged_errors(tmp_path, NODE, since=0) == []


def test_a_log_that_was_begun_again_is_read_from_its_beginning(tmp_path: Path) -> None:
    logs = log_directory(tmp_path, NODE)
    logs.mkdir(parents=True)
    logs.joinpath(LOG_NAME).write_text(f"{STAMP} ERROR odd (kafka)\n")
    assert logged_errors(tmp_path, NODE, since=10_000) == [f"{STAMP} ERROR odd (kafka)"]


def test_why_a_port_cannot_be_used() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert why_taken(port) == f"port {port} is taken by another process"
    assert why_taken(port) is None
