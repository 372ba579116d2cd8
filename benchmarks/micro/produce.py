"""Sending a record through the runtime's producer, beside the client's own call.

No broker is needed: records pile up in the client's queue and are purged after each round.
"""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka

from benchmarks.micro.timing import Comparison, compare
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.kafka.transactional_producer import TransactionalProducer

RECORDS = 5000
TOPIC = "output"
NOWHERE = {
    "bootstrap.servers": "localhost:1",
    "log_level": 0,
    "linger.ms": 60_000,
    "queue.buffering.max.messages": 1_000_000,
    "partitioner": "murmur2_random",
}

ROWS = [(b'"account-%06d"' % i, b"%d" % i, 1_700_000_000_000 + i) for i in range(RECORDS)]


def through_send() -> Callable[[], object]:
    """What generated code calls for each record that goes to a topic."""
    producer = _producer()
    send, purge = producer.send, producer._drop

    def run() -> None:
        for key, value, timestamp in ROWS:
            send(TOPIC, value, key, -1, timestamp, None)
        purge()

    return run


def through_client(*, with_timestamp: bool) -> Callable[[], object]:
    client = confluent_kafka.Producer(NOWHERE)
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


def changelog() -> Callable[[], object]:
    """What the commit calls with the delta of a store."""
    producer = _producer()
    send_changelog, purge, place = producer.send_changelog, producer._drop, TopicPartition(TOPIC, 0)

    def run() -> None:
        send_changelog(place, ROWS)
        purge()

    return run


def _producer() -> TransactionalProducer:
    # Without a transactional.id the client takes records at once, as it does in a transaction.
    return TransactionalProducer(NOWHERE, timeout_s=1.0)


def main() -> None:
    """Time the producer."""
    compare(
        "sending, ns per record",
        [
            Comparison(
                "send, beside produce without a timestamp",
                RECORDS,
                through_send(),
                through_client(with_timestamp=False),
            ),
            Comparison(
                "send, beside produce with a timestamp",
                RECORDS,
                through_send(),
                through_client(with_timestamp=True),
            ),
            Comparison(
                "send a delta to the changelog",
                RECORDS,
                changelog(),
                through_client(with_timestamp=True),
            ),
        ],
    )


if __name__ == "__main__":
    main()
