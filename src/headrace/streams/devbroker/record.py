"""What the broker's directory remembers: Kafka's version, the nodes, their ports and processes.

One file, `broker.json`, replaced as a whole at each change. Who writes it holds `lock`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headrace.streams.devbroker.errors import DirectoryRefusedError
from headrace.streams.devbroker.jars import KAFKA_VERSION
from headrace.streams.devbroker.process import Identity

_FORMAT = 1
_RECORD_NAME, _LOCK_NAME = "broker.json", "lock"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node: its ports, and the process that was started for it last."""

    id: int
    port: int
    controller_port: int
    process: Identity | None = None

    @property
    def endpoint(self) -> str:
        """Where clients reach this node."""
        return f"localhost:{self.port}"


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The content of `broker.json`."""

    cluster_id: str
    nodes: tuple[NodeRecord, ...]
    secure: bool = False
    kafka: str = KAFKA_VERSION
    format: int = _FORMAT

    @property
    def bootstrap(self) -> str:
        """All nodes, as clients want them in `bootstrap.servers`."""
        return ",".join(node.endpoint for node in self.nodes)

    def with_node(self, node: NodeRecord) -> ClusterRecord:
        """This record with one node replaced."""
        nodes = tuple(node if old.id == node.id else old for old in self.nodes)
        return replace(self, nodes=nodes)


def load(directory: Path) -> ClusterRecord | None:
    """Read the record; None in a directory that is missing or empty.

    Raises `DirectoryRefusedError` if it holds something else, or data of another version.
    """
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
            "Stop its java process if one still runs, remove the directory, and start again."
        ) from error
    if written_by != (_FORMAT, KAFKA_VERSION):
        raise DirectoryRefusedError(
            f"{directory} holds data of Kafka {fields['kafka']} (record format "
            f"{fields['format']}); this headrace runs Kafka {KAFKA_VERSION} (format {_FORMAT}).\n"
            "Choose another directory with --dir, or remove this one."
        )
    nodes = tuple(_node(node) for node in fields["nodes"])
    secure = fields.get("secure", False)
    return ClusterRecord(cluster_id=fields["cluster_id"], nodes=nodes, secure=secure)


def save(directory: Path, record: ClusterRecord) -> None:
    """Replace the record; a reader sees the old one or the new one, never half of it."""
    draft = directory / f"{_RECORD_NAME}.new"
    draft.write_text(json.dumps(asdict(record), indent=2) + "\n")
    os.replace(draft, directory / _RECORD_NAME)


@contextmanager
def locked(directory: Path, *, report: Callable[[str], None]) -> Iterator[None]:
    """Hold the directory against other processes that would start or stop here."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK_NAME).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"Waiting for another start or stop in {directory}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _node(fields: dict[str, Any]) -> NodeRecord:
    process = fields["process"]
    return NodeRecord(**fields | {"process": Identity(**process) if process else None})


def _refuse_foreign_content(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise DirectoryRefusedError(f"{directory} is a file. Choose a directory with --dir.")
    known = {_LOCK_NAME, f"{_RECORD_NAME}.new"}
    if directory.is_dir() and {entry.name for entry in directory.iterdir()} - known:
        raise DirectoryRefusedError(
            f"{directory} is not empty and holds no dev broker.\n"
            "Choose a new or empty directory with --dir."
        )
