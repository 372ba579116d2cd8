"""Calls on a real Kafka, exactly-once: their results once and in order, and many at a time."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.streams.app import State
from headrace.topology import Call, StreamsBuilder, Topology, serdes
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


def test_a_stop_waits_a_moment_for_calls_and_ends_the_loop(topics: Topics, tmp_path: Path) -> None:
    source, target = topics.create("in"), topics.create("out")
    kafka.write(topics.bootstrap, source, [(b"k", b"1")])
    begun = threading.Event()

    async def slow(value: int) -> int:
        begun.set()
        await asyncio.sleep(0.3)
        return value

    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.json)
    stream.map_async(slow, timeout=timedelta(seconds=20), name="ask").to(target)
    with live(builder.build(), settings_of(topics, tmp_path)) as app:
        app.wait(begun.is_set, what="the call")
    assert [record.value for record in kafka.read(topics.bootstrap, target)] == [b"1"]
    assert not [one for one in threading.enumerate() if one.name == "headrace-calls"]


class Endless:
    """A call that has no end the first time."""

    def __init__(self, *, is_async: bool) -> None:
        self.is_async = is_async
        self.begun = threading.Event()
        self.goes_on = threading.Event()
        self.cancelled: list[str] = []

    async def awaited(self, value: int, call: Call) -> str:
        if self.begun.is_set():
            return f"{value} again"
        self.begun.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            self.cancelled.append(call.key)
            raise
        return "late"

    def plain(self, value: int) -> str:
        if self.begun.is_set():
            return f"{value} again"
        self.begun.set()
        self.goes_on.wait(60)
        return "late"

    def topology(self, source: str, target: str) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream(source, key=serdes.string, value=serdes.json)
        called = self.awaited if self.is_async else self.plain
        asked = stream.map_async(called, timeout=timedelta(seconds=600), name="ask")
        asked.to(target, value=serdes.string)
        return builder.build()


@pytest.mark.parametrize("is_async", [True, False])
def test_a_stop_cancels_what_takes_long_and_nothing_of_it_is_written(
    topics: Topics, tmp_path: Path, is_async: bool
) -> None:
    source, target = topics.create("in"), topics.create("out")
    kafka.write(topics.bootstrap, source, [(b"k", b"1")])
    call, settings = Endless(is_async=is_async), settings_of(topics, tmp_path)
    with live(call.topology(source, target), settings) as app:
        app.wait(call.begun.is_set, what="the call")
    assert State.ERROR not in app.states
    call.goes_on.set()
    assert len(call.cancelled) == is_async
    assert kafka.read(topics.bootstrap, target) == []
    with live(call.topology(source, target), settings) as app:
        app.wait_processed(1)
    assert [one.value for one in kafka.read(topics.bootstrap, target)] == [b"1 again"]


@pytest.mark.parametrize("is_async", [True, False])
def test_calls_of_partitions_that_are_lost_are_cancelled(
    topics: Topics, tmp_path: Path, is_async: bool
) -> None:
    """The worker waits for a call and polls no more, so the group gives it up."""
    source, target = topics.create("in"), topics.create("out")
    kafka.write(topics.bootstrap, source, [(b"k", b"1")])
    call = Endless(is_async=is_async)
    settings = settings_of(
        topics,
        tmp_path,
        consumer_max_poll_interval_ms=6_000,
        producer_transaction_timeout_ms=60_000,
    )
    with live(call.topology(source, target), settings) as app:
        app.wait_processed(1)
        call.goes_on.set()
    assert len(call.cancelled) == is_async
    assert [one.value for one in kafka.read(topics.bootstrap, target)] == [b"1 again"]
    assert len(app.assigned) >= 2
