"""Backfills compared with Spark SQL, and the handover with a hand-written producer.

``python -m benchmarks.backfill`` runs both sides in turns, in one Spark session, on the same topic
with the same reader. The first pair warms the JVM, and does not count. Results and state must be
equal; otherwise the exit code is 1. It prints median seconds of both sides, and ratios of pairs.
"""

from __future__ import annotations

import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import click
from confluent_kafka import Consumer, Producer, TopicPartition
from rich.console import Console
from rich.table import Table

from benchmarks.backfill.jobs import JOBS, BackfillJob, sentence, table_topology
from benchmarks.measure.cluster import Cluster, open_cluster
from headrace import serdes
from headrace.spark_bridge import backfill, local_session
from headrace.spark_bridge.stages import compute

START_MS = 1_700_000_000_000
PARTITIONS = 4
HANDOVER = "handover of keys"
Row = tuple[bytes | None, bytes]


def settings_of(bootstrap: str, source: str) -> dict[str, object]:
    """Return settings of a new application, whose topics are deleted with the source."""
    return {
        "application.id": f"{source}-{secrets.token_hex(4)}",
        "bootstrap.servers": bootstrap,
        "processing.guarantee": "exactly_once_v2",
    }


def fill(bootstrap: str, topic: str, rows: Iterator[Row]) -> None:
    """Write rows to alternating partitions, with timestamps 1 ms apart."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4"}
    )
    for number, (key, value) in enumerate(rows):
        while True:
            try:
                producer.produce(
                    topic, value, key, partition=number % PARTITIONS, timestamp=START_MS + number
                )
            except BufferError:
                producer.poll(0.1)
                continue
            break
    assert producer.flush(120) == 0


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    found = work()
    return time.perf_counter() - begun, found


def run_backfill(
    spark: Any, bootstrap: str, job: BackfillJob, topic: str
) -> tuple[float, dict[str, int]]:
    """Compute the stages without a handover; return the seconds and the state."""
    computed = compute(
        job.topology(topic),
        settings_of(bootstrap, topic),
        spark=spark,
        id="benchmark",
        outputs="skip",
        order=job.order,
    )
    seconds, _ = timed(computed.run)
    found = {
        (row["key"] or b"").decode(): serdes.long.deserialize(row["value"] or b"")
        for batch in computed.results.batches()
        for row in batch.to_pylist()
        if row["kind"] == "changelog"
    }
    computed.release()
    return seconds, found


def run_sql(
    spark: Any, bootstrap: str, job: BackfillJob, topic: str
) -> tuple[float, dict[str, int]]:
    """Run the SQL query; return the seconds and the result."""
    options = {"topic": topic, "bootstrap.servers": bootstrap, "compacted": "false"}
    rows = spark.read.format("changelog").options(**options).load()
    frame = spark.sql(job.sql.format(rows="{rows}"), rows=rows)
    frame = frame.persist()
    seconds, _ = timed(frame.count)
    found = {row["word"]: row["result"] for row in frame.collect()}
    frame.unpersist()
    return seconds, found


def write_transaction(bootstrap: str, topic: str, rows: list[Row], source: str) -> float:
    """Write records and offsets of a handover in one transaction; return the seconds it took."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": topic,
            "linger.ms": 50,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
            "transaction.timeout.ms": 600_000,
        }
    )
    group = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    producer.init_transactions(60)

    def write() -> None:
        producer.begin_transaction()
        for number, (key, value) in enumerate(rows):
            while True:
                try:
                    producer.produce(topic, value, key, timestamp=START_MS + number)
                except BufferError:
                    producer.poll(0.1)
                    continue
                break
        ends = [TopicPartition(source, p, len(rows) // PARTITIONS) for p in range(PARTITIONS)]
        producer.send_offsets_to_transaction(ends, group.consumer_group_metadata(), 60)
        producer.commit_transaction(120)

    seconds, _ = timed(write)
    group.close()
    return seconds


def compare_handover(
    spark: Any, cluster: Cluster, keys: int, pairs: int, console: Console
) -> list[list[float]]:
    """Return the seconds of the handover and of the hand-written producer in each pair."""
    name = f"bench-backfill-keys-{secrets.token_hex(3)}"
    cluster.create(name, partitions=PARTITIONS, config={"retention.ms": "-1"})
    rows: list[Row] = [(f"key-{n}".encode(), f"value-{n}".encode()) for n in range(keys)]
    fill(cluster.bootstrap, name, iter(rows))
    found = []
    for pair in range(pairs + 1):
        settings = settings_of(cluster.bootstrap, name)
        report = backfill(
            table_topology(name), settings, spark=spark, handover="driver", outputs="skip"
        )
        changelog = f"{settings['application.id']}-result-changelog"
        if cluster.read(changelog).last != dict(rows):
            raise SystemExit("the state after the handover differs from the input")
        topic = f"{name}-{pair}-producer"
        cluster.create(topic, partitions=PARTITIONS, config={"retention.ms": "-1"})
        producer_s = write_transaction(cluster.bootstrap, topic, rows, name)
        console.print(f"  handover {report.handover.seconds:.2f} s, producer {producer_s:.2f} s")
        found.append([report.handover.seconds, producer_s])
    cluster.delete(name)
    return found[1:]


def compare(
    spark: Any,
    cluster: Cluster,
    jobs: Sequence[BackfillJob],
    sentences: int,
    pairs: int,
    console: Console,
) -> dict[str, Any]:
    """Return the seconds of the backfill and of the SQL query of each job in each pair."""
    topic = f"bench-backfill-lines-{secrets.token_hex(3)}"
    cluster.create(topic, partitions=PARTITIONS, config={"retention.ms": "-1"})
    random = Random(7)
    lines = (sentence(n, random, 50_000).encode() for n in range(sentences))
    fill(cluster.bootstrap, topic, ((None, line) for line in lines))
    found: dict[str, list[list[float]]] = {job.name: [] for job in jobs}
    for pair in range(pairs + 1):
        for job in jobs:
            backfill_s, state = run_backfill(spark, cluster.bootstrap, job, topic)
            sql_s, expected = run_sql(spark, cluster.bootstrap, job, topic)
            if state != expected:
                raise SystemExit(f"{job.name}: the results differ")
            console.print(f"  {job.name}: backfill {backfill_s:.2f} s, SQL {sql_s:.2f} s")
            if pair:
                found[job.name].append([backfill_s, sql_s])
    cluster.delete(topic)
    return found


def table_of(results: dict[str, list[list[float]]]) -> Table:
    table = Table(title="median seconds, and ratios within the pairs")
    for title in ("job", "backfill", "compared", "ratio", "range"):
        table.add_column(title, justify="left" if title == "job" else "right")
    for name, pairs in results.items():
        ratios = [own / other for own, other in pairs]
        own_s, other_s = zip(*pairs, strict=True)
        table.add_row(
            name,
            f"{statistics.median(own_s):.2f}",
            f"{statistics.median(other_s):.2f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f}-{max(ratios):.2f}",
        )
    return table


@click.command()
@click.option("--bootstrap", help="Cluster to run on; a temporary broker by default.")
@click.option("--sentences", default=1_000_000, show_default=True, help="Sentences of eight words.")
@click.option("--keys", default=1_000_000, show_default=True, help="Keys of the handover.")
@click.option("--pairs", default=5, show_default=True, help="Measured pairs, after a warm-up.")
@click.option("--only", default="", help="Part of the name of a job.")
def main(bootstrap: str | None, sentences: int, keys: int, pairs: int, only: str) -> None:
    """Compare backfills with Spark SQL, and the handover with a hand-written producer."""
    console = Console()
    jobs = [job for job in JOBS if only in job.name]
    with (
        open_cluster(bootstrap) as cluster,
        local_session(config={"spark.driver.memory": "2g"}) as spark,
    ):
        results = compare(spark, cluster, jobs, sentences, pairs, console) if jobs else {}
        if only in HANDOVER:
            results[HANDOVER] = compare_handover(spark, cluster, keys, pairs, console)
    console.print(table_of(results))
    console.print(
        f"{sentences:,} sentences, {keys:,} keys, {os.cpu_count()} cores shared with Kafka"
    )


if __name__ == "__main__":
    main()
