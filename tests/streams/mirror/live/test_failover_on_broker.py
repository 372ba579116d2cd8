"""Fail over and back, step by step as docs/mirror.md has it: one cluster dies, and is back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from headrace.streams.devbroker import DevBroker
from headrace.streams.devbroker.cluster import choose_base
from tests.support import kafka
from tests.support.mirrors import Clusters
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.topics import Topics
from tests.support.warm import await_coordinators

GROUP, AT_WEST, OUTAGE = "readers", 1000, 100
WORDS = ("--topics", "*", "--rename", "{cluster}.{topic}", "--groups", GROUP)


@contextmanager
def _two(directory: Path) -> Iterator[tuple[DevBroker, DevBroker]]:
    west = DevBroker(directory / "west", port=choose_base(1))
    with ThreadPoolExecutor() as beside:
        starting = beside.submit(west.start)
        east = DevBroker(directory / "east", port=0)
        try:
            east.start()
            starting.result()
            for broker in (west, east):
                await_coordinators(broker.bootstrap)
            yield west, east
        finally:
            west.stop()
            east.stop()


def _consume(bootstrap: str, topics: list[str], count: int) -> list[int]:
    """Read so many records in the group, and commit behind them."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(topics)
    found: list[int] = []
    try:
        while len(found) < count:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{len(found)} of {count}"
            assert message.error() is None, message.error()
            found.append(int(message.value() or b""))
            consumer.commit(message, asynchronous=False)
    finally:
        consumer.close()
    return found


def _write(bootstrap: str, numbers: range) -> None:
    kafka.write(bootstrap, "orders", [(b"%d" % n, b"%d" % n) for n in numbers])


def _names(bootstrap: str) -> set[str]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return {name for name in admin.list_topics(timeout=PATIENCE_S).topics if "orders" in name}


def _count(bootstrap: str, topic: str) -> int:
    return len(kafka.read(bootstrap, topic)) if topic in _names(bootstrap) else 0


@pytest.mark.long
def test_a_group_goes_over_and_back_with_each_record_read_once(tmp_path: Path) -> None:
    with _two(tmp_path) as (west, east):
        clusters = Clusters(tmp_path, {"west": west.bootstrap, "east": east.bootstrap})
        for broker in (west, east):
            Topics(broker.bootstrap).create_named("orders", partitions=2)
        _write(west.bootstrap, range(AT_WEST))
        with clusters.running(*WORDS):
            read = _consume(west.bootstrap, ["orders"], 400)
            wait_until(lambda: _is_noted(clusters, west.bootstrap), what="the group is noted")
            wait_until(lambda: _count(east.bootstrap, "west.orders") == AT_WEST, what="copied")
            west.kill(1)
            clusters.mirrored("offsets", GROUP, "--last-known", "--yes")
            _write(east.bootstrap, range(AT_WEST, AT_WEST + OUTAGE))
            read += _consume(east.bootstrap, ["west.orders", "orders"], 650)

            west.start()
            await_coordinators(west.bootstrap)
            with clusters.running(*WORDS, source="east", target="west"):
                wait_until(lambda: _count(west.bootstrap, "east.orders") == OUTAGE, what="back")
                _write(west.bootstrap, range(AT_WEST + OUTAGE, AT_WEST + OUTAGE + 50))
                wait_until(
                    lambda: _count(east.bootstrap, "west.orders") == AT_WEST + 50, what="and over"
                )
                clusters.mirrored("offsets", GROUP, "--back", "--yes")
                clusters.mirrored("offsets", GROUP, "--yes", source="east", target="west")
                read += _consume(
                    west.bootstrap, ["orders", "east.orders"], AT_WEST + OUTAGE + 50 - len(read)
                )
            left = kafka.committed(west.bootstrap, GROUP, "orders")
            assert left == kafka.ends(west.bootstrap, "orders")
        assert sorted(read) == list(range(AT_WEST + OUTAGE + 50))
        assert _names(west.bootstrap) == {"orders", "east.orders"}
        assert _names(east.bootstrap) == {"orders", "west.orders"}
        assert _count(west.bootstrap, "orders") == AT_WEST + 50


def _is_noted(clusters: Clusters, bootstrap: str) -> bool:
    done = clusters.run("offsets", GROUP, "--last-known", "--dry-run")
    noted = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("  orders-")]
    standing = kafka.committed(bootstrap, GROUP, "orders")
    return noted == [str(standing[number]) for number in sorted(standing)]
