"""A steady stream of records beside what is measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

LOOK_S = 0.005
OF_THE_KEY = -1


@contextmanager
def feeding(
    bootstrap: str, topic: str, *, per_s: int, key_of: Callable[[int], int], partitions: int
) -> Iterator[None]:
    """Send numbers to all partitions in turns for as long as the block runs.

    Args:
        bootstrap: where the brokers are.
        topic: the topic to write.
        per_s: records a second.
        key_of: the number in the key of the record of that number.
        partitions: how many partitions the topic has; 0 leaves them to the key, as other producers
            of the same topic do.

    Yields:
        When the stream has begun.
    """
    ended = threading.Event()

    def run() -> None:
        settings = {"bootstrap.servers": bootstrap, "linger.ms": 1}
        producer = Producer({**settings, "partitioner": "murmur2_random"})
        begun_s, sent = time.monotonic(), 0
        while not ended.wait(LOOK_S):
            due = int((time.monotonic() - begun_s) * per_s)
            for number in range(sent, due):
                key = b'"key-%08d"' % key_of(number)
                place = number % partitions if partitions else OF_THE_KEY
                producer.produce(topic, b"%d" % number, key, partition=place)
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
