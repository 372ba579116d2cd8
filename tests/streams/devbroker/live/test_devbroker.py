from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.streams.devbroker import (
    AlreadyRunningError,
    DevBroker,
    DevBrokerError,
    DirectoryRefusedError,
    NodeFailedError,
    NodeState,
    PortTakenError,
    cluster,
)
from headrace.streams.devbroker.cluster import BrokerNode, ClusterRecord, load, save
from headrace.streams.devbroker.process import ProcessIdentity
from tests.support.patience import PATIENCE_S

HEADRACE = [sys.executable, "-c", "from headrace.streams.cli.main import main; main()"]


def headrace(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command; returns only if nothing that it left behind holds its pipes."""
    command = [*HEADRACE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def record_of(directory: Path) -> ClusterRecord:
    record = load(directory)
    assert record is not None
    return record


def create_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=1)])[name].result(timeout=PATIENCE_S)


def produce(bootstrap: str, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    failures: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert failures == [None] * len(values)


def read_all(bootstrap: str, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": secrets.token_hex(4),
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    messages = consumer.consume(count, timeout=PATIENCE_S)
    values = [value.decode() for message in messages if (value := message.value()) is not None]
    consumer.close()
    return values


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in which a broker was started once; each test leaves it running or not."""
    path = tmp_path_factory.mktemp("own")
    yield path
    DevBroker(path).stop()


@pytest.fixture
def running(directory: Path) -> DevBroker:
    cluster = DevBroker(directory, port=0)
    cluster.start()
    return cluster


@pytest.fixture
def stopped(directory: Path) -> DevBroker:
    cluster = DevBroker(directory, port=0)
    if not cluster.status().nodes:
        cluster.start()
    cluster.stop()
    return cluster


@pytest.mark.broker
def test_a_command_starts_a_broker_that_outlives_it(directory: Path) -> None:
    started = headrace("broker", "start", "--port", "0", "--dir", directory)
    assert started.returncode == 0, started.stderr
    bootstrap = record_of(directory).bootstrap
    assert f"Starting node 1 of Kafka at {bootstrap}" in started.stdout
    assert f"Started: {bootstrap}" in started.stdout
    assert str(directory / "node-1" / "logs") in started.stdout
    create_topic(bootstrap, "outlives")
    produce(bootstrap, "outlives", "a", "b")
    assert read_all(bootstrap, "outlives", 2) == ["a", "b"]


@pytest.mark.broker
def test_starting_again_says_so_and_leaves_the_process_alone(running: DevBroker) -> None:
    before = record_of(running.directory)
    again = headrace("broker", "start", "--dir", running.directory)
    assert again.returncode == 0, again.stderr
    assert f"Already running: {running.bootstrap}" in again.stdout
    assert record_of(running.directory) == before


@pytest.mark.broker
def test_a_running_broker_does_not_move_to_another_port(running: DevBroker) -> None:
    other = record_of(running.directory).nodes[0].port + 1
    with pytest.raises(AlreadyRunningError, match=f"not at port {other}"):
        DevBroker(running.directory, port=other).start()
    assert running.status().serving


@pytest.mark.broker
def test_the_port_of_another_broker_is_named_as_taken(running: DevBroker, tmp_path: Path) -> None:
    port = record_of(running.directory).nodes[0].port
    refused = headrace("broker", "start", "--port", str(port), "--dir", tmp_path / "second")
    assert refused.returncode == 1
    assert f"port {port} is taken" in refused.stderr
    assert running.status().serving


@pytest.mark.broker
def test_status_of_a_serving_broker_is_0(running: DevBroker) -> None:
    seen = headrace("broker", "status", "--dir", running.directory)
    assert (seen.returncode, "running" in seen.stdout) == (0, True)


@pytest.mark.broker
def test_a_paused_node_goes_on_when_resumed(running: DevBroker) -> None:
    before = record_of(running.directory)
    running.pause(1)
    assert [node.state for node in running.status().nodes] == [NodeState.PAUSED]
    running.resume(1)
    assert running.status().serving
    assert record_of(running.directory) == before


@pytest.mark.broker
def test_records_stay_over_a_stop_and_a_start_on_another_port(running: DevBroker) -> None:
    create_topic(running.bootstrap, "stay")
    produce(running.bootstrap, "stay", "kept")
    stopped = headrace("broker", "stop", "--dir", running.directory)
    assert (stopped.returncode, stopped.stdout.split(":")[0]) == (0, "Stopped")
    bootstrap = DevBroker(running.directory, port=0).start()
    assert read_all(bootstrap, "stay", 1) == ["kept"]


@pytest.mark.broker
def test_a_killed_node_comes_back_with_its_records(running: DevBroker) -> None:
    create_topic(running.bootstrap, "killed")
    produce(running.bootstrap, "killed", "before")
    running.kill(1)
    assert [node.state for node in running.status().nodes] == [NodeState.STOPPED]
    assert read_all(running.start(), "killed", 1) == ["before"]


@pytest.mark.broker
def test_a_paused_node_can_be_stopped_and_its_status_is_3(running: DevBroker) -> None:
    running.pause(1)
    assert running.stop()
    seen = headrace("broker", "status", "--dir", running.directory)
    assert (seen.returncode, "stopped" in seen.stdout) == (3, True)
    assert not running.stop()


@pytest.mark.broker
def test_the_log_of_a_node_that_dies_in_start_is_shown(stopped: DevBroker) -> None:
    """Kafka refuses the data of another node; we leave nothing running behind."""
    identity = stopped.directory / "node-1" / "data" / "meta.properties"
    good = identity.read_text()
    identity.write_text(good.replace("node.id=1", "node.id=7"))
    with pytest.raises(NodeFailedError, match=r"(?s)node 1 .*ended:.*node id 7.*another --dir"):
        stopped.start()
    identity.write_text(good)
    assert [node.state for node in stopped.status().nodes] == [NodeState.STOPPED]


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.slow
def test_three_nodes_take_writes_while_one_is_dead(tmp_path: Path) -> None:
    with DevBroker(tmp_path / "three", nodes=3, port=0) as cluster:
        assert len(cluster.bootstrap.split(",")) == 3
        create_topic(cluster.bootstrap, "copied")
        cluster.kill(2)
        produce(cluster.bootstrap, "copied", "with two")
        states = [node.state for node in cluster.status().nodes]
        assert states == [NodeState.RUNNING, NodeState.STOPPED, NodeState.RUNNING]
        assert read_all(cluster.start(), "copied", 1) == ["with two"]
        assert cluster.status().serving
        with pytest.raises(DirectoryRefusedError, match="--nodes 3"):
            DevBroker(tmp_path / "three", nodes=1, port=0).start()
    assert not cluster.status().serving


def test_a_port_that_anybody_holds_is_named_as_taken(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"port {port} is taken.*\n.*--port"):
            DevBroker(tmp_path / "new", port=port).start()


def test_a_port_that_is_taken_while_kafka_starts_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "why_taken", lambda _: None)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PortTakenError) as caught:
            DevBroker(tmp_path / "new", port=port).start()
    text = str(caught.value)
    assert f"port {port} is taken by another process.\nStop that process, or" in text
    assert "Address already in use" in text
    assert " INFO " not in text


