"""examples/year_of_files.py: the feed on Kafka, and what is counted on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from examples.year_of_files import feed, year_of_files
from headrace.streams import TopologyTestDriver, serdes
from tests.support import kafka
from tests.support.topics import Topics


def test_sales_are_summed_up_by_shop_and_month() -> None:
    with TopologyTestDriver(year_of_files()) as driver:
        sales = driver.input("sales-from-files")
        for at, cents in (("2024-01-01T09:00:00Z", "250"), ("2024-01-31T09:00:00Z", "50")):
            sales.send("north", {"shop": "north", "at": at, "cents": cents})
        sales.send("north", {"shop": "north", "at": "2024-02-01T09:00:00Z", "cents": "7"})
        found = driver.output("sales-by-month").as_dict()
    assert found == {"north 2024-01": 300, "north 2024-02": 7}


def test_a_year_of_files_comes_in_once(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create_named(topics.name("sales"))
    for month in range(1, 13):
        rows = [f"north,2024-{month:02}-{day:02}T09:00:00Z,{day}\n" for day in range(1, 29)]
        (tmp_path / f"2024-{month:02}.csv").write_text("shop,at,cents\n" + "".join(rows))
    made = feed(f"{tmp_path}/*.csv", topic, topics.bootstrap)
    assert made.run() == 12 * 28
    assert feed(f"{tmp_path}/*.csv", topic, topics.bootstrap).run() == 0
    found = kafka.read(topics.bootstrap, topic)
    months = Counter(serdes.json.deserialize(record.value or b"")["at"][:7] for record in found)
    assert months == {f"2024-{month:02}": 28 for month in range(1, 13)}
