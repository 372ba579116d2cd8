"""The input of a run: made from a seed, numbered so that loss, doubling and order show.

Each order has a number of its own, ``n``, and so have payments and changes. Batches are
transactions of the input's producers: most are committed, some aborted, and some are left open
until the broker aborts them. Only what was committed counts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import confluent_kafka
import orjson

from tests.chaos.application import topic

Outcome = Literal["committed", "aborted", "open"]

_FIRST_TIMESTAMP_MS = 1_700_000_000_000
_STEP_MS = 100
"""Between two records, so that each attempt of a batch has timestamps of its own."""
_LATE_MS = 5_000
"""How late an order or a payment comes at most."""
_AGAIN = 1 << 40
"""Added to the numbers of a batch each time that it has to be written again."""


class InputRecord(NamedTuple):
    """A record for one of the inputs, named without a run's prefix."""

    topic: str
    key: bytes
    value: bytes | None
    timestamp: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One transaction of an input's producer."""

    outcome: Outcome
    records: tuple[InputRecord, ...]


@dataclass(frozen=True, slots=True)
class InputPlan:
    """What to write.

    Args:
        seed: of everything random in it.
        orders: how many are committed; aborted ones come on top.
        accounts: how many keys.
        regions: how many keys behind the repartition topic.
        batch: records of a transaction.
        changes: the share of changes of accounts among the records.
        payments: the share of payments among them.
        late: the share of orders and payments that come late.
        aborted: the share of batches that are aborted.
        open: the share of batches that are left open.
    """

    seed: int = 0
    orders: int = 1000
    accounts: int = 100
    regions: int = 12
    batch: int = 100
    changes: float = 0.1
    payments: float = 0.15
    late: float = 0.2
    aborted: float = 0.1
    open: float = 0.0

    def batches(self) -> Iterator[Batch]:
        """Yield the transactions; the same for the same plan."""
        rng = random.Random(self.seed)
        sequence: Counter[int] = Counter()
        number, left = 0, self.orders
        while left > 0:
            draw = rng.random()
            outcome: Outcome = "committed"
            if draw < self.aborted:
                outcome = "aborted"
            elif draw < self.aborted + self.open:
                outcome = "open"
            # Kept apart, so that an aborted order takes no place in its account's sequence.
            own = sequence if outcome == "committed" else Counter(sequence)
            records: list[InputRecord] = []
            while len(records) < self.batch and left > 0:
                draw = rng.random()
                if draw < self.changes:
                    records.append(self._change(rng, number))
                elif draw < self.changes + self.payments:
                    records.append(self._payment(rng, number))
                else:
                    records.append(self._order(rng, number, own))
                    left -= outcome == "committed"
                number += 1
            yield Batch(outcome, tuple(records))

    def _order(self, rng: random.Random, n: int, sequence: Counter[int]) -> InputRecord:
        account = self._account(rng)
        sequence[account] += 1
        order = {
            "amount": rng.randrange(1, 1 << 30),
            "n": n,
            "region": f"region-{rng.randrange(self.regions)}",
            "seq": sequence[account],
        }
        return InputRecord("orders", _key(account), orjson.dumps(order), self._time(rng, n))

    def _payment(self, rng: random.Random, n: int) -> InputRecord:
        payment = orjson.dumps({"payment": n})
        return InputRecord("payments", _key(self._account(rng)), payment, self._time(rng, n))

    def _account(self, rng: random.Random) -> int:
        return int(rng.random() ** 2 * self.accounts)

    def _time(self, rng: random.Random, n: int) -> int:
        late = rng.randrange(_LATE_MS) // _STEP_MS if rng.random() < self.late else 0
        return _timestamp(n - late)

    def _change(self, rng: random.Random, n: int) -> InputRecord:
        account = _key(rng.randrange(self.accounts))
        change = orjson.dumps({"change": n, "limit": rng.randrange(1000)})
        is_end = rng.random() < 0.1
        return InputRecord("accounts", account, None if is_end else change, _timestamp(n))


