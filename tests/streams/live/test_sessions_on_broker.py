"""Sessions and suppressions on a real cluster: over restarts, a lost disk, and a quiet input."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.topology import SessionWindows, StreamsBuilder, Suppressed, Topology, serdes
from tests.support.kafka import read, write
from tests.support.live import live, settings_of
from tests.support.topics import Topics

GAP = timedelta(milliseconds=100)
PARTITIONS = 2
KEYS = [b"%d" % number for number in range(20)]


def topology_of(source: str, closed: str, final: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.string)
    sessions = SessionWindows(inactivity_gap=GAP, grace=GAP)
    group = stream.group_by_key()
    on_close = group.windowed_by(sessions, emit="on_window_close").count(store="closed")
    on_close.to_stream().to(closed)
    updated = group.windowed_by(sessions).count(store="updated")
    updated.suppress(Suppressed.until_window_closes(), name="final").to_stream().to(final)
    return builder.build()


def test_each_session_has_one_result_whatever_happens(
    broker: str, topics: Topics, tmp_path: Path
) -> None:
    """Traps 13 and 36; the last sessions are closed as nothing comes any more."""
    source = topics.create("in", partitions=PARTITIONS)
    closed, final = (topics.create(name, partitions=PARTITIONS) for name in ("closed", "final"))
    topology = topology_of(source, closed, final)
    begin = int(time.time() * 1000) - 600_000
    chosen = settings_of(topics, tmp_path)
    for number in range(3):
        write(broker, source, [(key, b"x") for key in KEYS] * 2, timestamp=begin + 1000 * number)
        lost = {**chosen, "state.dir": str(tmp_path / f"state-{number}")}
        with live(topology, lost) as app:
            app.wait_processed(2 * len(KEYS))
    with live(topology, {**chosen, "window.close.idle.ms": 300}) as app:
        app.wait(lambda: len(read(broker, final)) >= 3 * len(KEYS), what="the last sessions")
    expected = sorted(
        (key, begin + 1000 * number + place, begin + 1000 * number + place + len(KEYS), 2)
        for number in range(3)
        for place, key in enumerate(KEYS)
    )
    serde = serdes.session_windowed(serdes.bytes)
    for topic in (closed, final):
        found: list[Any] = [
            (*serde.deserialize(r.key or b""), serdes.long.deserialize(r.value or b""))
            for r in read(broker, topic)
        ]
        assert sorted((key, *window, count) for key, window, count in found) == expected
