"""An application that continues at the offsets of a hand-written consumer, Faust or Quix Streams.

All three commit plain offsets: the offset of the next record, without metadata.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import confluent_kafka
import pytest
from click.testing import CliRunner

from headrace.streams.cli.main import main
from headrace.streams.cli.options import load
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.topics import Topics

APP = """
from headrace import KafkaStreams, StreamsBuilder, serdes

builder = StreamsBuilder()
orders = builder.stream({source!r}, key=serdes.string, value=serdes.string)
orders.to({copies!r})
orders.group_by_key().count(store="counts").to_stream().to({counts!r}, value=serdes.long)
app = KafkaStreams(builder.build(), {settings!r})
"""


def process_by_hand(topics: Topics, group: str, source: str, count: int) -> list[bytes | None]:
    """Read and commit `count` records as a consumer of a group, then leave the group."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": topics.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([source])
    values: list[bytes | None] = []
    while len(values) < count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        values.append(message.value())
        consumer.commit(message=message, asynchronous=False)
    consumer.close()
    return values


@pytest.mark.parametrize("keeps_the_group", [True, False])
def test_each_record_is_processed_by_the_consumer_or_by_the_application(
    topics: Topics, tmp_path: Path, keeps_the_group: bool
) -> None:
    source = topics.create("orders", partitions=2)
    copies, counts = topics.create("copies", partitions=2), topics.create("counts", partitions=2)
    group = topics.name("loop")
    records = [(b"key-%d" % (number % 7), b"order-%d" % number) for number in range(40)]
    kafka.write(topics.bootstrap, source, records)
    before = process_by_hand(topics, group, source, 25)
    committed = kafka.committed(topics.bootstrap, group, source)
    settings = settings_of(topics, tmp_path)
    if keeps_the_group:
        settings["application.id"] = topics.own(group)
    file = tmp_path / f"app_{uuid.uuid4().hex}.py"
    file.write_text(APP.format(source=source, copies=copies, counts=counts, settings=settings))

    def offsets(name: str, *arguments: str) -> str:
        done = CliRunner().invoke(main, ["offsets", name, f"{file}:app", *arguments])
        assert done.exit_code == 0, done.output
        return done.output

    if not keeps_the_group:
        csv = tmp_path / "offsets.csv"
        csv.write_text("".join(f"{source},{p},{offset}\n" for p, offset in committed.items()))
        offsets("set", "--from-file", str(csv), "--yes")
    rows = [line.split() for line in offsets("list").splitlines() if f"{source}-" in line]
    assert {row[1]: int(row[2]) for row in rows} == {
        f"{source}-{partition}": offset for partition, offset in committed.items()
    }

    with live(load(f"{file}:app", {}).topology, settings) as app:
        app.wait_processed(15)
    after = [record.value for record in kafka.read(topics.bootstrap, copies)]
    assert len(before) + len(after) == 40
    assert {*before, *after} == {value for _, value in records}

    # Counts begin at the moved offsets: state of the consumer is not moved.
    found = kafka.read(topics.bootstrap, counts)
    last = {record.key: int.from_bytes(record.value or b"", "big") for record in found}
    assert sum(last.values()) == 15

    # The consumer can take over again: the application's offsets are its own.
    ends = kafka.ends(topics.bootstrap, source)
    assert kafka.committed(topics.bootstrap, settings["application.id"], source) == ends
