"""Windows on a real broker: emitted once over a restart with and without the local state."""

from __future__ import annotations

import shutil
import time
from datetime import timedelta
from pathlib import Path

import confluent_kafka
import pytest

from headrace.state.codec import partition_for_key
from headrace.topology import StreamsBuilder, TimeWindows, Topology, serdes
from headrace.topology.context.task_context import RESULTS_PER_COMMIT
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.processes import wait_until
from tests.support.topics import Topics

SECOND = 1000
KEYS = [f"key-{i}" for i in range(8)]


def topology(source: str, output: str) -> Topology:
    builder = StreamsBuilder()
    group = builder.stream(source, key=serdes.string, value=serdes.string).group_by_key()
    windows = TimeWindows(size=timedelta(seconds=10), grace=timedelta(seconds=2))
    counts = group.windowed_by(windows, emit="on_window_close").count(store="counts")
    counts.to_stream().to(output)
    return builder.build()


def write(bootstrap: str, topic: str, times: list[int]) -> int:
    settings = {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"}
    producer = confluent_kafka.Producer(settings)
    for moment in times:
        for key in KEYS:
            producer.produce(topic, "x", key, timestamp=moment)
    assert producer.flush(30) == 0
    return len(times) * len(KEYS)


@pytest.mark.broker
@pytest.mark.parametrize("keep", [True, False])
def test_each_window_is_emitted_once_over_a_restart(
    topics: Topics, tmp_path: Path, keep: bool
) -> None:
    """Traps 13, 23, 24 and 36."""
    source, output = topics.create("in", partitions=3), topics.create("out", partitions=4)
    settings = settings_of(topics, tmp_path)
    # Windows of now, as their changelog lets go of what is older than a day.
    start = int(time.time()) * SECOND // 10_000 * 10_000 - 600 * SECOND
    offsets = [[0, 4, 9, 11], [15, 21, 20, 33], [100, 200]]
    for batch in offsets:
        with live(topology(source, output), settings) as app:
            written = write(topics.bootstrap, source, [start + s * SECOND for s in batch])
            app.wait_processed(written)
        if not keep:
            shutil.rmtree(settings["state.dir"])
    found = kafka.read(topics.bootstrap, output)
    counts = {0: 3, 10: 2, 20: 2, 30: 1, 100: 1}
    expected = {
        key.encode() + (start + second * SECOND).to_bytes(8, "big"): count.to_bytes(8, "big")
        for key in KEYS
        for second, count in counts.items()
    }
    assert {record.key: record.value for record in found} == expected
    assert len(found) == len(expected)
    for record in found:
        assert record.key is not None
        assert record.partition == partition_for_key(record.key[:-8], 4)


@pytest.mark.broker
@pytest.mark.long
def test_a_million_windows_that_close_together_are_emitted_over_many_commits(
    topics: Topics, tmp_path: Path
) -> None:
    """With the default transaction timeout, which one piece of work would exceed."""
    count = 1_000_000
    source, output = topics.create("in", partitions=1), topics.create("out", partitions=1)
    start = int(time.time()) * SECOND // 10_000 * 10_000 - 600 * SECOND
    producer = confluent_kafka.Producer({"bootstrap.servers": topics.bootstrap})

    def send(key: str, timestamp: int) -> None:
        while True:
            try:
                producer.produce(source, "x", key, timestamp=timestamp)
            except BufferError:
                producer.poll(0.1)
            else:
                return

    for number in range(count):
        send(f"key-{number}", start)
    assert producer.flush(60) == 0
    place = confluent_kafka.TopicPartition(output, 0)
    reader = kafka.reader(topics.bootstrap)
    with live(topology(source, output), settings_of(topics, tmp_path)) as app:
        wait_until(lambda: app.processed == count, seconds=600)
        before = len(app.commits)
        send("last", start + 60 * SECOND)
        assert producer.flush(60) == 0
        wait_until(lambda: reader.get_watermark_offsets(place)[1] >= count, seconds=600)
        commits = len(app.commits) - before
    reader.close()
    keys = {record.key for record in kafka.read(topics.bootstrap, output)}
    assert len(keys) == count
    assert commits >= count / RESULTS_PER_COMMIT - 1
