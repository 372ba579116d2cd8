"""Commands that start the peers, if they are available."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import get_args

from benchmarks.peers.kafka_streams import KafkaStreamsPeer, NoCompilerError
from benchmarks.peers.peer import (
    CACHE_BYTES,
    COMMIT_MS,
    NEXT_STREAMS_VERSION,
    STREAMS_VERSION,
    Peer,
    RunSpec,
    Variant,
)
from benchmarks.peers.quix import QuixPeer, QuixUnavailableError
from headrace.streams.devbroker.errors import DevBrokerError

Command = Callable[[Variant, RunSpec], list[str]]

PEERS: tuple[Peer, ...] = get_args(Peer)
PYTHON_PEERS: tuple[Peer, ...] = ("headrace", "checkout")
"""Peers whose workers are processes."""
TRANSACTIONAL = "enable.transactional.statestores=true"


def headrace(variant: Variant, spec: RunSpec) -> list[str]:
    """Return the command of a Headrace worker."""
    settings = {
        "statestore.cache.max.bytes": CACHE_BYTES if variant.caches else 0,
        "commit.interval.ms": COMMIT_MS,
        # The peers do not make fewer commits under lag.
        "commit.interval.max.ms": COMMIT_MS,
    }
    return [
        *(sys.executable, "-m", "benchmarks.service", spec.kind),
        *("--bootstrap", spec.bootstrap, "--run", spec.run, "--source", spec.source),
        *("--state-dir", str(spec.state), "--guarantee", variant.guarantee),
        *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
    ]


def of_checkout(path: Path) -> Command:
    """Return the command of a worker of another checkout of Headrace, with its `.venv`."""
    python = str(path / ".venv" / "bin" / "python")
    return lambda variant, spec: [python, *headrace(variant, spec)[1:]]


def by_hand(variant: Variant, spec: RunSpec) -> list[str]:
    """Return the command of a hand-written consumer."""
    return [
        *(sys.executable, "-m", "benchmarks.peers.hand_written", spec.kind),
        *("--bootstrap", spec.bootstrap, "--run", spec.run, "--source", spec.source),
        *("--output", spec.output),
        *(["--at-least-once"] if variant.guarantee == "at_least_once" else []),
        *([] if variant.caches else ["--every-update"]),
        *(["--combined"] if variant.combined else []),
    ]


def commands(
    report: Callable[[str], None],
    wanted: Collection[str] = ("kafka-streams", "quix"),
    next_version: str = NEXT_STREAMS_VERSION,
    checkout: Path | None = None,
) -> dict[str, Command]:
    """Return the commands of the peers; report each requested peer that is not available.

    Args:
        report: called with messages.
        wanted: peers to install. Python's own ones are always included.
        next_version: version of Kafka Streams that is called `next`.
        checkout: another checkout of Headrace.
    """
    found: dict[str, Command] = {"headrace": headrace, "by hand": by_hand}
    if checkout is not None:
        found["checkout"] = of_checkout(checkout)
    versions: dict[Peer, tuple[str, tuple[str, ...]]] = {
        "kafka-streams": (STREAMS_VERSION, ()),
        "kafka-streams next": (next_version, ()),
        "kafka-streams next transactional": (next_version, (TRANSACTIONAL,)),
    }
    for name, (version, settings) in versions.items():
        if name in wanted:
            try:
                found[name] = KafkaStreamsPeer(report, version, settings).command
            except (DevBrokerError, NoCompilerError, OSError) as error:
                report(f"{name} {version} is not available: {error}")
    if "quix" in wanted:
        try:
            found["quix"] = QuixPeer(report).command
        except QuixUnavailableError as error:
            report(f"Quix is not available: {error}")
    return found