def test_status_of_a_directory_without_a_broker_is_3(tmp_path: Path) -> None:
    """Asking creates nothing."""
    seen = headrace("broker", "status", "--dir", tmp_path / "none")
    assert seen.returncode == 3
    assert "headrace broker start" in seen.stdout
    assert not (tmp_path / "none").exists()
    assert headrace("broker", "stop", "--dir", tmp_path / "none").returncode == 0


def stopped_record(nodes: int = 1, process: ProcessIdentity | None = None) -> ClusterRecord:
    return ClusterRecord(
        cluster_id="A" * 22,
        nodes=tuple(
            BrokerNode(id=n, port=20_000 + n, controller_port=21_000 + n, process=process)
            for n in range(1, nodes + 1)
        ),
    )


def test_data_of_another_kafka_version_are_refused(tmp_path: Path) -> None:
    save(tmp_path, replace(stopped_record(), kafka="3.9.0"))
    refused = headrace("broker", "start", "--port", "0", "--dir", tmp_path)
    assert refused.returncode == 1
    assert "holds data of Kafka 3.9.0" in refused.stderr
    assert "--dir" in refused.stderr


def test_data_of_another_number_of_nodes_are_refused(tmp_path: Path) -> None:
    save(tmp_path, stopped_record(nodes=3))
    with pytest.raises(DirectoryRefusedError, match="broker of 3 nodes, not 1"):
        DevBroker(tmp_path, port=0).start()


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    tmp_path.joinpath("broker.json").write_text('{"format": 1, "kaf')
    with pytest.raises(DirectoryRefusedError, match="damaged"):
        DevBroker(tmp_path).status()


