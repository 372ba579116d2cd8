"""Steady load of a topic during a measurement."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

INTERVAL_S = 0.005
PARTITION_OF_KEY = -1


@contextmanager
def steady_load(
    bootstrap: str, topic: str, *, per_s: int, key_of: Callable[[int], int], partitions: int
) -> Iterator[None]:
    """Send numbers to all partitions in turns while the block runs.

    Args:
        bootstrap: bootstrap servers.
        topic: the topic.
        per_s: records per second.
        key_of: returns the number in the key of a record.
        partitions: number of partitions; 0 if the key determines the partition, as with other
            producers of the topic.

    Yields:
        After the start of the stream.
    """
    ended = threading.Event()

    def run() -> None:
        settings = {"bootstrap.servers": bootstrap, "linger.ms": 1}
        producer = Producer({**settings, "partitioner": "murmur2_random"})
        begun_s, sent = time.monotonic(), 0
        while not ended.wait(INTERVAL_S):
            due = int((time.monotonic() - begun_s) * per_s)
            for number in range(sent, due):
                key = b'"key-%08d"' % key_of(number)
                partition = number % partitions if partitions else PARTITION_OF_KEY
                producer.produce(topic, b"%d" % number, key, partition=partition)
            sent = max(sent, due)
            producer.poll(0)
        producer.flush(10)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
