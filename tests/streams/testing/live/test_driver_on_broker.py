"""What the driver says is what happens on a real cluster, to the byte."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support.kafka import read, write
from tests.support.live import live, settings_of
from tests.support.topics import Topics

SENTENCES = ["to be or not to be", "that is the question", "to be is to do", "do be do be do"]
PARTITIONS = 3
START_MS = 1_700_000_000_000


def topology_of(source: str, prefix: str) -> Topology:
    """Words behind a repartition are counted, and the lines that hold each are kept."""

    def keep(_: str, line: str, lines: list[str]) -> list[str]:
        lines.append(line)
        return lines

    builder = StreamsBuilder()
    lines = builder.stream(source, key=serdes.string, value=serdes.string)
    words = lines.flat_map(lambda number, line: [(word, number) for word in line.split()])
    grouped = words.group_by_key(key=serdes.string, value=serdes.string, name="by-word")
    counts = grouped.count(store="counts").to_stream()
    counts.filter(lambda _, n: n > 1).to(f"{prefix}-often")
    grouped.aggregate(list, keep, store="places").to_stream().to(f"{prefix}-places")
    branches = lines.split(name="part-").branch(lambda _, v: "do" in v, name="do")
    branches.default_branch(name="other")["part-other"].to(f"{prefix}-other")
    return builder.build()


def test_the_driver_gives_what_a_real_cluster_gives(
    broker: str, topics: Topics, tmp_path: Path
) -> None:
    source = topics.create("lines", partitions=PARTITIONS)
    prefix = topics.name("out")
    outputs = [f"{prefix}-{name}" for name in ("often", "places", "other")]
    for output in outputs:
        topics.create_named(output, partitions=PARTITIONS)
    settings = settings_of(topics, tmp_path)
    topology = topology_of(source, prefix)
    # One key for all lines: else the order between them in the repartition topic is open.
    records = [(b"line", sentence.encode()) for sentence in SENTENCES]

    driver = TopologyTestDriver(topology, settings, partitions=PARTITIONS)
    for number, (key, value) in enumerate(records):
        driver.input(source).send_bytes(key, value, timestamp=START_MS + number)

    write(broker, source, records, timestamp=START_MS)
    with live(topology, settings) as app:
        app.wait_processed(driver.processed)

    application = settings["application.id"]
    changelogs = [f"{application}-{store}-changelog" for store in ("counts", "places")]
    for topic in outputs:
        assert on_broker(broker, topic) == in_driver(driver, topic), topic
    for topic in changelogs:
        # How many commits there were is a matter of time; how each key ended is not.
        real, simulated = on_broker(broker, topic), in_driver(driver, topic)
        assert {place: rows[-1] for place, rows in real.items()} == {
            place: rows[-1] for place, rows in simulated.items()
        }


def on_broker(broker: str, topic: str) -> dict[Any, Any]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for record in read(broker, topic):
        found[record.partition, record.key].append((record.value, record.timestamp))
    return dict(found)


def in_driver(driver: TopologyTestDriver, topic: str) -> dict[Any, Any]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for record in driver.output(topic, key=serdes.bytes, value=serdes.bytes).read_all():
        found[record.partition, record.key].append((record.value, record.timestamp))
    return dict(found)
