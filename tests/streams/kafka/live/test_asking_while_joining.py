"""Asking for a rebalance while the client joins, which could end the process: in one of its own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time

from confluent_kafka import Consumer

from tests.support.processes import wait_until
from tests.support.topics import Topics

ASKS = """
import sys, time
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.consumer import LiveConsumer

bootstrap, group, topic = sys.argv[1:]

class Listener:
    def __init__(self):
        self.has, self.is_lost = set(), False
    def on_assigned(self, partitions):
        self.has |= {*partitions}
    def on_revoked(self, partitions):
        self.has -= {*partitions}
    def on_lost(self, partitions):
        self.has, self.is_lost = set(), True

def poll_until(is_so, seconds=60):
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        consumer.poll(1, 0.1)

config = StreamsConfig.parse({
    "application.id": group, "bootstrap.servers": bootstrap, "consumer.session.timeout.ms": 6000,
})
consumer = LiveConsumer(config.consumer_config("asks"), timeout_s=30)
listener = Listener()
consumer.subscribe([topic], listener)
poll_until(lambda: listener.has)
print("joined", flush=True)
poll_until(lambda: listener.is_lost)
poll_until(lambda: False, 1)
assert listener.is_lost and not listener.has, "the other member was to keep it from joining"
for _ in range(2):
    consumer.ask_for_rebalance()
    poll_until(lambda: False, 1)
print("asked", flush=True)
poll_until(lambda: listener.has)
print(len(listener.has), flush=True)
consumer.close(leave=True)
"""


class Other:
    """Another member, which keeps the group waiting while it does not poll."""

    def __init__(self, topics: Topics, group: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": topics.bootstrap,
                "group.id": group,
                "group.instance.id": "waits",
                "partition.assignment.strategy": "cooperative-sticky",
            }
        )
        self._consumer.subscribe([topic])
        self.has = 0
        self._polls = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.go_on()
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            if self._polls.wait(0.1):
                self._consumer.poll(0.1)
                # The client takes one call at a time.
                self.has = len(self._consumer.assignment())

    def go_on(self) -> None:
        self._polls.set()

    def keep_waiting(self) -> None:
        self._polls.clear()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._consumer.close()


def test_who_asks_before_it_has_joined_again_goes_on(topics: Topics) -> None:
    """librdkafka ends the process for that where it knows single topics alone."""
    topic, group = topics.create("in", partitions=2), topics.name("group")
    with contextlib.closing(Other(topics, group, topic)) as other:
        wait_until(lambda: other.has == 2, what="joined")
        asks = subprocess.Popen(
            [sys.executable, "-c", ASKS, topics.bootstrap, group, topic],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert asks.stdout is not None
        said = [asks.stdout.readline().strip()]
        other.keep_waiting()
        asks.send_signal(signal.SIGSTOP)
        time.sleep(12)  # beyond its session, and until the other one has all and is to say so
        asks.send_signal(signal.SIGCONT)
        said.append(asks.stdout.readline().strip())
        other.go_on()
        rest, errors = asks.communicate(timeout=120)
    assert (said, asks.returncode) == (["joined", "asked"], 0), errors
    assert rest.strip() == "1"
