"""Four jobs as hand-written consumers on confluent-kafka.

They do only what the job requires. State is a dict, and one process owns all partitions. Each error
ends the process. The next process restores the changelog, and starts at the committed offsets.
They have the same guarantee as Headrace, the same settings of the clients and of Python's garbage
collector, and the same outputs: one per key and commit, or each update.
"""

from __future__ import annotations

import gc
import signal
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import click
import orjson
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from benchmarks.jobs.job import GRACE_MS, WINDOW_MS
from benchmarks.jobs.windows import windowed_key
from benchmarks.peers.peer import COMMIT_MS
from headrace.streams.states import COLLECT_AFTER_OBJECTS

BATCH = 5000
TIMEOUT_S = 30.0

Batch = list[Any]
"""Messages whose keys and values are never null, though the client's type allows it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of a consumer."""

    bootstrap: str
    run: str
    source: str
    output: str
    exactly_once: bool
    caches: bool
    combined: bool

    @property
    def repartition(self) -> str:
        """Repartition topic of the word count."""
        return f"{self.run}-repartition"

    @property
    def changelog(self) -> str:
        """Changelog topic of the state."""
        return f"{self.run}-changelog"


class ConsumerJob(Protocol):
    """Hand-written consumer of a job."""

    def take(self, batch: Batch) -> None:
        """Process a batch."""

    def flush(self) -> None:
        """Write cached outputs and the changelog before a commit."""


class Clients:
    """Clients, start and commit of all jobs."""

    def __init__(self, setting: Setting, topics: list[str]) -> None:
        self._bootstrap = setting.bootstrap
        self._exactly_once = setting.exactly_once
        self.consumer = Consumer(consumer_config(setting.bootstrap, setting.run))
        transactional = {"transactional.id": setting.run} if setting.exactly_once else {}
        self.producer = Producer(
            {
                "bootstrap.servers": setting.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "compression.type": "lz4",
                "retry.backoff.ms": 5,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 256 * 1024,
                # Reports of successful sends are not used.
                "delivery.report.only.error": True,
                "on_delivery": _failed,
                **transactional,
            }
        )
        self.partitions = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in self.consumer.list_topics(topic).topics[topic].partitions
        ]

    def send(self, topic: str, value: bytes, key: bytes) -> None:
        """Send a record; if the client's queue is full, wait."""
        while True:
            try:
                self.producer.produce(topic, value, key)
            except BufferError:
                self.producer.poll(0.05)
                continue
            return

    def start(self) -> None:
        """Fence an earlier process, and continue at its committed offsets."""
        if self._exactly_once:
            self.producer.init_transactions(TIMEOUT_S)
            self.producer.begin_transaction()
        committed = self.consumer.committed(self.partitions, TIMEOUT_S)
        for tp in committed:
            tp.offset = max(tp.offset, 0)
        self.consumer.assign(committed)

    def commit(self) -> None:
        """Commit the offsets of the consumed records after their results are written."""
        offsets = [p for p in self.consumer.position(self.partitions) if p.offset >= 0]
        if self._exactly_once:
            metadata = self.consumer.consumer_group_metadata()
            self.producer.send_offsets_to_transaction(offsets, metadata)
            self.producer.commit_transaction()
            self.producer.begin_transaction()
        else:
            if self.producer.flush(TIMEOUT_S):
                raise TimeoutError(f"records are not written after {TIMEOUT_S:.0f} s")
            self.consumer.commit(offsets=offsets, asynchronous=False)

    def restore(self, changelog: str, load: Callable[[Batch], None]) -> None:
        """Read a changelog up to its current end."""
        reader = Consumer(consumer_config(self._bootstrap, f"{changelog}-restore"))
        wanted = []
        for partition in reader.list_topics(changelog).topics[changelog].partitions:
            tp = TopicPartition(changelog, partition, 0)
            end = reader.get_watermark_offsets(tp)[1]
            if end > 0:
                wanted.append((tp, end))
        reader.assign([tp for tp, _ in wanted])
        while any(reader.position([tp])[0].offset < end for tp, end in wanted):
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


def _failed(error: object, _message: object) -> None:
    if error is not None:
        raise RuntimeError(f"a record was not written: {error}")


def checked(batch: list[Message]) -> Batch:
    """Raise if a batch contains an error; without errors, the check runs in C."""
    if any(map(Message.error, batch)):
        raise KafkaException(next(m.error() for m in batch if m.error()))
    return batch


