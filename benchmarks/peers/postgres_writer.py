"""Writers of rows into PostgreSQL: a Headrace application, and a hand-written consumer.

The consumer has the guarantee of the application: it reads committed records, and writes rows and
the next position in one transaction, which fails if another process has changed the position. Both
run until SIGTERM.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click
import orjson
import psycopg
from confluent_kafka import Consumer, TopicPartition

from headrace.streams.app import KafkaStreams
from headrace.streams.connectors.postgres import PostgresSink
from headrace.topology import StreamsBuilder, serdes

COLUMNS = {"id": str, "n": int, "price": float}
DEFINITION = "(id text NOT NULL, n bigint NOT NULL, price double precision NOT NULL"
BATCH = 10_000
COMMIT_MS = 100
TIMEOUT_S = 30.0

_POSITIONS = (
    "CREATE TABLE IF NOT EXISTS headrace_positions (name text, source text, partition integer, "
    "next bigint NOT NULL, PRIMARY KEY (name, source, partition))"
)
_UPSERT = (
    "INSERT INTO rows SELECT * FROM unnest(%s::text[], %s::bigint[], %s::double precision[]) "
    "ON CONFLICT (id) DO UPDATE SET n = excluded.n, price = excluded.price"
)


def run_application(
    bootstrap: str,
    run: str,
    source: str,
    database: str,
    state: str,
    *,
    keyed: bool,
    direct: bool,
) -> None:
    """Run the application: one sink, with an internal topic before it unless it is direct."""
    key: dict[str, Any] = {"key": "id"} if keyed else {}
    row = None if keyed else _row
    sink = PostgresSink(database, "rows", COLUMNS, row=row, create=True, **key)
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.json)
    stream.to_sink(sink, name="keep", direct=direct)
    settings = {
        "application.id": run,
        "bootstrap.servers": bootstrap,
        "processing.guarantee": "exactly_once_v2",
        "commit.interval.ms": COMMIT_MS,
        "state.dir": state,
    }
    KafkaStreams(builder.build(), settings).run()


def _row(key: Any, value: Any) -> dict[str, Any]:
    return {"id": key, **value}


def run_consumer(bootstrap: str, run: str, source: str, database: str, *, keyed: bool) -> None:
    """Run the hand-written consumer."""
    connection = psycopg.connect(database, autocommit=True)
    connection.execute(_POSITIONS)
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS rows {DEFINITION}{', PRIMARY KEY (id)' if keyed else ''})"
    )
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": run,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 2,
        }
    )
    partitions = consumer.list_topics(source, TIMEOUT_S).topics[source].partitions
    positions = dict.fromkeys(partitions, 0)
    for partition in positions:
        connection.execute(
            "INSERT INTO headrace_positions VALUES (%s, %s, %s, 0) ON CONFLICT DO NOTHING",
            (run, source, partition),
        )
    consumer.assign([TopicPartition(source, partition, 0) for partition in positions])
    while True:
        rows: dict[int, list[Any]] = {}
        for message in consumer.consume(BATCH, COMMIT_MS / 1000):
            if message.error() is None:
                rows.setdefault(message.partition() or 0, []).append(message)
        for partition, messages in rows.items():
            next_position = messages[-1].offset() + 1
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute(
                    "UPDATE headrace_positions SET next = %s WHERE name = %s AND source = %s "
                    "AND partition = %s AND next = %s",
                    (next_position, run, source, partition, positions[partition]),
                )
                if cursor.rowcount != 1:
                    raise RuntimeError(
                        f"the position of partition {partition} was changed by another process"
                    )
                _write(cursor, messages, keyed=keyed)
            positions[partition] = next_position


def _write(cursor: Any, messages: Sequence[Any], *, keyed: bool) -> None:
    if not keyed:
        with cursor.copy("COPY rows FROM STDIN") as copy:
            for message in messages:
                value = orjson.loads(message.value())
                copy.write_row((message.key().decode(), value["n"], value["price"]))
        return
    last = {message.key().decode(): orjson.loads(message.value()) for message in messages}
    numbers = [value["n"] for value in last.values()]
    prices = [value["price"] for value in last.values()]
    cursor.execute(_UPSERT, (list(last), numbers, prices))


@click.command()
@click.argument("peer", type=click.Choice(["headrace", "direct", "by-hand"]))
@click.option("--bootstrap", required=True)
@click.option("--run", required=True)
@click.option("--source", required=True)
@click.option("--database", required=True)
@click.option("--state", required=True)
@click.option("--keyed", is_flag=True)
def main(
    peer: str, bootstrap: str, run: str, source: str, database: str, state: str, *, keyed: bool
) -> None:
    """Run one peer until SIGTERM."""
    with suppress(KeyboardInterrupt):
        if peer == "by-hand":
            run_consumer(bootstrap, run, source, database, keyed=keyed)
            return
        direct = peer == "direct"
        run_application(bootstrap, run, source, database, state, keyed=keyed, direct=direct)


if __name__ == "__main__":
    main()
