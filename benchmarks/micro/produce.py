"""Calls of Headrace's producer, compared with the client's: ``python -m benchmarks.micro.produce``.

Prints nanoseconds per record. There is no broker: records stay in the client's queue, and are
purged after each round.
"""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka

from benchmarks.micro.timing import TimedPair, print_times
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.kafka.transactional_producer import TransactionalProducer

RECORDS = 5000
TOPIC = "output"
CONFIG = {
    "bootstrap.servers": "localhost:1",
    "log_level": 0,
    "linger.ms": 60_000,
    "queue.buffering.max.messages": 1_000_000,
    "partitioner": "murmur2_random",
}

ROWS = [(b'"account-%06d"' % i, b"%d" % i, 1_700_000_000_000 + i) for i in range(RECORDS)]


def send_records() -> Callable[[], object]:
    """Send records as generated code does."""
    producer = _producer()
    send, purge = producer.send, producer._drop

    def run() -> None:
        for key, value, timestamp in ROWS:
            send(TOPIC, value, key, -1, timestamp, None)
        purge()

    return run


def produce_records(*, with_timestamp: bool) -> Callable[[], object]:
    client = confluent_kafka.Producer(CONFIG)
    produce = client.produce

    def run() -> None:
        for key, value, timestamp in ROWS:
            if with_timestamp:
                produce(TOPIC, value, key, -1, None, None, timestamp)
            else:
                produce(TOPIC, value, key)
        client.purge()
        client.poll(0)

    return run


def send_delta() -> Callable[[], object]:
    """Send a store's delta to its changelog, as a commit does."""
    producer = _producer()
    send_changelog, purge, tp = producer.send_changelog, producer._drop, TopicPartition(TOPIC, 0)

    def run() -> None:
        send_changelog(tp, ROWS)
        purge()

    return run


def _producer() -> TransactionalProducer:
    # Without a transactional.id, the client accepts records immediately, as in a transaction.
    return TransactionalProducer(CONFIG, timeout_s=1.0)


def main() -> None:
    """Time the producer."""
    print_times(
        "sending, ns per record",
        [
            TimedPair(
                "send, compared with produce without a timestamp",
                RECORDS,
                send_records(),
                produce_records(with_timestamp=False),
            ),
            TimedPair(
                "send, compared with produce with a timestamp",
                RECORDS,
                send_records(),
                produce_records(with_timestamp=True),
            ),
            TimedPair(
                "send a delta to the changelog",
                RECORDS,
                send_delta(),
                produce_records(with_timestamp=True),
            ),
        ],
    )


if __name__ == "__main__":
    main()
