"""The dev broker: real Kafka of one or three nodes on this machine, in one directory."""

from __future__ import annotations

import base64
import enum
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from headrace.streams.devbroker.errors import (
    AlreadyRunningError,
    DevBrokerError,
    DirectoryRefusedError,
    NodeFailedError,
    PortTakenError,
)
from headrace.streams.devbroker.jars import kafka_jars
from headrace.streams.devbroker.java import find_java
from headrace.streams.devbroker.node import (
    Runtime,
    format_node,
    launch_node,
    log_directory,
    log_size,
    log_tail,
    logged_errors,
)
from headrace.streams.devbroker.ports import choose_base, choose_ports, why_taken
from headrace.streams.devbroker.probe import Probe
from headrace.streams.devbroker.process import is_alive, is_paused, send, wait_gone, wait_until
from headrace.streams.devbroker.record import ClusterRecord, NodeRecord, load, locked, save
from headrace.streams.devbroker.security import ADMIN, Security

if TYPE_CHECKING:
    from headrace.streams.contact.rights import Right
    from headrace.streams.devbroker.users import Users

_START_TIMEOUT = timedelta(seconds=90)
"""Of each node: they start side by side, and share the cores."""
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
        "This Java does not fit. Set JAVA_HOME to a Java 17 or newer.",
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
        "There is too little memory for a node. End other programs, or start with --nodes 1.",
    ),
    (
        re.compile(r"Permission denied|AccessDeniedException"),
        (
            "A file in {directory} cannot be written. Give yourself the right to, or choose "
            "another --dir."
        ),
    ),
)
"""What a node's error means, and what to do."""


