"""The checker on a real run: a sound one is found sound, and each damage to its topics is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
import pytest

from tests.chaos import application
from tests.chaos.application import (
    INPUTS,
    OUTPUTS,
    PARTITIONS,
    REPARTITIONS,
    STORES,
    application_id,
    repartition_topic,
    topic,
)
from tests.chaos.checker import Verdict, check
from tests.chaos.concurrent_reader import ConcurrentReader
from tests.chaos.expectations import recount
from tests.chaos.history import History
from tests.chaos.inputs import InputPlan, InputWriter
from tests.chaos.reader import read_history
from tests.support import kafka
from tests.support.live import live
from tests.support.topics import Topics

PLAN = InputPlan(seed=4, orders=400, accounts=15, batch=20, aborted=0.25, open=0.1)


@dataclass(frozen=True)
class Run:
    """One run of the application over the input of `PLAN`."""

    bootstrap: str
    prefix: str
    directory: Path
    guarantee: str = "exactly_once_v2"
    caches: bool = False

    def process(self) -> ConcurrentReader:
        """Write the input and process all of it."""
        writer = InputWriter(self.bootstrap, self.prefix, open_ms=1000)
        writer.write(PLAN.batches())
        writer.close()
        reader = ConcurrentReader(self.bootstrap, self.prefix)
        reader.start()
        settings = application.settings(
            self.bootstrap,
            self.directory,
            prefix=self.prefix,
            guarantee=self.guarantee,
            caches=self.caches,
            commit_interval_ms=50,
            poll_ms=10,
            worker_id="w",
        )
        with live(application.build_topology(self.prefix), settings) as app:
            app.wait(self._is_drained, what="all of the input")
        return reader

    def _is_drained(self) -> bool:
        names = [topic(self.prefix, name) for name in INPUTS]
        # First: before the broker has aborted what was left open, not all of it can be read.
        if any(kafka.ends(self.bootstrap, n) != self._stable_ends(n) for n in names):
            return False
        between = [repartition_topic(self.prefix, name) for name in REPARTITIONS]
        return all(map(self._is_processed, [*names, *between]))

    def _is_processed(self, name: str) -> bool:
        last = {r.partition: r.offset for r in kafka.read(self.bootstrap, name)}
        done = kafka.committed(self.bootstrap, application_id(self.prefix), name)
        return all(done.get(partition, 0) > offset for partition, offset in last.items())

    def _stable_ends(self, name: str) -> dict[int, int]:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "none",
             "isolation.level": "read_committed"}
        )  # fmt: skip
        try:
            places = [confluent_kafka.TopicPartition(name, p) for p in range(INPUTS["orders"])]
            return {p.partition: consumer.get_watermark_offsets(p, timeout=10)[1] for p in places}
        finally:
            consumer.close()

    def history(self, reader: ConcurrentReader | None = None) -> History:
        observed = reader.stop() if reader is not None else {}
        return read_history(
            self.bootstrap,
            self.prefix,
            state_dirs=[self.directory],
            observed=observed,
            patience_s=3,
        )

    def verdict(self) -> Verdict:
        return check(self.history(), guarantee="exactly_once_v2", caches=self.caches)


def make_run(topics: Topics, directory: Path, **more: bool | str) -> Run:
    prefix = topics.name("chaos") + "-"
    for name, partitions in (INPUTS | OUTPUTS).items():
        topics.create_named(topic(prefix, name), partitions=partitions)
    return Run(topics.bootstrap, prefix, directory, **more)  # type: ignore[arg-type]


@contextmanager
def open_transaction(run: Run, *, timeout_ms: int = 60_000) -> Iterator[confluent_kafka.Producer]:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": run.bootstrap,
            "transactional.id": f"{run.prefix}hanging",
            "transaction.timeout.ms": timeout_ms,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    yield producer
    producer.abort_transaction(30)


@pytest.mark.slow
@pytest.mark.parametrize("caches", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_run_is_found_sound_and_then_what_was_done_to_it(
    topics: Topics, tmp_path: Path, caches: bool
) -> None:
    run = make_run(topics, tmp_path, caches=caches)
    reader = run.process()
    history = run.history(reader)
    verdict = check(history, guarantee="exactly_once_v2", caches=caches)
    assert verdict.ok, verdict.report()
    assert verdict.figures["orders"] == PLAN.orders
    assert verdict.figures["orders of aborted transactions"] > PLAN.orders / 10
    assert verdict.figures["local stores"] == PARTITIONS * len(STORES)
    assert verdict.figures["stores behind their changelogs"] == 0
    assert verdict.figures["markers"] > 4 * len(OUTPUTS)
    assert verdict.figures["records seen by the concurrent reader"] > PLAN.orders

    with open_transaction(run) as producer:
        producer.produce(topic(run.prefix, "echo"), b"x", b"x", partition=1)
        producer.flush(10)
        verdict = run.verdict()
        assert verdict.kinds == {"hanging_transaction"}, verdict.report()
    assert run.verdict().ok

    order = next(iter(recount(history).known.values()))
    kafka.write(
        run.bootstrap,
        topic(run.prefix, "echo"),
        [(order.key, order.value)],
        timestamp=order.timestamp,
    )
    verdict = run.verdict()
    assert verdict.kinds == {"doubled"}, verdict.report()
    kafka.set_committed(
        run.bootstrap,
        application_id(run.prefix),
        topic(run.prefix, "orders"),
        {order.partition: order.offset},
    )
    verdict = run.verdict()
    assert {"doubled", "lost", "torn_transaction"} <= verdict.kinds, verdict.report()


def test_at_least_once_is_found_sound_and_repeats_are_counted(
    topics: Topics, tmp_path: Path
) -> None:
    run = make_run(topics, tmp_path, guarantee="at_least_once")
    history = run.history(run.process())
    verdict = check(history, guarantee="at_least_once", caches=False)
    assert verdict.ok, verdict.report()
    assert not verdict.duplicates
    order = next(iter(recount(history).known.values()))
    echo = topic(run.prefix, "echo")
    kafka.write(run.bootstrap, echo, [(order.key, order.value)], timestamp=order.timestamp)
    verdict = check(run.history(), guarantee="at_least_once", caches=False)
    assert verdict.ok, verdict.report()
    assert verdict.duplicates == {"echo": 1}
