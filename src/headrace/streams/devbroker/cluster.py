"""Dev broker: real Kafka on this machine, with 1 or 3 nodes, in a single directory."""

from __future__ import annotations

import base64
import enum
import errno
import json
import os
import random
import re
import secrets
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.streams.devbroker.errors import (
    AlreadyRunningError,
    DevBrokerError,
    DirectoryRefusedError,
    NodeFailedError,
    PortTakenError,
)
from headrace.streams.devbroker.jars import KAFKA, KAFKA_VERSION, jars_of, locked
from headrace.streams.devbroker.java import Java, find_java
from headrace.streams.devbroker.process import (
    ProcessIdentity,
    is_alive,
    is_paused,
    launch,
    send,
    wait_until,
    wait_until_ended,
)
from headrace.streams.devbroker.security import ADMIN, MECHANISM, NODE_PRINCIPAL, Security
from headrace.topology.errors import require_timedelta

if TYPE_CHECKING:
    from headrace.streams.devbroker.users import Users
    from headrace.streams.kafka.acls import Right


# Below the range of ephemeral ports: the system does not assign a chosen port to an outgoing
# connection before the broker binds it.
_LOWEST, _HIGHEST = 20_000, 32_000
_ATTEMPTS = 1_000


def why_taken(port: int) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except PermissionError:
            return f"port {port} requires administrator privileges"
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"port {port} is taken by another process"
            return f"port {port} cannot be used: {error.strerror}"
    return None


def choose_base(count: int) -> int:
    for _ in range(_ATTEMPTS):
        base = random.randrange(_LOWEST, _HIGHEST)  # noqa: S311 - no secret
        if all(why_taken(base + step) is None for step in range(count)):
            return base
    raise OSError(f"no {count} free ports in a row between {_LOWEST} and {_HIGHEST}")


def choose_ports(count: int, *, avoiding: Collection[int]) -> list[int]:
    chosen: list[int] = []
    while len(chosen) < count:
        port = choose_base(1)
        if port not in chosen and port not in avoiding:
            chosen.append(port)
    return chosen