class NodeState(enum.Enum):
    """What a node does right now."""

    RUNNING = "running"
    PAUSED = "paused"
    SILENT = "not answering"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node as `status` sees it."""

    id: int
    endpoint: str
    state: NodeState
    pid: int | None
    logs: Path


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """All nodes as `status` sees them; no nodes where none was ever started."""

    nodes: tuple[NodeStatus, ...]

    @property
    def serving(self) -> bool:
        """Whether every node answers its clients."""
        return bool(self.nodes) and all(node.state is NodeState.RUNNING for node in self.nodes)


class DevBroker:
    """Apache Kafka on this machine, for development and tests.

    `directory` holds data, logs and `broker.json`; data stay over stop and start. `nodes` is 1
    or 3. Node n listens on `port` + n - 1; `port` 0 means free ones, chosen at start. A `secure`
    one is reached over TLS, asks for passwords, and refuses what no right was given for. `report`
    receives lines for the user about steps that take long. The processes outlive this object:
    another one with the same directory finds them.
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
            raise ValueError(f"nodes is {nodes}: a dev broker has 1 node or 3")
        self.directory = Path(directory).absolute()
        self._node_count = nodes
        self._port = port
        self._secure = secure
        self._security = Security(self.directory)
        self._report = report
        self._log_ends: dict[int, int] = {}
        """How long the log of each node was before this object has started it."""

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers of the broker in this directory; `DevBrokerError` if none."""
        return self._started().bootstrap

    @property
    def is_secure(self) -> bool:
        """Whether clients of the broker in this directory need to be users of it."""
        return self._started().secure

    def settings(self, user: str = ADMIN) -> dict[str, str]:
        """What a client needs to reach the broker, as one of its users where it is secured."""
        record = self._started()
        if not record.secure:
            return {"bootstrap.servers": record.bootstrap}
        if not self._security.knows(user):
            raise DevBrokerError(
                f"there is no user {user} in {self.directory}.\n"
                f"Make it: headrace broker grant {user} --dir {self.directory}"
            )
        return self._security.client_settings(user, record.bootstrap)

    def settings_file(self, user: str) -> Path:
        """Write the settings of `settings` into a file of the directory, for `--config`."""
        self.settings(user)  # there is such a user
        return self._security.write_settings(user, self.bootstrap)

    def grant(self, user: str, rights: Iterable[Right] = ()) -> None:
        """Make a user unless it is there, and give it rights; the broker must run."""
        users = self._users()
        if not self._security.knows(user):
            users.add(user, self._security.password(user))
        users.grant(user, rights)

    def revoke(self, user: str, rights: Iterable[Right]) -> None:
        """Take rights from a user; the broker must run."""
        self._users().revoke(user, rights)

    def _users(self) -> Users:
        if not self.is_secure:
            raise DevBrokerError(
                f"the broker in {self.directory} asks nobody who they are.\n"
                "Start one that does, in a new directory: headrace broker start --secure"
            )
        from headrace.streams.devbroker.users import Users

        return Users(self.settings())

    def _started(self) -> ClusterRecord:
        record = load(self.directory)
        if record is None:
            raise DevBrokerError(f"no broker was ever started in {self.directory}")
        return record

    def start(self) -> str:
        """Start every node that does not run, wait until all serve, return the bootstrap servers.

        Raises a `DevBrokerError` that says what to do; nodes started by this call are then
        stopped again.
        """
        load(self.directory)  # refuses a foreign directory before anything is written there
        with locked(self.directory, report=self._report):
            record = load(self.directory)
            if record is not None:
                self._refuse_other_shape(record)
            if record is None or not any(_runs(node) for node in record.nodes):
                record = self._lay_out(record)
            self._refuse_taken_ports(record)
            return self._start_missing(record).bootstrap

    def stop(self, *, timeout: timedelta = _STOP_TIMEOUT) -> bool:
        """Stop every node cleanly; one that takes longer than `timeout` is killed.

        Returns whether anything ran.
        """
        if load(self.directory) is None:
            return False
        with locked(self.directory, report=self._report):
            record = load(self.directory)
            running = [node for node in record.nodes if _runs(node)] if record else []
            _stop_nodes(running, timeout=timeout)
            return bool(running)

    def status(self) -> ClusterStatus:
        """Look at every node: its process, and whether it answers."""
        record = load(self.directory)
        if record is None:
            return ClusterStatus(nodes=())
        return ClusterStatus(tuple(self._status_of(record, node) for node in record.nodes))

    def kill(self, node: int) -> None:
        """End a node at once, as a power cut would; `start` brings it back."""
        record = self._signal(node, signal.SIGKILL)
        if record.process and not wait_gone(record.process, timeout=_KILL_TIMEOUT):
            raise NodeFailedError(f"node {node} (process {record.process.pid}) survived SIGKILL")

    def pause(self, node: int) -> None:
        """Freeze a node: it keeps its connections and answers nothing."""
        process = self._signal(node, signal.SIGSTOP).process
        # A process of many threads stops a moment after the signal was sent.
        if process and not wait_until(lambda: is_paused(process), timeout=_KILL_TIMEOUT):
            raise NodeFailedError(f"node {node} (process {process.pid}) does not pause")

    def resume(self, node: int) -> None:
        """Let a paused node go on."""
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

    def _refuse_other_shape(self, record: ClusterRecord) -> None:
        if len(record.nodes) != self._node_count:
            raise DirectoryRefusedError(
                f"{self.directory} holds a broker of {len(record.nodes)} nodes, "
                f"not {self._node_count}.\n"
                f"Start with --nodes {len(record.nodes)}, choose another --dir, "
                "or remove the directory."
            )
        if record.secure != self._secure:
            said, option = ("a secured", "with") if record.secure else ("an open", "without")
            raise DirectoryRefusedError(
                f"{self.directory} holds {said} broker.\n"
                f"Start {option} --secure, choose another --dir, or remove the directory."
            )
        running = any(_runs(node) for node in record.nodes)
        if running and self._port not in (0, record.nodes[0].port):
            raise AlreadyRunningError(
                f"the broker in {self.directory} already runs, at {record.bootstrap}, "
                f"not at port {self._port}.\n"
                f"Use it there, or stop it first: headrace broker stop --dir {self.directory}"
            )

    def _lay_out(self, record: ClusterRecord | None) -> ClusterRecord:
        """Choose the ports; nothing runs, so they may differ from the last time."""
        count = self._node_count
        base = self._port or choose_base(count)
        ports = range(base, base + count)
        controller_ports = choose_ports(count, avoiding=ports)
        nodes = tuple(
            NodeRecord(id=number, port=port, controller_port=controller_port)
            for number, (port, controller_port) in enumerate(
                zip(ports, controller_ports, strict=True), start=1
            )
        )
        cluster_id = record.cluster_id if record else _new_cluster_id()
        return ClusterRecord(cluster_id=cluster_id, nodes=nodes, secure=self._secure)

    def _refuse_taken_ports(self, record: ClusterRecord) -> None:
        idle = [node for node in record.nodes if not _runs(node)]
        ports = [port for node in idle for port in (node.port, node.controller_port)]
        reasons = [reason for port in ports if (reason := why_taken(port)) is not None]
        if reasons:
            raise PortTakenError(
                f"{'; '.join(reasons)}.\nStop that process, or choose another port with --port."
            )

    def _start_missing(self, record: ClusterRecord) -> ClusterRecord:
        missing = [node for node in record.nodes if not _runs(node)]
        started: list[NodeRecord] = []
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
        self, record: ClusterRecord, missing: list[NodeRecord], started: list[NodeRecord]
    ) -> ClusterRecord:
        """Format and start nodes; `started` tells the caller what to undo, even on an error."""
        java = find_java()
        runtime = Runtime(java=java, jars=kafka_jars(java, report=self._report))
        if record.secure:
            self._security.prepare()
        save(self.directory, record)
        for node in missing:
            format_node(self.directory, record, node, runtime=runtime)

        def recorded(launched: NodeRecord) -> None:
            nonlocal record
            started.append(launched)
            record = record.with_node(launched)
            save(self.directory, record)

        what = f"node {missing[0].id}" if len(missing) == 1 else f"{len(missing)} nodes"
        self._report(f"Starting {what} of Kafka at {record.bootstrap}, which takes some seconds")
        for node in missing:
            self._log_ends[node.id] = log_size(self.directory, node)
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
                    raise self._failed(node, f"does not serve after {timeout_s:.0f} seconds")
                time.sleep(0.05)

    def _probe(self, record: ClusterRecord, node: NodeRecord) -> Probe:
        settings = None
        if record.secure:
            settings = self._security.client_settings(ADMIN, record.bootstrap)
        return Probe(node.endpoint, cluster_id=record.cluster_id, settings=settings)

    def _raise_if_dead(self, record: ClusterRecord) -> None:
        for node in record.nodes:
            if not _runs(node):
                raise self._failed(node, "ended")

    def _failed(self, node: NodeRecord, how: str) -> DevBrokerError:
        """Say why a node does not serve, as far as its logs tell."""
        logged = logged_errors(self.directory, node, since=self._log_ends.get(node.id, 0))
        what = f"node {node.id} at {node.endpoint} {how}"
        if not logged:
            return NodeFailedError(f"{what}. Its last words:\n{log_tail(self.directory, node)}")
        shown = "\n".join(f"  {line}" for line in logged)
        files = f"All of it: {log_directory(self.directory, node)}"
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

    def _status_of(self, record: ClusterRecord, node: NodeRecord) -> NodeStatus:
        pid = node.process.pid if node.process and _runs(node) else None
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

    def _signal(self, node: int, signum: signal.Signals) -> NodeRecord:
        record = load(self.directory)
        found = [peer for peer in record.nodes if peer.id == node] if record else []
        if not found:
            raise ValueError(f"no node {node} in {self.directory}")
        process = found[0].process
        if process is None or not send(process, signum):
            raise DevBrokerError(f"node {node} in {self.directory} does not run: start it first")
        return found[0]


def _runs(node: NodeRecord) -> bool:
    return node.process is not None and is_alive(node.process)


def _stop_nodes(nodes: list[NodeRecord], *, timeout: timedelta) -> None:
    """Ask all to end at once; kill those that do not within `timeout`."""
    deadline = time.monotonic() + timeout.total_seconds()
    processes = [node.process for node in nodes if node.process]
    for process in processes:
        send(process, signal.SIGTERM)
        send(process, signal.SIGCONT)  # a paused process would never see the first
    for process in processes:
        left = timedelta(seconds=max(0.0, deadline - time.monotonic()))
        if not wait_gone(process, timeout=left):
            send(process, signal.SIGKILL)
            wait_gone(process, timeout=_KILL_TIMEOUT)


def _new_cluster_id() -> str:
    """A random id in Kafka's spelling, which must not look like an option."""
    while True:
        spelled = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not spelled.startswith("-"):
            return spelled
