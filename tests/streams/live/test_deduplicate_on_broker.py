"""Deduplication on a real cluster: over restarts, a lost disk, and a changed interval."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

from headrace.streams.errors import TopologyChangedError
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support.kafka import read, write
from tests.support.live import Live, live, settings_of
from tests.support.topics import Topics

PARTITIONS = 2
KEYS = [b"%d" % number for number in range(20)]
MINUTE_MS = 60_000


def topology_of(source: str, once: str, *, minutes: int = 10) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.string)
    within = timedelta(minutes=minutes)
    stream.deduplicate(within=within, key=str.upper, store="seen").to(once)
    return builder.build()


def test_each_id_goes_on_once_in_its_time_whatever_happens(
    broker: str, topics: Topics, tmp_path: Path
) -> None:
    source, once = (topics.create(name, partitions=PARTITIONS) for name in ("in", "once"))
    topology = topology_of(source, once)
    begin = int(time.time() * 1000) - 60 * MINUTE_MS
    chosen = settings_of(topics, tmp_path)
    for number, minute in enumerate((0, 2, 4, 20)):
        sent = [(key, value) for value in (b"x", b"X") for key in KEYS]
        write(broker, source, sent, timestamp=begin + minute * MINUTE_MS)
        disk = "state-lost" if number == 2 else "state"
        with live(topology, {**chosen, "state.dir": str(tmp_path / disk)}) as app:
            app.wait_processed(len(sent))
            assert (sum(one.total or 0 for one in app.restored) > 0) is (number == 2)
    found = sorted((r.key, r.value) for r in read(broker, once))
    assert found == sorted((key, b"x") for key in KEYS for _ in range(2))
    failure = Live(topology_of(source, once, minutes=11), chosen).failure()
    assert isinstance(failure, TopologyChangedError)
    assert "the within of store seen was 600000 ms and is 660000 ms" in str(failure)
