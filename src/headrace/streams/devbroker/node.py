"""One node: its directory, its java process, its log."""

from __future__ import annotations

import re
import secrets
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.streams.devbroker.errors import NodeFailedError
from headrace.streams.devbroker.java import Java
from headrace.streams.devbroker.process import launch
from headrace.streams.devbroker.record import ClusterRecord, NodeRecord
from headrace.streams.devbroker.security import ADMIN, MECHANISM, Security
from headrace.streams.devbroker.settings import LOG_NAME, log4j_xml, server_properties

_CONSOLE_NAME = "console.log"
_TAIL_LINES = 20
_FORMAT_TIMEOUT_S = 120
_ERRORS_SHOWN = 8
_LINE_MAX = 500
_ERROR = re.compile(
    r"^\S+ \S+ (ERROR|FATAL) |^(Caused by|Error|Exception in thread)\b|^[\w.$]+(Exception|Error): "
)
"""A line of Kafka's log or of Java's that tells an error, without the frames of its trace."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What runs a node: Java and the directory of Kafka's jars."""

    java: Java
    jars: Path

    def command(self, main_class: str, *options: str) -> list[str]:
        """The command line up to and including the main class."""
        classpath = f"{self.jars}/*"
        log4j = "-Dlog4j2.configurationFile=log4j2.xml"
        return [str(self.java.executable), *options, log4j, "-cp", classpath, main_class]


def format_node(
    directory: Path, cluster: ClusterRecord, node: NodeRecord, *, runtime: Runtime
) -> None:
    """Write the node's settings, and format its data directory if that was never done.

    Raises `NodeFailedError` with what Kafka's tool said.
    """
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
        # Nodes prove who they are as this user, so it is there before any of them runs.
        known = f"{MECHANISM}=[name={ADMIN},password={security.password(ADMIN)}]"
        identity += ["--add-scram", known]
    result = subprocess.run(
        [*tool, "format", "--ignore-formatted", *identity],
        cwd=home,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_FORMAT_TIMEOUT_S,
        check=False,
    )
    if result.returncode != 0:
        said = (result.stdout + result.stderr).strip()
        raise NodeFailedError(f"Kafka could not format {home / 'data'}:\n{said}")


def launch_node(
    directory: Path,
    node: NodeRecord,
    *,
    runtime: Runtime,
    recorded: Callable[[NodeRecord], None],
) -> None:
    """Start the node's process.

    Args:
        recorded: takes the node with its process, before Kafka begins in it.
    """
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


def log_directory(directory: Path, node: NodeRecord) -> Path:
    """Where the node's log files are."""
    return _home(directory, node) / "logs"


def log_tail(directory: Path, node: NodeRecord) -> str:
    """The last lines of the node's log and of its console, for an error message."""
    shown: list[str] = []
    for name in (LOG_NAME, _CONSOLE_NAME):
        path = log_directory(directory, node) / name
        try:
            lines = path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        except OSError:
            continue
        if lines:
            shown += [f"{path}:", *(f"  {line}" for line in lines)]
    return "\n".join(shown) or f"no log in {log_directory(directory, node)}"


def log_size(directory: Path, node: NodeRecord) -> int:
    """How many bytes the node's log has."""
    path = log_directory(directory, node) / LOG_NAME
    return path.stat().st_size if path.exists() else 0


def logged_errors(directory: Path, node: NodeRecord, *, since: int) -> list[str]:
    """The first errors in the node's log and in its console, with their causes.

    Args:
        since: how many bytes of the log are of earlier starts.
    """
    found: list[str] = []
    for name, begin in ((LOG_NAME, since), (_CONSOLE_NAME, 0)):
        path = log_directory(directory, node) / name
        try:
            data = path.read_bytes()
        except OSError:
            continue
        text = data[begin if begin <= len(data) else 0 :].decode(errors="replace")
        found += [line[:_LINE_MAX] for line in text.splitlines() if _ERROR.search(line)]
    return list(dict.fromkeys(found))[:_ERRORS_SHOWN]


def _home(directory: Path, node: NodeRecord) -> Path:
    return directory / f"node-{node.id}"
