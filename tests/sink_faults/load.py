"""The input: transactions of a raw producer, a fifth of them aborted.

python -m tests.sink_faults.load '{"bootstrap": ..., "topic": ..., "rate": 2000, ...}'

A value is a number that no other has; those of transactions that are aborted on purpose begin with
`aborted`. A twentieth of the records delete their key.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

ABORTED = "aborted"
_ABORTED_SHARE, _DELETED_SHARE = 0.2, 0.05
_RECORDS_MAX = 1_000
_CALL_S = 30.0


@dataclass(frozen=True)
class Plan:
    """What to write.

    Args:
        rate: records a second.
        report: the file that tells how many are committed.
    """

    bootstrap: str
    topic: str
    rate: int
    keys: int
    seed: int
    report: str


class Load:
    """Writes until it is told to end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._dice = random.Random(plan.seed)
        self._producers = 0
        self._producer = self._new_producer()
        self._next = 0
        self.committed = 0
        self.aborted = 0
        self.ends = False

    def _new_producer(self) -> Producer:
        self._producers += 1
        while True:
            producer = Producer(
                {
                    "bootstrap.servers": self._plan.bootstrap,
                    # One name, so that what the one before has left open is aborted.
                    "transactional.id": f"{self._plan.topic}-load",
                    "transaction.timeout.ms": 20_000,
                    "linger.ms": 5,
                    "log_level": 0,
                    "partitioner": "murmur2_random",
                    "reconnect.backoff.max.ms": 500,
                }
            )
            with suppress(KafkaException):
                producer.init_transactions(_CALL_S)
                return producer
            time.sleep(0.5)

    def run(self) -> None:
        """Write, at the rate that is asked for."""
        began, written = time.monotonic(), 0
        while not self.ends:
            count = self._dice.randrange(1, _RECORDS_MAX)
            is_aborted = self._dice.random() < _ABORTED_SHARE
            try:
                self._transaction(count, is_aborted=is_aborted)
            except (KafkaException, BufferError):
                # Whether it was committed, the topic knows.
                self._producer = self._new_producer()
            written += count
            self._tell()
            ahead_s = written / self._plan.rate - (time.monotonic() - began)
            if ahead_s > 0:
                time.sleep(min(ahead_s, 1.0))
            elif ahead_s < -5:
                began, written = time.monotonic(), 0  # brokers were away

    def _transaction(self, count: int, *, is_aborted: bool) -> None:
        producer, dice = self._producer, self._dice
        producer.begin_transaction()
        for _ in range(count):
            key = f"k{dice.randrange(self._plan.keys)}"
            number, self._next = self._next, self._next + 1
            value: str | None = f"{ABORTED}-{number}" if is_aborted else str(number)
            if not is_aborted and dice.random() < _DELETED_SHARE:
                value = None
            producer.produce(self._plan.topic, value, key)
        if is_aborted:
            producer.flush(_CALL_S)  # so that they are in the topic
            self._insist(producer.abort_transaction)
            self.aborted += count
        else:
            self._insist(producer.commit_transaction)
            self.committed += count

    def _insist(self, call: Any) -> None:
        while True:
            try:
                call(_CALL_S)
                return
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if not error.retriable():
                    raise

    def _tell(self) -> None:
        text = json.dumps({"committed": self.committed, "aborted": self.aborted})
        new = Path(self._plan.report).with_suffix(".new")
        new.write_text(text)
        new.replace(self._plan.report)


def main() -> None:
    load = Load(Plan(**json.loads(sys.argv[1])))

    def end(*_: object) -> None:
        load.ends = True

    signal.signal(signal.SIGTERM, end)
    load.run()


if __name__ == "__main__":
    main()
