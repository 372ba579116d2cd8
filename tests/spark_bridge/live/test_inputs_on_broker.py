"""Input with all that Kafka's topics have, through `backfill` on a real broker, and then live.

Expected is what a recount in plain Python makes of the records as their producers saw them
delivered: partition, offset, and whether their transaction was committed.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import confluent_kafka
import pytest

from headrace.spark_bridge import backfill
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.topics import Topics

YEAR_2023_MS = 1_680_000_000_000
HOT, HOT_SHARE = "hot", 0.8
BATCH = 40
HEADERS: tuple[list[tuple[str, bytes | None]] | None, ...] = (
    None,
    [("h", b"1"), ("h", b"2"), ("n", None)],
    [("h", b"1"), ("h", b"1")],
)

Folds = dict[str, int]
Changes = dict[str, list["str | None"]]


class Sent(NamedTuple):
    """A record before it is sent."""

    topic: str
    key: str | None
    value: str | None
    timestamp: int
    headers: list[tuple[str, bytes | None]] | None = None


class Seen(NamedTuple):
    """A record of a key, as it is copied."""

    value: str | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass
class Delivered:
    """A record that is in its topic."""

    sent: Sent
    partition: int
    offset: int


@dataclass
class Input:
    """Writes two topics, and remembers what is where.

    Args:
        bootstrap: the broker.
        events: a topic of events, some without a key, some without a value.
        table: a topic of rows, with tombstones.
    """

    bootstrap: str
    events: str
    table: str
    committed: list[Delivered] = field(default_factory=list)
    open: list[Delivered] = field(default_factory=list)
    _random: random.Random = field(default_factory=lambda: random.Random(7))
    _rows: set[str] = field(default_factory=set)
    _number: int = 0

    def batch(self, *, void: bool = False) -> list[Sent]:
        """The next records; `void` ones are never to be committed."""
        return [self._event() for _ in range(BATCH)] + [self._row(void) for _ in range(BATCH // 4)]

    def _event(self) -> Sent:
        self._number += 1
        key: str | None = HOT
        if self._random.random() > HOT_SHARE:
            key = self._random.choice([None, *(f"k{n}" for n in range(20))])
        value = None if self._random.random() < 0.1 else f"v{self._number % 5}-{self._number}"
        headers = self._random.choice(HEADERS)
        return Sent(self.events, key, value, self._time(), headers)

    def _row(self, void: bool) -> Sent:
        self._number += 1
        key = f"r{self._random.randrange(12)}"
        delete = key in self._rows and self._random.random() < 0.4
        if not void:
            (self._rows.discard if delete else self._rows.add)(key)
        return Sent(self.table, key, None if delete else f"row{self._number}", self._time())

    def _time(self) -> int:
        return YEAR_2023_MS + 1000 * self._number - self._random.randrange(5000)

    def write(self, fate: str, records: Sequence[Sent]) -> confluent_kafka.Producer:
        """Write records: plain, or in a transaction that is committed, aborted or left open."""
        settings = {"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random"}
        if fate != "plain":
            identity = f"{self.events}-{self._number}"
            settings |= {"transactional.id": identity, "transaction.timeout.ms": "800000"}
        producer = confluent_kafka.Producer(settings)
        if fate != "plain":
            producer.init_transactions()
            producer.begin_transaction()
        delivered: list[Delivered] = []
        for one in records:
            headers: Any = one.headers
            producer.produce(
                one.topic, one.value, one.key, timestamp=one.timestamp, headers=headers,
                on_delivery=_remembering(delivered, one),
            )  # fmt: skip
        assert producer.flush(30) == 0
        assert len(delivered) == len(records)
        if fate == "committed":
            producer.commit_transaction()
        elif fate == "aborted":
            producer.abort_transaction()
        if fate in ("committed", "plain"):
            self.committed += delivered
        elif fate == "open":
            self.open += delivered
        return producer

    def ends(self, topic: str) -> dict[int, int]:
        """Where what is decided ends: at the first record of the open transaction."""
        ends = kafka.ends(self.bootstrap, topic)
        for one in self.open:
            if one.sent.topic == topic:
                ends[one.partition] = min(ends[one.partition], one.offset)
        return ends

    def decided(self) -> list[Delivered]:
        """The committed records before those of the open transaction."""
        ends = {topic: self.ends(topic) for topic in (self.events, self.table)}
        return [d for d in self.committed if d.offset < ends[d.sent.topic][d.partition]]

    def decide(self, producer: confluent_kafka.Producer) -> None:
        """Commit the open transaction."""
        producer.commit_transaction()
        self.committed += self.open
        self.open = []


def _remembering(
    delivered: list[Delivered], one: Sent
) -> Callable[[object, confluent_kafka.Message], None]:
    def remember(error: object, message: confluent_kafka.Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            delivered.append(Delivered(one, partition, offset))

    return remember


@dataclass
class Expected:
    """What comes of records: a recount."""

    copies: dict[str | None, list[Seen]]
    folds: Folds
    counts: Counter[str]
    changes: Changes

    @classmethod
    def of(cls, delivered: Iterable[Delivered], events: str) -> Expected:
        copies: dict[str | None, list[Seen]] = defaultdict(list)
        folds: Folds = {}
        counts: Counter[str] = Counter()
        changes: Changes = defaultdict(list)
        for one in sorted(delivered, key=lambda d: d.offset):  # of a key, all in one partition
            topic, key, value, timestamp, headers = one.sent
            if topic != events:
                assert key is not None
                changes[key].append(value)
                continue
            copies[key].append(Seen(value, timestamp, tuple(headers or ())))
            if value is None:
                continue
            counts[value.partition("-")[0]] += 1
            if key is not None:
                folds[key] = crc32(value.encode(), folds.get(key, 0))
        copies[None].sort(key=repr)  # from several partitions
        return cls(dict(copies), folds, counts, dict(changes))


class Case:
    """An application of four steps that each keep or pass on what they see."""

    def __init__(self, topics: Topics, directory: Path, partitions: int) -> None:
        self.bootstrap = topics.bootstrap
        events = topics.create("events", partitions=partitions)
        table = topics.create("table", partitions=partitions)
        self.input = Input(topics.bootstrap, events, table)
        self.copies = topics.create("copies", partitions=partitions)
        self.counts = topics.create("counts", partitions=3)
        self.changes = topics.create("changes", partitions=partitions)
        self.settings = settings_of(topics, directory, null_key_policy="drop")
        self.topology = self._topology()

    def _topology(self) -> Topology:
        builder = StreamsBuilder()
        text: Any = {"key": serdes.string, "value": serdes.string}
        events = builder.stream(self.input.events, **text)
        events.to(self.copies, **text)
        events.group_by_key().aggregate(
            lambda: 0,
            lambda _, value, fold: crc32(value.encode(), fold),
            value=serdes.long,
            store="folds",
        )
        (
            events.filter(lambda _, value: value is not None)
            .group_by(lambda _, value: value.partition("-")[0], key=serdes.string, name="by-kind")
            .count(store="counts")
            .to_stream()
            .to(self.counts, key=serdes.string, value=serdes.long)
        )
        rows = builder.table(self.input.table, **text, store="rows")
        rows.to_stream().to(self.changes, **text)
        return builder.build()

    def _state(self, store: str) -> dict[str, bytes]:
        name = f"{self.settings['application.id']}-{store}-changelog"
        last = {record.key: record.value for record in kafka.read(self.bootstrap, name)}
        return {k.decode(): v for k, v in last.items() if k is not None and v is not None}

    def seen(self) -> dict[str | None, list[Seen]]:
        """The copies of each key; it stays in one partition."""
        found: dict[str | None, list[Seen]] = defaultdict(list)
        for record in kafka.read(self.bootstrap, self.copies):
            value = None if record.value is None else record.value.decode()
            seen = Seen(value, record.timestamp, tuple(record.headers or ()))
            found[None if record.key is None else record.key.decode()].append(seen)
        found[None].sort(key=repr)
        return dict(found)

    def check(self, expected: Expected) -> None:
        """State and outputs are those of the recount."""
        assert self.seen() == expected.copies
        long = serdes.long.deserialize
        assert {k: long(v) for k, v in self._state("folds").items()} == expected.folds
        assert {k: long(v) for k, v in self._state("counts").items()} == expected.counts
        counted: dict[str, list[int]] = defaultdict(list)
        for record in kafka.read(self.bootstrap, self.counts):
            assert record.key is not None
            assert record.value is not None
            counted[record.key.decode()].append(long(record.value))
        assert counted == {key: list(range(1, n + 1)) for key, n in expected.counts.items()}
        last = {key: values[-1] for key, values in expected.changes.items()}
        rows = {key: value.decode() for key, value in self._state("rows").items()}
        assert rows == {key: value for key, value in last.items() if value is not None}
        changed: Changes = defaultdict(list)
        for record in kafka.read(self.bootstrap, self.changes):
            assert record.key is not None
            value = None if record.value is None else record.value.decode()
            changed[record.key.decode()].append(value)
        assert changed == expected.changes

    def has(self, topic: str, count: int) -> bool:
        """Whether so many records were committed."""
        return len(kafka.read(self.bootstrap, topic)) >= count

    def expected(self, delivered: Iterable[Delivered]) -> Expected:
        return Expected.of(delivered, self.input.events)


@pytest.mark.parametrize("partitions", [1, 8])
@pytest.mark.parametrize("handover", ["driver", "partitioned"])
def test_whatever_topics_have_is_counted_as_in_a_recount(
    spark: Any, topics: Topics, tmp_path: Path, handover: Any, partitions: int
) -> None:
    """Aborted and open transactions, headers, nulls, tombstones, times of 2023, one hot key."""
    case = Case(topics, tmp_path, partitions)
    written = case.input
    for fate in ("plain", "committed", "aborted") * 4:
        written.write(fate, written.batch(void=fate == "aborted"))
    still_open = written.write("open", written.batch())
    written.write("plain", written.batch())
    written.write("aborted", written.batch(void=True))
    decided = written.decided()
    assert 0 < len(decided) < len(written.committed), "all or nothing is behind what is open"

    report = backfill(case.topology, case.settings, spark=spark, handover=handover, id="bf-1")
    for topic in (written.events, written.table):
        group = case.settings["application.id"]
        assert kafka.committed(case.bootstrap, group, topic) == written.ends(topic)
    case.check(case.expected(decided))
    events = [d.sent.key for d in decided if d.sent.topic == written.events]
    assert events.count(HOT) > 0.7 * len(events)
    assert report.records > len(decided), "each value went through the repartition topic, too"

    written.decide(still_open)
    written.write("committed", written.batch())
    everything = case.expected(written.committed)
    wanted = {
        case.copies: sum(map(len, everything.copies.values())),
        case.changes: sum(map(len, everything.changes.values())),
        case.counts: everything.counts.total(),
    }
    with live(case.topology, case.settings) as app:
        for topic, count in wanted.items():
            app.wait(partial(case.has, topic, count), what=f"{count} records in {topic}")
    case.check(everything)