class Probe:
    """Client of a single node, to be reused for several checks.

    Args:
        cluster_id: expected cluster id.
        settings: further client settings, for a secured broker.
    """

    def __init__(
        self, endpoint: str, *, cluster_id: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self._cluster_id = cluster_id
        # A node that is not ready yet is expected: log_level 0 prevents log output about it.
        self._client = AdminClient(
            {
                **(settings or {}),
                "bootstrap.servers": endpoint,
                "log_level": 0,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
            }
        )

    def serves(self, nodes: Iterable[int], *, timeout: timedelta) -> bool:
        """Return whether it answers for the expected cluster and lists all `nodes` as live."""
        try:
            metadata = self._client.list_topics(timeout=timeout.total_seconds())
        except KafkaException:
            return False
        return metadata.cluster_id == self._cluster_id and set(nodes) <= metadata.brokers.keys()


_FORMAT = 1
_RECORD_NAME, _LOCK_NAME = "broker.json", "lock"


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """Node: its ports, and its most recently started process."""

    id: int
    port: int
    controller_port: int
    process: ProcessIdentity | None = None

    @property
    def endpoint(self) -> str:
        return f"localhost:{self.port}"

    @property
    def runs(self) -> bool:
        return self.process is not None and is_alive(self.process)


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """Content of `broker.json`, which each change replaces atomically; writers hold `lock`."""

    cluster_id: str
    nodes: tuple[BrokerNode, ...]
    secure: bool = False
    kafka: str = KAFKA_VERSION
    format: int = _FORMAT

    @property
    def bootstrap(self) -> str:
        return ",".join(node.endpoint for node in self.nodes)

    def with_node(self, node: BrokerNode) -> ClusterRecord:
        nodes = tuple(node if old.id == node.id else old for old in self.nodes)
        return replace(self, nodes=nodes)


def load(directory: Path) -> ClusterRecord | None:
    """Read the record, or return None if the directory is empty; refuse other content."""
    path = directory / _RECORD_NAME
    if not path.exists():
        _refuse_foreign_content(directory)
        return None
    try:
        fields = json.loads(path.read_text())
        written_by = (fields["format"], fields["kafka"])
    except (ValueError, KeyError, TypeError) as error:
        raise DirectoryRefusedError(
            f"{path} is damaged ({error!r}).\n"
            "Stop its java process if it still runs, remove the directory, and start again."
        ) from error
    if written_by != (_FORMAT, KAFKA_VERSION):
        raise DirectoryRefusedError(
            f"{directory} holds data of Kafka {fields['kafka']} (record format "
            f"{fields['format']}); this headrace runs Kafka {KAFKA_VERSION} (format {_FORMAT}).\n"
            "Choose another directory with --dir, or remove this directory."
        )
    nodes = tuple(_node(node) for node in fields["nodes"])
    secure = fields.get("secure", False)
    return ClusterRecord(cluster_id=fields["cluster_id"], nodes=nodes, secure=secure)


def save(directory: Path, record: ClusterRecord) -> None:
    draft = directory / f"{_RECORD_NAME}.new"
    draft.write_text(json.dumps(asdict(record), indent=2) + "\n")
    os.replace(draft, directory / _RECORD_NAME)


def _node(fields: dict[str, Any]) -> BrokerNode:
    process = fields["process"]
    return BrokerNode(**fields | {"process": ProcessIdentity(**process) if process else None})


def _refuse_foreign_content(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise DirectoryRefusedError(f"{directory} is a file. Choose a directory with --dir.")
    known = {_LOCK_NAME, f"{_RECORD_NAME}.new"}
    if directory.is_dir() and {entry.name for entry in directory.iterdir()} - known:
        raise DirectoryRefusedError(
            f"{directory} is not empty and holds no dev broker.\n"
            "Choose a new or empty directory with --dir."
        )


LOG_NAME = "server.log"

# Sized for a single machine and short tests: small internal topics that are created quickly, groups
# that do not wait for more members, and short sessions. A killed node can only return after its
# session has expired.
_COMMON = """\
auto.create.topics.enable=false
num.partitions=1
unclean.leader.election.enable=false
log.retention.ms=-1
log.cleaner.dedupe.buffer.size=16777216
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
num.network.threads=2
num.io.threads=4
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=200
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
"""


def server_properties(
    cluster: ClusterRecord, node: BrokerNode, security: Security | None = None
) -> str:
    """Return Kafka's settings of a node; its data path is relative to the node's directory."""
    voters = ",".join(f"{peer.id}@localhost:{peer.controller_port}" for peer in cluster.nodes)
    copies = len(cluster.nodes)
    # Of three replicas two must be in sync, so that one node can fail without loss or downtime.
    in_sync = 2 if copies == 3 else 1
    listener, inner = ("PLAINTEXT", "PLAINTEXT") if security is None else ("SASL_SSL", "SSL")
    guarded = "" if security is None else _guard(security)
    return f"""\
process.roles=broker,controller
node.id={node.id}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners={listener}://localhost:{node.port},CONTROLLER://localhost:{node.controller_port}
advertised.listeners={listener}://{node.endpoint}
listener.security.protocol.map={listener}:{listener},CONTROLLER:{inner}
inter.broker.listener.name={listener}
log.dirs=data
default.replication.factor={copies}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={copies}
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}
{guarded}{_COMMON}"""


def _guard(security: Security) -> str:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return f"""\
sasl.enabled.mechanisms={MECHANISM}
sasl.mechanism.inter.broker.protocol={MECHANISM}
listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config={login} \
username="{ADMIN}" password="{security.password(ADMIN)}";
ssl.keystore.type=PEM
ssl.keystore.location={security.node}
ssl.truststore.type=PEM
ssl.truststore.location={security.authority}
listener.name.controller.ssl.client.auth=required
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{ADMIN};{NODE_PRINCIPAL}
"""


def log4j_xml() -> str:
    """Return Log4j settings: a file of at most 10 MB and two older files, written until exit."""
    return f"""\
<Configuration status="warn" shutdownHook="disable">
  <Appenders>
    <RollingFile name="file" fileName="logs/{LOG_NAME}" filePattern="logs/{LOG_NAME}.%i">
      <PatternLayout pattern="%d %p %m (%c)%n%throwable"/>
      <SizeBasedTriggeringPolicy size="10 MB"/>
      <DefaultRolloverStrategy max="2"/>
    </RollingFile>
  </Appenders>
  <Loggers>
    <Root level="info"><AppenderRef ref="file"/></Root>
    <Logger name="org.apache.kafka.common.config" level="warn"/>
    <Logger name="kafka.server.KafkaConfig" level="warn"/>
  </Loggers>
</Configuration>
"""


_CONSOLE_NAME = "console.log"
_TAIL_LINES = 20
_FORMAT_TIMEOUT_S = 120
_ERRORS_SHOWN = 8
_LINE_MAX = 500
_ERROR = re.compile(
    r"^\S+ \S+ (ERROR|FATAL) |^(Caused by|Error|Exception in thread)\b|^[\w.$]+(Exception|Error): "
)
"""Error lines in the log of Kafka or Java, without the frames of stack traces."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """Runtime of a node: Java and the directory of Kafka's jars."""

    java: Java
    jars: Path

    def command(self, main_class: str, *options: str) -> list[str]:
        classpath = f"{self.jars}/*"
        log4j = "-Dlog4j2.configurationFile=log4j2.xml"
        return [str(self.java.executable), *options, log4j, "-cp", classpath, main_class]


_LAST_LEADER_HAS_ALL = ("--feature", "eligible.leader.replicas.version=0")
"""Without this feature (KIP-966), a killed node stays in sync, because its records are in the
page cache. With it, the records of all nodes count as lost if all are killed. The last known
leader is elected then, even if it lacks acknowledged records that other nodes have."""


def format_node(
    directory: Path, cluster: ClusterRecord, node: BrokerNode, *, runtime: Runtime
) -> None:
    """Write the node's settings, and format its data directory if that was not done yet."""
    home = _home(directory, node)
    home.joinpath("logs").mkdir(parents=True, exist_ok=True)
    security = Security(directory) if cluster.secure else None
    properties = home / "server.properties"
    properties.touch(mode=0o600)  # it may hold a password
    properties.write_text(server_properties(cluster, node, security))
    home.joinpath("log4j2.xml").write_text(log4j_xml())
    if home.joinpath("data", "meta.properties").exists():
        return
    tool = runtime.command("kafka.tools.StorageTool", "-Xmx128m", "-XX:TieredStopAtLevel=1")
    identity = ["--cluster-id", cluster.cluster_id, "--config", "server.properties"]
    if security is not None:
        # Nodes authenticate as this user, so it must exist before any node runs.
        known = f"{MECHANISM}=[name={ADMIN},password={security.password(ADMIN)}]"
        identity += ["--add-scram", known]
    result = subprocess.run(
        [*tool, "format", "--ignore-formatted", *_LAST_LEADER_HAS_ALL, *identity],
        cwd=home,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_FORMAT_TIMEOUT_S,
        check=False,
    )
    if result.returncode != 0:
        output = (result.stdout + result.stderr).strip()
        raise NodeFailedError(f"Kafka could not format {home / 'data'}:\n{output}")


def launch_node(
    directory: Path,
    node: BrokerNode,
    *,
    runtime: Runtime,
    recorded: Callable[[BrokerNode], None],
) -> None:
    """Start the node's process; `recorded` is called with it before Kafka starts."""
    home = _home(directory, node)
    token = secrets.token_hex(16)
    options = ["-Xmx512m", "-Djava.awt.headless=true", f"-Dheadrace.broker.token={token}"]
    command = [*runtime.command("kafka.Kafka", *options), "server.properties"]
    output = home / "logs" / _CONSOLE_NAME
    launch(
        command,
        token=token,
        cwd=home,
        output=output,
        recorded=lambda process: recorded(replace(node, process=process)),
    )


def log_directory(directory: Path, node: BrokerNode) -> Path:
    return _home(directory, node) / "logs"


def log_tail(directory: Path, node: BrokerNode) -> str:
    shown: list[str] = []
    for path, data in _log_files(directory, node):
        lines = data.decode(errors="replace").splitlines()[-_TAIL_LINES:]
        if lines:
            shown += [f"{path}:", *(f"  {line}" for line in lines)]
    return "\n".join(shown) or f"no log in {log_directory(directory, node)}"


def logged_errors(directory: Path, node: BrokerNode, *, since: int) -> list[str]:
    """Return errors in the node's log from byte `since` on, and in its output.

    Those with known advice come first: a slow start logs many others before its end.
    """
    found: list[str] = []
    for path, data in _log_files(directory, node):
        begin = since if path.name == LOG_NAME and since <= len(data) else 0
        text = data[begin:].decode(errors="replace")
        found += [line[:_LINE_MAX] for line in text.splitlines() if _ERROR.search(line)]
    known = (*_PORT_TAKEN, *(pattern.pattern for pattern, _ in _ADVICE))
    has_advice = re.compile("|".join(known), re.IGNORECASE).search
    return sorted(dict.fromkeys(found), key=lambda line: not has_advice(line))[:_ERRORS_SHOWN]


def _log_files(directory: Path, node: BrokerNode) -> Iterator[tuple[Path, bytes]]:
    for name in (LOG_NAME, _CONSOLE_NAME):
        path = log_directory(directory, node) / name
        with suppress(OSError):
            yield path, path.read_bytes()


def _home(directory: Path, node: BrokerNode) -> Path:
    return directory / f"node-{node.id}"


_START_TIMEOUT = timedelta(seconds=180)
"""Time limit per node, because nodes start in parallel and share the processors.

An idle machine needs 10 seconds, and one that is busy with other work was seen to need 90.
"""
_TOO_SLOW = (
    "does not serve after {:.0f} seconds and was stopped; start it again if the machine was busy"
)
_STOP_TIMEOUT = timedelta(seconds=30)
_KILL_TIMEOUT = timedelta(seconds=10)
_ANSWER_TIMEOUT = timedelta(seconds=5)
_POLL_TIMEOUT = timedelta(milliseconds=500)

_PORT_TAKEN = ("Address already in use", "failed to bind to")
_ADVICE = (
    (
        re.compile(r"No space left on device|disk quota", re.IGNORECASE),
        "The disk with {directory} is full. Free some space, or choose another --dir.",
    ),
    (
        re.compile(r"UnsupportedClassVersionError|Unrecognized VM option"),
        "This version of Java is not supported. Set JAVA_HOME to a Java 17 or newer.",
    ),
    (
        re.compile(r"Failed to acquire lock on file|OverlappingFileLock"),
        (
            "Another process uses the data in {directory}. Stop it: headrace broker stop --dir "
            "{directory}"
        ),
    ),
    (
        re.compile(
            r"InconsistentClusterId|meta\.properties|metadata\.version|feature level|"
            r"UnsupportedVersion|UnknownMetadataRecord"
        ),
        (
            "The data in {directory} are of another version of Kafka, or of another cluster. "
            "Choose another --dir, or remove the directory."
        ),
    ),
    (
        re.compile(r"OutOfMemory|Cannot allocate memory|insufficient memory"),
        "There is too little memory for a node. Stop other programs, or start with --nodes 1.",
    ),
    (
        re.compile(r"unable to register with the controller quorum"),
        "The machine is too busy for the nodes. Start them again, or start with --nodes 1.",
    ),
    (
        re.compile(r"Permission denied|AccessDeniedException"),
        (
            "A file in {directory} cannot be written. Correct its permissions, or choose another "
            "--dir."
        ),
    ),
)
"""Advice for known errors of a node."""


class NodeState(enum.Enum):
    """State of a node."""

    RUNNING = "running"
    PAUSED = "paused"
    SILENT = "not answering"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Status of a node."""

    id: int
    endpoint: str
    state: NodeState
    pid: int | None
    logs: Path


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Status of all nodes; empty if none was ever started."""

    nodes: tuple[NodeStatus, ...]

    @property
    def serving(self) -> bool:
        """Whether there are nodes, and all of them are running."""
        return bool(self.nodes) and all(node.state is NodeState.RUNNING for node in self.nodes)


class DevBroker:
    """Apache Kafka on this machine, for development and tests.

    `directory` contains data, logs and `broker.json`; data survive stop and start. `nodes` is
    1 or 3. Node n listens on `port` + n - 1; with `port` 0, free ports are chosen at start. A
    `secure` broker requires TLS and passwords, and rejects requests without an ACL. `report` is
    called with progress messages about slow steps. The processes outlive this object: another
    object with the same directory finds them.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        nodes: int = 1,
        port: int = 9092,
        secure: bool = False,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        if nodes not in (1, 3):
            raise ValueError(f"nodes must be 1 or 3, not {nodes}")
        self.directory = Path(directory).absolute()
        self._node_count = nodes
        self._port = port
        self._secure = secure
        self._security = Security(self.directory)
        self._report = report
        self._log_ends: dict[int, int] = {}
        """Log size of each node before this object started it."""

    @property
    def bootstrap(self) -> str:
        """Addresses of all nodes, for `bootstrap.servers`."""
        return self._started().bootstrap

    @property
    def is_secure(self) -> bool:
        """Whether the broker requires TLS, SASL and ACLs."""
        return self._started().secure

    def settings(self, user: str = ADMIN) -> dict[str, str]:
        """Return the client settings of a user; raise `DevBrokerError` if it does not exist."""
        record = self._started()
        if not record.secure:
            return {"bootstrap.servers": record.bootstrap}
        if not self._security.knows(user):
            raise DevBrokerError(
                f"no user {user} exists in {self.directory}.\n"
                f"Create it: headrace broker grant {user} --dir {self.directory}"
            )
        return self._security.client_settings(user, record.bootstrap)

    def settings_file(self, user: str) -> Path:
        """Write the result of `settings` to a file for `--config`; return its path."""
        self.settings(user)  # raises if the user does not exist
        return self._security.write_settings(user, self.bootstrap)

    def grant(self, user: str, rights: Iterable[Right] = ()) -> None:
        """Create a user if it does not exist, and grant it ACLs; the broker must run."""
        users = self._users()
        if not self._security.knows(user):
            users.add(user, self._security.password(user))
        users.grant(user, rights)

    def revoke(self, user: str, rights: Iterable[Right]) -> None:
        """Remove ACLs of a user; the broker must run."""
        self._users().revoke(user, rights)

    def _users(self) -> Users:
        if not self.is_secure:
            raise DevBrokerError(
                f"the broker in {self.directory} has no users, because it is not secured.\n"
                "Start a secured broker in a new directory: headrace broker start --secure"
            )
        from headrace.streams.devbroker.users import Users

        return Users(self.settings())

    def _started(self) -> ClusterRecord:
        record = load(self.directory)
        if record is None:
            raise DevBrokerError(
                f"no broker was ever started in {self.directory}.\n"
                f"Start it: headrace broker start --dir {self.directory}"
            )
        return record

    def start(self) -> str:
        """Start the stopped nodes, and wait until all serve; on an error, stop them again."""
        load(self.directory)  # refuses a foreign directory before anything is written there
        with self._locked():
            record = load(self.directory)
            if record is not None:
                self._refuse_other_shape(record)
            if record is None or not any(node.runs for node in record.nodes):
                record = self._lay_out(record)
            self._refuse_taken_ports(record)
            return self._start_missing(record).bootstrap

    def stop(self, *, timeout: timedelta = _STOP_TIMEOUT) -> bool:
        """Stop every node, killing it after `timeout`; return whether any node ran."""
        require_timedelta("timeout", timeout)
        if load(self.directory) is None:
            return False
        with self._locked():
            record = load(self.directory)
            running = [node for node in record.nodes if node.runs] if record else []
            _stop_nodes(running, timeout=timeout)
            return bool(running)

    def status(self) -> ClusterStatus:
        """Return the state of each node."""
        record = load(self.directory)
        if record is None:
            return ClusterStatus(nodes=())
        return ClusterStatus(tuple(self._status_of(record, node) for node in record.nodes))

    def kill(self, node: int) -> None:
        """Kill a node with SIGKILL, and wait until it has ended."""
        record = self._signal(node, signal.SIGKILL)
        if record.process and not wait_until_ended(record.process, timeout=_KILL_TIMEOUT):
            raise NodeFailedError(f"node {node} (process {record.process.pid}) survived SIGKILL")

    def pause(self, node: int) -> None:
        """Freeze a node: it keeps its connections and does not answer."""
        process = self._signal(node, signal.SIGSTOP).process
        # A process with many threads stops shortly after the signal.
        if process and not wait_until(lambda: is_paused(process), timeout=_KILL_TIMEOUT):
            raise NodeFailedError(f"node {node} (process {process.pid}) does not pause")

    def resume(self, node: int) -> None:
        """Continue a node after `pause`."""
        self._signal(node, signal.SIGCONT)

    def __enter__(self) -> DevBroker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _locked(self) -> AbstractContextManager[None]:
        self.directory.mkdir(parents=True, exist_ok=True)
        waiting = f"Waiting for another start or stop in {self.directory}"
        return locked(self.directory / _LOCK_NAME, on_wait=lambda: self._report(waiting))

    def _refuse_other_shape(self, record: ClusterRecord) -> None:
        if len(record.nodes) != self._node_count:
            raise DirectoryRefusedError(
                f"{self.directory} holds a broker of {len(record.nodes)} nodes, "
                f"not {self._node_count}.\n"
                f"Start with --nodes {len(record.nodes)}, choose another --dir, "
                "or remove the directory."
            )
        if record.secure != self._secure:
            kind, option = ("a secured", "with") if record.secure else ("an open", "without")
            raise DirectoryRefusedError(
                f"{self.directory} holds {kind} broker.\n"
                f"Start {option} --secure, choose another --dir, or remove the directory."
            )
        running = any(node.runs for node in record.nodes)
        if running and self._port not in (0, record.nodes[0].port):
            raise AlreadyRunningError(
                f"the broker in {self.directory} already runs, at {record.bootstrap}, "
                f"not at port {self._port}.\n"
                f"Use it there, or stop it first: headrace broker stop --dir {self.directory}"
            )

    def _lay_out(self, record: ClusterRecord | None) -> ClusterRecord:
        """Choose the ports; no node runs, so they may differ from the previous start."""
        count = self._node_count
        base = self._port or choose_base(count)
        ports = range(base, base + count)
        controller_ports = choose_ports(count, avoiding=ports)
        nodes = tuple(
            BrokerNode(id=number, port=port, controller_port=controller_port)
            for number, (port, controller_port) in enumerate(
                zip(ports, controller_ports, strict=True), start=1
            )
        )
        cluster_id = record.cluster_id if record else _new_cluster_id()
        return ClusterRecord(cluster_id=cluster_id, nodes=nodes, secure=self._secure)

    def _refuse_taken_ports(self, record: ClusterRecord) -> None:
        idle = [node for node in record.nodes if not node.runs]
        ports = [port for node in idle for port in (node.port, node.controller_port)]
        reasons = [reason for port in ports if (reason := why_taken(port)) is not None]
        if reasons:
            raise PortTakenError(
                f"{'; '.join(reasons)}.\nStop that process, or choose another port with --port."
            )

    def _start_missing(self, record: ClusterRecord) -> ClusterRecord:
        missing = [node for node in record.nodes if not node.runs]
        started: list[BrokerNode] = []
        try:
            if missing:
                record = self._launch(record, missing, started)
            for node in record.nodes:
                if node.process and is_paused(node.process):
                    send(node.process, signal.SIGCONT)
            self._await_serving(record)
        except BaseException:
            _stop_nodes(started, timeout=timedelta(0))
            raise
        return record

    def _launch(
        self, record: ClusterRecord, missing: list[BrokerNode], started: list[BrokerNode]
    ) -> ClusterRecord:
        """Format and start nodes; after an error, `started` contains the nodes to stop again."""
        java = find_java()
        runtime = Runtime(java=java, jars=jars_of(KAFKA, java, report=self._report))
        if record.secure:
            self._security.prepare()
        save(self.directory, record)
        for node in missing:
            format_node(self.directory, record, node, runtime=runtime)

        def recorded(launched: BrokerNode) -> None:
            nonlocal record
            started.append(launched)
            record = record.with_node(launched)
            save(self.directory, record)

        what = f"node {missing[0].id}" if len(missing) == 1 else f"{len(missing)} nodes"
        self._report(
            f"Starting {what} of Kafka at {record.bootstrap}, which takes 10 seconds "
            "on an idle machine"
        )
        for node in missing:
            log = log_directory(self.directory, node) / LOG_NAME
            self._log_ends[node.id] = log.stat().st_size if log.exists() else 0
            launch_node(self.directory, node, runtime=runtime, recorded=recorded)
        return record

    def _await_serving(self, record: ClusterRecord) -> None:
        timeout_s = _START_TIMEOUT.total_seconds() * len(record.nodes)
        deadline = time.monotonic() + timeout_s
        everyone = [node.id for node in record.nodes]
        for node in record.nodes:
            probe = self._probe(record, node)
            while not probe.serves(everyone, timeout=_POLL_TIMEOUT):
                self._raise_if_dead(record)
                if time.monotonic() > deadline:
                    raise self._failed(node, _TOO_SLOW.format(timeout_s))
                time.sleep(0.05)

    def _probe(self, record: ClusterRecord, node: BrokerNode) -> Probe:
        settings = None
        if record.secure:
            settings = self._security.client_settings(ADMIN, record.bootstrap)
        return Probe(node.endpoint, cluster_id=record.cluster_id, settings=settings)

    def _raise_if_dead(self, record: ClusterRecord) -> None:
        for node in record.nodes:
            if not node.runs:
                raise self._failed(node, "ended")

    def _failed(self, node: BrokerNode, how: str) -> DevBrokerError:
        logged = logged_errors(self.directory, node, since=self._log_ends.get(node.id, 0))
        what = f"node {node.id} at {node.endpoint} {how}"
        if not logged:
            return NodeFailedError(f"{what}. The end of its log:\n{log_tail(self.directory, node)}")
        shown = "\n".join(f"  {line}" for line in logged)
        files = f"Complete log: {log_directory(self.directory, node)}"
        if any(words in line for line in logged for words in _PORT_TAKEN):
            ports = [node.port, node.controller_port]
            taken = [p for p in ports if any(f":{p}" in line for line in logged)] or ports
            return PortTakenError(
                f"{what}: port {' or '.join(map(str, taken))} is taken by another process.\n"
                f"Stop that process, or choose another port with --port.\n{shown}\n{files}"
            )
        advice = next((a for words, a in _ADVICE if words.search("\n".join(logged))), None)
        if advice is None:
            return NodeFailedError(f"{what}:\n{shown}\n{files}")
        advised = advice.format(directory=self.directory)
        return NodeFailedError(f"{what}:\n{shown}\n{advised}\n{files}")

    def _status_of(self, record: ClusterRecord, node: BrokerNode) -> NodeStatus:
        pid = node.process.pid if node.process and node.runs else None
        if node.process is None or pid is None:
            state = NodeState.STOPPED
        elif is_paused(node.process):
            state = NodeState.PAUSED
        else:
            probe = self._probe(record, node)
            answers = probe.serves([node.id], timeout=_ANSWER_TIMEOUT)
            state = NodeState.RUNNING if answers else NodeState.SILENT
        logs = log_directory(self.directory, node)
        return NodeStatus(id=node.id, endpoint=node.endpoint, state=state, pid=pid, logs=logs)

    def _signal(self, node: int, signum: signal.Signals) -> BrokerNode:
        record = load(self.directory)
        found = [peer for peer in record.nodes if peer.id == node] if record else []
        if not found:
            raise ValueError(f"no node {node} in {self.directory}")
        process = found[0].process
        if process is None or not send(process, signum):
            raise DevBrokerError(f"node {node} in {self.directory} does not run.\nStart it first.")
        return found[0]


def _stop_nodes(nodes: list[BrokerNode], *, timeout: timedelta) -> None:
    """Request a stop of all nodes; kill nodes that do not stop within `timeout`."""
    deadline = time.monotonic() + timeout.total_seconds()
    processes = [node.process for node in nodes if node.process]
    for process in processes:
        send(process, signal.SIGTERM)
        send(process, signal.SIGCONT)  # a paused process would not handle SIGTERM
    for process in processes:
        left = timedelta(seconds=max(0.0, deadline - time.monotonic()))
        if not wait_until_ended(process, timeout=left):
            send(process, signal.SIGKILL)
            wait_until_ended(process, timeout=_KILL_TIMEOUT)


def _new_cluster_id() -> str:
    """Return a random id in Kafka's format, which must not look like an option."""
    while True:
        spelled = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not spelled.startswith("-"):
            return spelled
