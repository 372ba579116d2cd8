"""Backfills beside Spark SQL, and the hand-over beside a loop: ``python -m benchmarks.backfill``.

Both sides read the same topic with the same reader, in one session, in turns; the first turn is not
counted. What they compute is compared, and so is what is handed over; a difference ends the
benchmark with exit code 1. Ratios are taken within a pair.
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
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from rich.console import Console
from rich.table import Table

from benchmarks.backfill.jobs import JOBS, Job, sentence, table_topology
from benchmarks.measure.cluster import Cluster, open_cluster
from headrace import serdes
from headrace.spark_bridge import backfill, local_session
from headrace.spark_bridge.stages import compute

START_MS = 1_700_000_000_000
PARTITIONS = 4
HAND_OVER = "hand-over of keys"
Row = tuple[bytes | None, bytes]


def settings_of(bootstrap: str, source: str) -> dict[str, object]:
    """An application of its own, whose topics are deleted with the source."""
    return {
        "application.id": f"{source}-{secrets.token_hex(4)}",
        "bootstrap.servers": bootstrap,
        "processing.guarantee": "exactly_once_v2",
    }


def fill(bootstrap: str, topic: str, rows: Iterator[Row]) -> None:
    """Write rows to the partitions in turn, each a millisecond later: one order for both sides."""
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


def by_bridge(spark: Any, bootstrap: str, job: Job, topic: str) -> tuple[float, dict[str, int]]:
    """Compute the stages, without a hand-over."""
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


def by_sql(spark: Any, bootstrap: str, job: Job, topic: str) -> tuple[float, dict[str, int]]:
    options = {"topic": topic, "bootstrap.servers": bootstrap, "compacted": "false"}
    rows = spark.read.format("changelog").options(**options).load()
    frame = spark.sql(job.sql.format(rows="{rows}"), rows=rows)
    frame = frame.persist()
    seconds, _ = timed(frame.count)
    found = {row["word"]: row["result"] for row in frame.collect()}
    frame.unpersist()
    return seconds, found


def by_hand(bootstrap: str, topic: str, rows: list[Row], source: str) -> float:
    """What writes the same records and offsets in one transaction and does nothing else."""
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
        ends = [Place(source, p, len(rows) // PARTITIONS) for p in range(PARTITIONS)]
        producer.send_offsets_to_transaction(ends, group.consumer_group_metadata(), 60)
        producer.commit_transaction(120)

    seconds, _ = timed(write)
    group.close()
    return seconds


def hand_over(
    spark: Any, cluster: Cluster, keys: int, pairs: int, say: Console
) -> list[list[float]]:
    """Seconds of the hand-over and of the loop, pair by pair."""
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
            raise SystemExit("the state that was handed over is not that of the input")
        topic = f"{name}-{pair}-hand"
        cluster.create(topic, partitions=PARTITIONS, config={"retention.ms": "-1"})
        hand = by_hand(cluster.bootstrap, topic, rows, name)
        say.print(f"  hand-over: {report.handover.seconds:.2f} s, by hand {hand:.2f} s")
        found.append([report.handover.seconds, hand])
    cluster.delete(name)
    return found[1:]


def compare(
    spark: Any, cluster: Cluster, jobs: Sequence[Job], sentences: int, pairs: int, say: Console
) -> dict[str, Any]:
    """Seconds of each job by the bridge and by SQL, pair by pair."""
    topic = f"bench-backfill-lines-{secrets.token_hex(3)}"
    cluster.create(topic, partitions=PARTITIONS, config={"retention.ms": "-1"})
    random = Random(7)
    lines = (sentence(n, random, 50_000).encode() for n in range(sentences))
    fill(cluster.bootstrap, topic, ((None, line) for line in lines))
    found: dict[str, list[list[float]]] = {job.name: [] for job in jobs}
    for pair in range(pairs + 1):
        for job in jobs:
            bridge, mine = by_bridge(spark, cluster.bootstrap, job, topic)
            sql, wanted = by_sql(spark, cluster.bootstrap, job, topic)
            if mine != wanted:
                raise SystemExit(f"{job.name}: the results differ")
            say.print(f"  {job.name}: {bridge:.2f} s, SQL {sql:.2f} s")
            if pair:
                found[job.name].append([bridge, sql])
    cluster.delete(topic)
    return found


def table_of(results: dict[str, list[list[float]]]) -> Table:
    table = Table(title="seconds, median over the pairs; ratio within the pairs")
    for title in ("what", "bridge", "beside it", "ratio", "range"):
        table.add_column(title, justify="left" if title == "what" else "right")
    for name, pairs in results.items():
        ratios = [bridge / other for bridge, other in pairs]
        mine, others = zip(*pairs, strict=True)
        table.add_row(
            name,
            f"{statistics.median(mine):.2f}",
            f"{statistics.median(others):.2f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f}-{max(ratios):.2f}",
        )
    return table


@click.command()
@click.option("--bootstrap", help="Cluster to run on; a temporary broker by default.")
@click.option("--sentences", default=1_000_000, show_default=True, help="Of eight words.")
@click.option("--keys", default=1_000_000, show_default=True, help="To hand over.")
@click.option("--pairs", default=5, show_default=True, help="Counted, after one that is not.")
@click.option("--only", default="", help="What to measure: a part of its name in the table.")
def main(bootstrap: str | None, sentences: int, keys: int, pairs: int, only: str) -> None:
    """Compare backfills with Spark SQL, and the hand-over with a loop by hand."""
    say = Console()
    jobs = [job for job in JOBS if only in job.name]
    with (
        open_cluster(bootstrap) as cluster,
        local_session(config={"spark.driver.memory": "2g"}) as spark,
    ):
        results = compare(spark, cluster, jobs, sentences, pairs, say) if jobs else {}
        if only in HAND_OVER:
            results[HAND_OVER] = hand_over(spark, cluster, keys, pairs, say)
    say.print(table_of(results))
    say.print(f"{sentences:,} sentences, {keys:,} keys, {os.cpu_count()} cores shared with Kafka")


if __name__ == "__main__":
    main()
