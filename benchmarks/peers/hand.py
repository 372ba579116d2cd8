"""The jobs as loops over confluent-kafka, each written by hand for one job, exactly-once.

This is what Headrace is measured against: the loops do what the job needs and nothing more. State
is one plain dict; one process owns every partition; whatever goes wrong ends the process, and the
next one begins at the committed offsets with the state of the changelog.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import orjson
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from benchmarks.measure.meter import Meter

COMMIT_INTERVAL_S = 0.1
BATCH = 5000
TIMEOUT_S = 30.0

Batch = list[Any]
"""Messages; the client's own type says that keys and values may be null, which these never are."""


class ExactlyOnce:
    """The part that the three loops share: clients, start, and the commit."""

    def __init__(self, bootstrap: str, name: str, topics: list[str]) -> None:
        self.bootstrap = bootstrap
        self.consumer = Consumer(consumer_config(bootstrap, name))
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "linger.ms": 5,
                "compression.type": "lz4",
                "retry.backoff.ms": 5,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 256 * 1024,
                # A failed record fails the transaction: nobody needs the other reports.
                "delivery.report.only.error": True,
            }
        )
        self.partitions = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in self.consumer.list_topics(topic).topics[topic].partitions
        ]

    def start(self) -> None:
        """Fence an earlier process, and read on where its last transaction ended."""
        self.producer.init_transactions(TIMEOUT_S)
        committed = self.consumer.committed(self.partitions, TIMEOUT_S)
        for place in committed:
            place.offset = max(place.offset, 0)
        self.consumer.assign(committed)
        self.producer.begin_transaction()

    def commit(self) -> None:
        """End the transaction with the offsets of everything that was consumed."""
        self.producer.send_offsets_to_transaction(
            [p for p in self.consumer.position(self.partitions) if p.offset >= 0],
            self.consumer.consumer_group_metadata(),
        )
        self.producer.commit_transaction()
        self.producer.begin_transaction()

    def restore(self, changelog: str, load: Callable[[Batch], None]) -> None:
        """Read a changelog to the end that it has now."""
        reader = Consumer(consumer_config(self.bootstrap, f"{changelog}-restore"))
        wanted = []
        for partition in reader.list_topics(changelog).topics[changelog].partitions:
            place = TopicPartition(changelog, partition, 0)
            end = reader.get_watermark_offsets(place)[1]
            if end > 0:
                wanted.append((place, end))
        reader.assign([place for place, _ in wanted])
        while any(reader.position([place])[0].offset < end for place, end in wanted):
            load(checked(reader.consume(BATCH, 0.1)))
        reader.close()


def consumer_config(bootstrap: str, group: str) -> dict[str, object]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "fetch.queue.backoff.ms": 2,
    }


def checked(batch: list[Message]) -> Batch:
    """Refuse a batch with an error in it; one C loop for the usual case."""
    if any(map(Message.error, batch)):
        raise KafkaException(next(m.error() for m in batch if m.error()))
    return batch


@dataclass(frozen=True, slots=True)
class Names:
    """The topics of one run."""

    source: str
    output: str
    repartition: str
    changelog: str

    @staticmethod
    def of(run: str, source: str) -> Names:
        """The topics of the run that is called `run`."""
        return Names(source, f"{run}-output", f"{run}-repartition", f"{run}-changelog")


