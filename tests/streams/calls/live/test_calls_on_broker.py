"""Calls on a real Kafka, exactly-once: their results once and in order, and many at a time."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import timedelta
from pathlib import Path

from headrace.topology import Call, StreamsBuilder, serdes
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.topics import Topics

RECORDS, CALL_S = 1000, 0.02


def test_a_thousand_calls_take_the_time_of_few(topics: Topics, tmp_path: Path) -> None:
    """One after the other they would take twenty seconds."""
    source, target = topics.create("in"), topics.create("out")
    kafka.write(topics.bootstrap, source, [(b"k", str(n).encode()) for n in range(RECORDS)])
    times: list[float] = []
    keys: set[str] = set()

    async def asked(value: int, call: Call) -> int:
        times.append(time.monotonic())
        keys.add(call.key)
        await asyncio.sleep(CALL_S)
        times.append(time.monotonic())
        return value * 2

    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.json)
    stream.map_async(asked, concurrency=100, name="ask").to(target)
    with live(builder.build(), settings_of(topics, tmp_path)) as app:
        app.wait(lambda: app.processed >= RECORDS, what="all records")
    found = [json.loads(record.value or b"") for record in kafka.read(topics.bootstrap, target)]
    assert found == [n * 2 for n in range(RECORDS)]
    assert len(keys) == RECORDS
    assert max(times) - min(times) < RECORDS * CALL_S / 5  # of a machine that does much besides


def test_a_stop_waits_for_calls_and_ends_the_loop(topics: Topics, tmp_path: Path) -> None:
    source, target = topics.create("in"), topics.create("out")
    kafka.write(topics.bootstrap, source, [(b"k", b"1")])
    begun = threading.Event()

    async def slow(value: int) -> int:
        begun.set()
        await asyncio.sleep(1)
        return value

    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.json)
    stream.map_async(slow, timeout=timedelta(seconds=20), name="ask").to(target)
    with live(builder.build(), settings_of(topics, tmp_path)) as app:
        app.wait(begun.is_set, what="the call")
    assert [record.value for record in kafka.read(topics.bootstrap, target)] == [b"1"]
    assert not [one for one in threading.enumerate() if one.name == "headrace-calls"]
