"""How each peer is started, and which can be here."""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks.peers.kafka_streams import KafkaStreamsPeer, NoCompilerError
from benchmarks.peers.peer import CACHE_BYTES, COMMIT_MS, Order, Variant
from benchmarks.peers.quix import QuixPeer, QuixUnavailableError
from headrace.streams.devbroker.errors import DevBrokerError

Command = Callable[[Variant, Order], list[str]]


def headrace(variant: Variant, order: Order) -> list[str]:
    """One worker of an application of Headrace; several are started as often."""
    settings = {
        "statestore.cache.max.bytes": CACHE_BYTES if variant.caches else 0,
        "commit.interval.ms": COMMIT_MS,
        # Nobody else makes fewer commits while much waits.
        "commit.interval.max.ms": COMMIT_MS,
    }
    return [
        *(sys.executable, "-m", "benchmarks.service", order.kind),
        *("--bootstrap", order.bootstrap, "--run", order.run, "--source", order.source),
        *("--state-dir", str(order.state), "--guarantee", variant.guarantee),
        *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
    ]


def by_hand(variant: Variant, order: Order) -> list[str]:
    """A loop by hand."""
    return [
        *(sys.executable, "-m", "benchmarks.peers.hand", order.kind),
        *("--bootstrap", order.bootstrap, "--run", order.run, "--source", order.source),
        *("--output", order.output),
        *(["--at-least-once"] if variant.guarantee == "at_least_once" else []),
        *([] if variant.caches else ["--every-update"]),
        *(["--combined"] if variant.combined else []),
    ]


def commands(report: Callable[[str], None]) -> dict[str, Command]:
    """Who can be started here; who cannot, and why, is reported."""
    found: dict[str, Command] = {"headrace": headrace, "by hand": by_hand}
    try:
        found["kafka-streams"] = KafkaStreamsPeer(report).command
    except (DevBrokerError, NoCompilerError, OSError) as error:
        report(f"Without Kafka Streams: {error}")
    try:
        found["quix"] = QuixPeer(report).command
    except QuixUnavailableError as error:
        report(f"Without Quix: {error}")
    return found