def word_count(bootstrap: str, run: str, names: Names, until: int, meter: Meter) -> None:
    """Count words: sentences to words, words through a repartition topic to counts."""
    loop = ExactlyOnce(bootstrap, run, [names.source, names.repartition])
    counts: dict[bytes, int] = {}
    pack, unpack = struct.Struct(">q").pack, struct.Struct(">q").unpack

    def load(batch: Batch) -> None:
        for m in batch:
            counts[m.key()] = unpack(m.value())[0]

    loop.restore(names.changelog, load)
    dirty: set[bytes] = set()
    produce, consume = loop.producer.produce, loop.consumer.consume
    source, repartition, output = names.source, names.repartition, names.output
    get, touch = counts.get, dirty.add
    loop.start()
    done = pending = 0
    due = time.monotonic() + COMMIT_INTERVAL_S
    while done < until:
        batch = checked(consume(BATCH, 0.02))
        for m in batch:
            if m.topic() == source:
                for word in m.value().split():
                    produce(repartition, word, word)
            else:
                word = m.key()
                count = get(word, 0) + 1
                counts[word] = count
                touch(word)
                produce(output, pack(count), word)
        pending += len(batch)
        if pending and (time.monotonic() >= due or done + pending >= until):
            for word in dirty:
                produce(names.changelog, pack(counts[word]), word)
            dirty.clear()
            loop.commit()
            meter.commit(pending)
            done, pending = done + pending, 0
            due = time.monotonic() + COMMIT_INTERVAL_S


def running_sum(bootstrap: str, run: str, names: Names, until: int, meter: Meter) -> None:
    """Add up the amounts of each key; every record writes the new sum."""
    loop = ExactlyOnce(bootstrap, run, [names.source])
    loads, dumps = orjson.loads, orjson.dumps
    sums: dict[bytes, int] = {}

    def load(batch: Batch) -> None:
        for m in batch:
            sums[m.key()] = loads(m.value())

    loop.restore(names.changelog, load)
    dirty: dict[bytes, bytes] = {}
    produce, consume = loop.producer.produce, loop.consumer.consume
    output, changelog = names.output, names.changelog
    get = sums.get
    loop.start()
    done = pending = 0
    due = time.monotonic() + COMMIT_INTERVAL_S
    while done < until:
        batch = checked(consume(BATCH, 0.02))
        for m in batch:
            key = m.key()
            total = get(key, 0) + loads(m.value())["amount"]
            sums[key] = total
            dirty[key] = data = dumps(total)
            produce(output, data, key)
        pending += len(batch)
        if pending and (time.monotonic() >= due or done + pending >= until):
            for key, data in dirty.items():
                produce(changelog, data, key)
            dirty.clear()
            loop.commit()
            meter.commit(pending)
            done, pending = done + pending, 0
            due = time.monotonic() + COMMIT_INTERVAL_S


def stateless(bootstrap: str, run: str, names: Names, until: int, meter: Meter) -> None:
    """Parse, keep what is paid, and write another document."""
    loop = ExactlyOnce(bootstrap, run, [names.source])
    produce, consume = loop.producer.produce, loop.consumer.consume
    loads, dumps = orjson.loads, orjson.dumps
    output = names.output
    loop.start()
    done = pending = 0
    due = time.monotonic() + COMMIT_INTERVAL_S
    while done < until:
        batch = checked(consume(BATCH, 0.02))
        for m in batch:
            order = loads(m.value())
            if order["paid"]:
                invoice = {"total": order["price"] * order["quantity"], "user": order["user"]}
                produce(output, dumps(invoice), m.key())
        pending += len(batch)
        if pending and (time.monotonic() >= due or done + pending >= until):
            loop.commit()
            meter.commit(pending)
            done, pending = done + pending, 0
            due = time.monotonic() + COMMIT_INTERVAL_S


LOOPS = {"word_count": word_count, "sum": running_sum, "stateless": stateless}


@click.command()
@click.argument("job", type=click.Choice(list(LOOPS)))
@click.option("--bootstrap", required=True)
@click.option("--run", "run_name", required=True, help="Group, and first part of the topics.")
@click.option("--source", required=True, help="The input topic.")
@click.option("--until", required=True, type=int, help="How many records to process.")
def main(job: str, bootstrap: str, run_name: str, source: str, until: int) -> None:
    """Run one loop until its input is drained, and print what it cost as JSON."""
    meter = Meter()
    LOOPS[job](bootstrap, run_name, Names.of(run_name, source), until, meter)
    json.dump(meter.report(), sys.stdout)


if __name__ == "__main__":
    main()