def _key(account: int) -> bytes:
    return b"account-%06d" % account


def _timestamp(number: int) -> int:
    return _FIRST_TIMESTAMP_MS + number * _STEP_MS


class InputWriter:
    """Writes batches to a cluster, transaction by transaction, until each is as it should be.

    Args:
        bootstrap: brokers to find the cluster by.
        prefix: in front of the topics' names.
        open_ms: when the broker aborts what was left open, at the earliest.
        patience_s: how long one call may take while brokers are away.
    """

    def __init__(
        self, bootstrap: str, prefix: str, *, open_ms: int = 10_000, patience_s: float = 60
    ) -> None:
        self._bootstrap = bootstrap
        self._prefix = prefix
        self._open_ms = open_ms
        self._patience_s = patience_s
        self._opened = 0
        self._producer: confluent_kafka.Producer | None = None
        self._left_open: list[confluent_kafka.Producer] = []
        self.again = 0
        """How many batches had to be written more than once."""

    def write(self, batches: Iterable[Batch], *, between: Callable[[], None] | None = None) -> None:
        """Write batches; `between` is called after each, to pace the run."""
        for batch in batches:
            if batch.outcome == "open":
                self._leave_open(batch)
            else:
                self._write_until_done(batch)
            if between is not None:
                between()

    def close(self) -> None:
        """Let go of the producers; what is open stays so until the broker aborts it."""
        self._producer = None
        self._left_open.clear()

    def _write_until_done(self, batch: Batch, attempts: int = _STEP_MS) -> None:
        for attempt in range(attempts):
            try:
                self._transaction(_numbered(batch, attempt))
                return
            except confluent_kafka.KafkaException as error:
                # Perhaps it was committed: its records are other orders than those of the next.
                if attempt == attempts - 1:
                    raise
                print(f"input batch again: {error.args[0]}")
                self.again += 1
                self._producer = None

    def _transaction(self, batch: Batch) -> None:
        producer = self._producer or self._new("inputs", 60_000)
        self._producer = producer
        self._send(producer, batch)
        if batch.outcome == "aborted":
            producer.abort_transaction(self._patience_s)
        else:
            producer.commit_transaction(self._patience_s)

    def _leave_open(self, batch: Batch) -> None:
        self._opened += 1
        producer = self._new(f"open-{self._opened}", self._open_ms)
        try:
            self._send(producer, batch)
        except confluent_kafka.KafkaException as error:
            print(f"batch left half written: {error.args[0]}")
        self._left_open.append(producer)

    def _send(self, producer: confluent_kafka.Producer, batch: Batch) -> None:
        producer.begin_transaction()
        for record in batch.records:
            producer.produce(
                topic(self._prefix, record.topic),
                record.value,
                record.key,
                timestamp=record.timestamp,
            )
        producer.flush(self._patience_s)

    def _new(self, name: str, timeout_ms: int) -> confluent_kafka.Producer:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": f"{self._prefix}{name}",
                "transaction.timeout.ms": timeout_ms,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "log_level": 2,
            }
        )
        producer.init_transactions(self._patience_s)
        return producer


def _numbered(batch: Batch, attempt: int) -> Batch:
    """The batch as it is written the next time: other numbers, so no order is there twice."""
    if attempt == 0:
        return batch
    return replace(batch, records=tuple(_renumbered(r, attempt) for r in batch.records))


def _renumbered(record: InputRecord, attempt: int) -> InputRecord:
    timestamp = record.timestamp + attempt
    if record.value is None:
        return record._replace(timestamp=timestamp)
    name = {"orders": "n", "accounts": "change", "payments": "payment"}[record.topic]
    fields = orjson.loads(record.value)
    fields[name] += attempt * _AGAIN
    return record._replace(value=orjson.dumps(fields), timestamp=timestamp)
