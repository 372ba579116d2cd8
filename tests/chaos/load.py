"""The input, written while things fail: orders, payments and accounts, some in transactions.

python -m tests.chaos.load '{"bootstrap": "...", "prefix": "", "rate": 600, "seed": 1, ...}'

What is in the topics is what the application must have processed, so the checker reads the topics.
This process only has to write enough, and to write what is awkward: transactions that are aborted,
and transactions that are left open until the broker ends them.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import orjson
from confluent_kafka import KafkaException

from tests.chaos import application

ACCOUNTS = 400
REGIONS = 24
OPEN_MS = 3_000
"""How long the broker waits for a transaction that its producer has forgotten."""
_TICK_S = 0.02
_ACCOUNT_EVERY = 12
_PAYMENT_EVERY = 4
_LATE_SHARE = 0.1
_LATE_MS = 6_000
"""How late an order or a payment is at most: beyond the grace periods of all windows."""


class Written(NamedTuple):
    """A record of an input."""

    topic: str
    key: bytes
    value: bytes | None
    timestamp: int


class Numbers:
    """Numbers of orders and timestamps of account changes: each is given out once."""

    def __init__(self, first: int = 0) -> None:
        self._lock = threading.Lock()
        self._next = first
        self._last_ms = 0

    def take(self) -> int:
        with self._lock:
            self._next += 1
            return self._next - 1

    def take_ms(self, now_ms: int) -> int:
        """Return the time, or the next millisecond that was not given out yet.

        A deletion is known by its key and its timestamp alone: two of one key in one millisecond
        could not be told apart, and the row between them would count as no input.
        """
        with self._lock:
            self._last_ms = max(now_ms, self._last_ms + 1)
            return self._last_ms


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Orders:
    """Makes the records of the inputs."""

    def __init__(
        self, seed: str, numbers: Numbers, prefix: str, *, now_ms: Callable[[], int] = _now_ms
    ) -> None:
        self._now_ms = now_ms
        self._choose = random.Random(seed)
        self._numbers = numbers
        self._orders = application.topic(prefix, "orders")
        self._accounts = application.topic(prefix, "accounts")
        self._payments = application.topic(prefix, "payments")

    def next(self) -> Written:
        """A record as `inputs` makes them, of this moment or some time ago."""
        now_ms = self._now_ms()
        choose, number = self._choose, self._numbers.take()
        account = b"account-%06d" % min(
            choose.randrange(ACCOUNTS), choose.randrange(ACCOUNTS)
        )  # low ones more often
        if number % _ACCOUNT_EVERY == 0:
            change = {"change": number, "limit": choose.randrange(1_000)}
            is_end = choose.random() < 0.1
            value = None if is_end else orjson.dumps(change)
            return Written(self._accounts, account, value, self._numbers.take_ms(now_ms))
        if choose.random() < _LATE_SHARE:
            now_ms -= choose.randrange(_LATE_MS)
        if number % _PAYMENT_EVERY == 1:
            return Written(self._payments, account, orjson.dumps({"payment": number}), now_ms)
        region = f"region-{choose.randrange(REGIONS):02d}"
        order = {"amount": choose.randrange(1, 1 << 30), "n": number, "region": region}
        return Written(self._orders, account, orjson.dumps(order), now_ms)


class Load:
    """Writes until it is told to stop.

    Args:
        bootstrap: brokers.
        prefix: of the topics' names.
        rate: records a second; bursts and lulls come on top.
        seed: of all choices.
        first: the number of the first order; another part of a run has written those before.
        steady: whether the rate is always the same, without bursts and lulls.
        limit: records after which the plain producer rests; 0 for none.
        report: file for what was written so far, JSON.
    """

    def __init__(
        self,
        *,
        bootstrap: str,
        prefix: str,
        rate: int,
        seed: str,
        limit: int,
        report: str,
        first: int = 0,
        steady: bool = False,
    ) -> None:
        self._bootstrap = bootstrap
        self._prefix = prefix
        self._rate = rate
        self._seed = seed
        self._limit = limit
        self._report = Path(report)
        self._numbers = Numbers(first)
        self._steady = steady
        self._stop = threading.Event()
        self.counts = {
            "written": 0,
            "failed": 0,
            "committed_transactions": 0,
            "aborted_transactions": 0,
            "forgotten_transactions": 0,
            "broken_transactions": 0,
        }

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Write until `stop`, then wait until everything is on the brokers."""
        transactions = threading.Thread(target=self._write_transactions, name="transactions")
        transactions.start()
        producer = self._plain_producer()
        orders = Orders(f"plain-{self._seed}", self._numbers, self._prefix)
        choose = random.Random(f"pace-{self._seed}")
        due, owed, next_report = time.monotonic(), 0.0, 0.0
        factor, factor_until = 1.0, 0.0
        while not self._stop.is_set():
            now = time.monotonic()
            if now >= factor_until and not self._steady:
                factor, factor_until = choose.choice((0.3, 1, 1, 1, 2)), now + choose.uniform(1, 6)
            owed = min(owed + (now - due) * self._rate * factor, 5.0 * self._rate)
            due = now
            if self._limit and self.counts["written"] >= self._limit:
                owed = 0.0
            while owed >= 1 and not self._stop.is_set():
                self._produce(producer, orders.next())
                owed -= 1
            producer.poll(0)
            if now >= next_report:
                self._write_report()
                next_report = now + 0.5
            self._stop.wait(_TICK_S)
        transactions.join()
        # The last records of all partitions are plain ones.
        for _ in range(2_000):
            self._produce(producer, orders.next())
        left = producer.flush(180)
        self.counts["failed"] += left
        self._write_report()

    def _plain_producer(self) -> confluent_kafka.Producer:
        return confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 0,
                "reconnect.backoff.max.ms": 1_000,
                "on_delivery": self._delivered,
            }
        )

    def _produce(self, producer: confluent_kafka.Producer, record: Written) -> None:
        while True:
            try:
                producer.produce(record.topic, record.value, record.key, timestamp=record.timestamp)
            except BufferError:
                producer.poll(0.1)
            else:
                return

    def _delivered(self, error: object, message: object) -> None:
        self.counts["failed" if error else "written"] += 1

    # -- transactions --------------------------------------------------------------------------

    def _write_transactions(self) -> None:
        choose = random.Random(f"transactions-{self._seed}")
        orders = Orders(f"in-transactions-{self._seed}", self._numbers, self._prefix)
        producer: confluent_kafka.Producer | None = None
        forgotten: list[tuple[float, confluent_kafka.Producer]] = []
        number = 0
        while not self._stop.wait(choose.uniform(0.3, 2.0)):
            ending = choose.choices(("committed", "aborted", "forgotten"), (5, 4, 1))[0]
            try:
                if producer is None:
                    number += 1
                    producer = self._transactional_producer(number)
                self._write_transaction(producer, orders, choose, ending)
            except KafkaException:
                # A broker was lost: nobody cares for the transaction, the next one is new.
                ending, producer = "broken", None
            self.counts[f"{ending}_transactions"] += 1
            if ending == "forgotten" and producer is not None:
                forgotten.append((time.monotonic(), producer))
            if ending != "committed":
                # A follower that catches up writes a wrong index where an aborted transaction is
                # followed by another one of the same producer: see docs/how-we-test/chaos.md.
                producer = None
            forgotten = [(at, p) for at, p in forgotten if time.monotonic() - at < 15]

    def _transactional_producer(self, number: int) -> confluent_kafka.Producer:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "partitioner": "murmur2_random",
                "transactional.id": f"{self._prefix}load-{number}",
                "transaction.timeout.ms": OPEN_MS,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        producer.init_transactions(20)
        return producer

    def _write_transaction(
        self,
        producer: confluent_kafka.Producer,
        orders: Orders,
        choose: random.Random,
        ending: str,
    ) -> None:
        producer.begin_transaction()
        # One account, so that an open transaction holds up one partition and not all.
        record = orders.next()
        key = record.key
        for _ in range(choose.randrange(1, 30)):
            producer.produce(record.topic, record.value, key, timestamp=record.timestamp)
            while (following := orders.next()).topic != record.topic:
                pass
            record = following
        producer.flush(5)
        if ending == "committed":
            producer.commit_transaction(20)
        elif ending == "aborted":
            producer.abort_transaction(20)

    def _write_report(self) -> None:
        draft = self._report.with_suffix(".new")
        draft.write_text(json.dumps(self.counts))
        draft.replace(self._report)


def main(arguments: dict[str, Any]) -> int:
    load = Load(**arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: load.stop())
    load.run()
    return 1 if load.counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
