"""A year of files, ingested and aggregated: how much did each shop sell in each month?

It shows a feed: rows of files are written to a topic once each, even if the feed is killed, and an
application aggregates them. Rows that are added to the files later are ingested, too.

    headrace topics create sales-from-files sales-by-month
    headrace feed --files 'sales/*.csv' --to sales-from-files --key shop --timestamp at --follow
    headrace run examples.year_of_files:app

The files are `sales/2024-01.csv` and so on, and the topics have text as keys and JSON as values:

    sales/2024-01.csv  shop,at,cents
                       north,2024-01-01T09:00:00Z,250
    sales-from-files   north         {"shop": "north", "at": "2024-01-01T09:00:00Z", "cents": "250"}
    sales-by-month     north 2024-01 250
"""

from __future__ import annotations

from headrace import KafkaStreams, StreamsBuilder, Topology, serdes
from headrace.sources import Feed, Files

SETTINGS = {
    "application.id": "year-of-files",
    "bootstrap.servers": "localhost:9092",
    "processing.guarantee": "exactly_once_v2",
}

Sale = dict[str, str]


def feed(pattern: str, topic: str, bootstrap_servers: str) -> Feed:
    """Return the feed of the second command, for a program: ``feed(...).run(follow=True)``."""
    return Feed(
        Files(pattern, key="shop", timestamp="at"),
        topic=topic,
        name=f"feed-{topic}",
        settings={"bootstrap.servers": bootstrap_servers},
    )


def month_of(shop: str, sale: Sale) -> str:
    return f"{shop} {sale['at'][:7]}"


def year_of_files(sales: str = "sales-from-files", by_month: str = "sales-by-month") -> Topology:
    """Build the topology; the arguments are topics."""
    builder = StreamsBuilder()
    (
        builder.stream(sales, key=serdes.string, value=serdes.json)
        .group_by(month_of, key=serdes.string, name="by-month")
        .aggregate(
            int,
            lambda _, sale, cents: cents + int(sale["cents"]),
            store="cents",
            value=serdes.long,
        )
        .to_stream()
        .to(by_month, key=serdes.string, value=serdes.long)
    )
    return builder.build()


def app() -> KafkaStreams:
    """Return the application for `headrace run`."""
    return KafkaStreams(year_of_files(), SETTINGS)