def test_a_directory_with_other_content_is_refused_and_left_alone(tmp_path: Path) -> None:
    tmp_path.joinpath("thesis.txt").write_text("years of work")
    with pytest.raises(DirectoryRefusedError, match="not empty"):
        DevBroker(tmp_path, port=0).start()
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_stop_speaks_only_of_the_broker_that_the_options_describe(tmp_path: Path) -> None:
    save(tmp_path, stopped_record())
    refused = headrace("broker", "stop", "--port", "9092", "--dir", tmp_path)
    assert refused.returncode == 1
    assert "is at localhost:20001" in refused.stderr


def start_time(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else, with the word `token-1` on its command line."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", "token-1"], start_new_session=True
    )
    yield process
    process.kill()
    process.wait()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads start times from /proc")
@pytest.mark.parametrize("lie", ["token", "start time"])
def test_a_process_that_we_did_not_start_is_never_signalled(
    tmp_path: Path, stranger: subprocess.Popen[bytes], lie: str
) -> None:
    """The id matches in both cases; what else must match does not."""
    true_start = start_time(stranger.pid)
    identity = ProcessIdentity(
        pid=stranger.pid,
        started=true_start if lie == "token" else str(int(true_start) + 1),
        token="token-2" if lie == "token" else "token-1",
    )
    save(tmp_path, stopped_record(process=identity))
    cluster = DevBroker(tmp_path)
    assert [node.state for node in cluster.status().nodes] == [NodeState.STOPPED]
    assert not cluster.stop()
    for deed in (cluster.kill, cluster.pause, cluster.resume):
        with pytest.raises(DevBrokerError, match="does not run"):
            deed(1)
    assert stranger.poll() is None
    state = Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert state != "T"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads start times from /proc")
def test_a_process_that_is_provably_ours_is_stopped(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    """The counterpart: with id, start time and token right, the same process is ended."""
    # Between fork and exec it has the command line of this process.
    command = Path(f"/proc/{stranger.pid}/cmdline")
    deadline = time.monotonic() + 30
    while b"token-1" not in command.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.01)
    identity = ProcessIdentity(pid=stranger.pid, started=start_time(stranger.pid), token="token-1")
    save(tmp_path, stopped_record(process=identity))
    assert DevBroker(tmp_path).stop()
    assert stranger.wait(timeout=30) in (-15, 0)


@pytest.mark.slow
def test_help_loads_no_kafka_client() -> None:
    code = (
        "import sys; from headrace.streams.cli.main import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "assert 'confluent_kafka' not in sys.modules"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert "broker" in shown.stdout


def test_the_record_is_plain_json(tmp_path: Path) -> None:
    save(tmp_path, stopped_record(process=ProcessIdentity(pid=os.getpid(), started="1", token="t")))
    assert json.loads(tmp_path.joinpath("broker.json").read_text())["nodes"][0]["port"] == 20_001
    assert record_of(tmp_path) == stopped_record(
        process=ProcessIdentity(pid=os.getpid(), started="1", token="t")
    )