class WordCount:
    """W1: sentences to words, words through a repartition topic to counts."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._source = f"{setting.source}-in"
        self.clients = Clients(setting, [self._source, setting.repartition])
        self._counts: dict[bytes, int] = {}
        self._dirty: set[bytes] = set()
        self._partial: Counter[bytes] = Counter()
        self._long = struct.Struct(">q")
        self.clients.restore(setting.changelog, self._load)

    def _load(self, batch: Batch) -> None:
        for m in batch:
            self._counts[m.key()] = self._long.unpack(m.value())[0]

    def take(self, batch: Batch) -> None:
        setting, source, send = self._setting, self._source, self.clients.send
        get, counts, touch = self._counts.get, self._counts, self._dirty.add
        pack, unpack = self._long.pack, self._long.unpack
        for m in batch:
            if m.topic() == source:
                if setting.combined:
                    self._partial.update(m.value().split())
                    continue
                for word in m.value().split():
                    send(setting.repartition, word, word)
                continue
            word = m.key()
            count = get(word, 0) + (unpack(m.value())[0] if setting.combined else 1)
            counts[word] = count
            touch(word)
            if not setting.caches:
                send(setting.output, pack(count), word)

    def flush(self) -> None:
        setting, send, pack = self._setting, self.clients.send, self._long.pack
        for word, count in self._partial.items():
            send(setting.repartition, pack(count), word)
        self._partial.clear()
        for word in self._dirty:
            data = pack(self._counts[word])
            send(setting.changelog, data, word)
            if setting.caches:
                send(setting.output, data, word)
        self._dirty.clear()


class Sum:
    """W2 and W4: add up the amounts of each key, or of each key and ten seconds."""

    def __init__(self, setting: Setting, *, windowed: bool) -> None:
        self._setting = setting
        self._windowed = windowed
        self.clients = Clients(setting, [f"{setting.source}-in"])
        self._sums: dict[bytes, int] = {}
        self._dirty: dict[bytes, bytes] = {}
        self._stream_ms: dict[int, int] = {}
        self.clients.restore(setting.changelog, self._load)

    def _load(self, batch: Batch) -> None:
        for m in batch:
            self._sums[m.key()] = orjson.loads(m.value())

    def take(self, batch: Batch) -> None:
        send, output, caches = self.clients.send, self._setting.output, self._setting.caches
        loads, dumps = orjson.loads, orjson.dumps
        sums, get, dirty = self._sums, self._sums.get, self._dirty
        windowed = self._windowed
        for m in batch:
            key = m.key()
            if windowed:
                key = self._window(m)
                if key is None:
                    continue
            total = get(key, 0) + loads(m.value())["amount"]
            sums[key] = total
            if caches:
                dirty[key] = b""
            else:
                dirty[key] = data = dumps(total)
                send(output, data, key)

    def _window(self, m: Any) -> bytes | None:
        """Return the window's key, or None if the window is closed."""
        partition, time_ms = m.partition(), m.timestamp()[1]
        stream_ms = max(self._stream_ms.get(partition, 0), time_ms)
        self._stream_ms[partition] = stream_ms
        start_ms = time_ms - time_ms % WINDOW_MS
        is_open = start_ms + WINDOW_MS + GRACE_MS > stream_ms
        return windowed_key(m.key(), start_ms) if is_open else None

    def flush(self) -> None:
        send, setting = self.clients.send, self._setting
        for key, data in self._dirty.items():
            if setting.caches:
                data = orjson.dumps(self._sums[key])
                send(setting.output, data, key)
            send(setting.changelog, data, key)
        self._dirty.clear()


class Stateless:
    """W3: parse, keep paid orders, and write another document."""

    def __init__(self, setting: Setting) -> None:
        self._output = setting.output
        self.clients = Clients(setting, [f"{setting.source}-in"])

    def take(self, batch: Batch) -> None:
        send, output = self.clients.send, self._output
        loads, dumps = orjson.loads, orjson.dumps
        for m in batch:
            order = loads(m.value())
            if order["paid"]:
                invoice = {"total": order["price"] * order["quantity"], "user": order["user"]}
                send(output, dumps(invoice), m.key())

    def flush(self) -> None:
        """Outputs are not cached."""


def run(job: WordCount | Sum | Stateless) -> None:
    """Run until SIGTERM."""
    stopped = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    gc.set_threshold(COLLECT_AFTER_OBJECTS, *gc.get_threshold()[1:])
    clients = job.clients
    clients.start()
    pending = False
    due = time.monotonic() + COMMIT_MS / 1000
    while not stopped:
        batch = checked(clients.consumer.consume(BATCH, 0.02))
        if batch:
            pending = True
            job.take(batch)
        clients.producer.poll(0)
        if pending and time.monotonic() >= due:
            job.flush()
            clients.commit()
            pending = False
            due = time.monotonic() + COMMIT_MS / 1000


CONSUMERS: dict[str, Callable[[Setting], WordCount | Sum | Stateless]] = {
    "words": WordCount,
    "sum": lambda setting: Sum(setting, windowed=False),
    "windows": lambda setting: Sum(setting, windowed=True),
    "stateless": Stateless,
}


@click.command()
@click.argument("kind", type=click.Choice(list(CONSUMERS)))
@click.option("--bootstrap", required=True)
@click.option("--run", "name", required=True, help="Group, and prefix of internal topics.")
@click.option("--source", required=True, help="Prefix of the input topic.")
@click.option("--output", required=True)
@click.option("--at-least-once", is_flag=True)
@click.option("--every-update", is_flag=True, help="Write each update.")
@click.option("--combined", is_flag=True, help="Aggregate before the repartition topic.")
def main(
    kind: str,
    bootstrap: str,
    name: str,
    source: str,
    output: str,
    at_least_once: bool,
    every_update: bool,
    combined: bool,
) -> None:
    """Run one job until SIGTERM."""
    setting = Setting(
        bootstrap,
        name,
        source,
        output,
        exactly_once=not at_least_once,
        caches=not every_update,
        combined=combined,
    )
    run(CONSUMERS[kind](setting))


if __name__ == "__main__":
    main()
