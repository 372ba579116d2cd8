"""A year of orders from Parquet on Spark, then live: what did each customer spend so far?

    python -m examples.backfill

It takes about a minute and needs `pip install "headrace[spark,broker]"` and nothing else: it starts
a broker, writes a year of orders, archives them as Parquet and deletes them from the topic. Then
come the backfill, the live application with the orders of one more day, and a recount.
"""

from __future__ import annotations

import time
from collections import Counter
from operator import add
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace import KafkaStreams, StreamsBuilder, Topology, serdes
from headrace.spark_bridge import backfill, local_session, read_store
from headrace.streams.devbroker import DevBroker

START_MS, DAY_MS, PER_DAY = 1_704_067_200_000, 86_400_000, 100


def spending(orders: str = "orders", spent: str = "spending") -> Topology:
    """Build the topology, for history and for live records."""
    builder = StreamsBuilder()
    stream = builder.stream(orders, key=serdes.string, value=serdes.long)
    stream.group_by_key().reduce(add, store="spent").to_stream().to(spent)
    return builder.build()


def orders(first_day: int, last_day: int) -> list[tuple[int, str, int]]:
    """Yield time, customer and amount of the orders of some days, the same in every run."""
    numbers = range(first_day * PER_DAY, last_day * PER_DAY)
    return [(START_MS + n // PER_DAY * DAY_MS, f"c{n * 7919 % 500}", n % 97) for n in numbers]


def write(bootstrap: str, topic: str, some: list[tuple[int, str, int]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for timestamp, customer, amount in some:
        producer.produce(topic, serdes.long.serialize(amount), customer, timestamp=timestamp)
    producer.flush()


def archive(spark: Any, admin: AdminClient, options: dict[str, str], path: str) -> Any:
    """Move a topic's records into files, as a connector would do day by day."""
    spark.read.format("changelog").options(**options).load().write.parquet(path)
    kept = spark.read.parquet(path)
    ends = kept.groupBy("partition").agg({"offset": "max"}).collect()
    gone = [TopicPartition(options["topic"], partition, last + 1) for partition, last in ends]
    assert all(done.result() for done in admin.delete_records(gone).values())
    return kept


def main(work: Path, bootstrap: str, spark: Any, prefix: str = "") -> None:
    """Run the whole example; the last line confirms the result."""
    topic, to = f"{prefix}orders", f"{prefix}spending"
    topology, admin = spending(topic, to), AdminClient({"bootstrap.servers": bootstrap})
    settings = {"application.id": f"{to}-app", "bootstrap.servers": bootstrap,
                "processing.guarantee": "exactly_once_v2", "state.dir": str(work)}  # fmt: skip
    new = [NewTopic(name, 2, config={"retention.ms": "-1"}) for name in (topic, to)]
    assert all(done.result() is None for done in admin.create_topics(new).values())
    write(bootstrap, topic, orders(0, 365))
    options = {"topic": topic, "bootstrap.servers": bootstrap, "compacted": "false"}
    year = archive(spark, admin, options, str(work / "year"))
    report = backfill(topology, settings, spark=spark, source={topic: year})
    print(f"history: {report.records:,} orders, {report.keys} customers, {report.seconds:.1f} s")
    write(bootstrap, topic, orders(365, 366))
    with KafkaStreams(topology, settings) as app:
        app.start()
        while app.records_processed < PER_DAY:
            time.sleep(0.1)
    print(f"live: {app.records_processed} orders")
    expected: Counter[str] = Counter()
    for _, customer, amount in orders(0, 366):
        expected[customer] += amount
    rows = read_store(spark, topology, "spent", settings).collect()
    assert {row["key"]: row["value"] for row in rows} == expected, "not what a recount gives"
    print(f"state: the same as a recount of all {366 * PER_DAY:,} orders")


if __name__ == "__main__":
    with (
        TemporaryDirectory() as scratch,
        local_session() as session,
        DevBroker(Path(scratch, "broker"), port=0) as broker,
    ):
        main(Path(scratch), broker.bootstrap, session)
