"""Brokers that take less than a worker could write: a produce quota."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import structlog

from headrace.topology import StreamsBuilder, serdes
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.quotas import produce_quota
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

BYTES_PER_S = 600_000
RECORDS, RECORD_BYTES = 4_000, 5_000
"""More than three times what the quota lets through at once."""


def _seconds(topics: Topics, directory: Path, source: str, guarantee: str) -> float:
    """Copy a topic under a quota; returns how long it took until all of it was committed."""
    out = topics.create("out", partitions=2)
    builder = StreamsBuilder()
    records = builder.stream(source, key=serdes.string, value=serdes.bytes)
    records.map_values(lambda value: value).to(out, value=serdes.bytes)
    settings = settings_of(
        topics,
        directory / guarantee,
        processing_guarantee=guarantee,
        commit_interval_ms=100,
        producer_compression_type="none",
    )
    client = f"{settings['application.id']}-producer"
    with produce_quota(topics.bootstrap, client, BYTES_PER_S), live(builder.build(), settings) as a:
        a.wait_running()
        begun_s = time.monotonic()
        a.wait_processed(RECORDS)
        seconds = time.monotonic() - begun_s
    found = [(record.key or b"").decode() for record in kafka.read(topics.bootstrap, out)]
    assert sorted(found, key=int) == [str(n) for n in range(RECORDS)], "lost or doubled"
    return seconds


def test_exactly_once_is_as_fast_as_at_least_once_under_a_quota(
    topics: Topics, tmp_path: Path
) -> None:
    source = topics.create("in", partitions=2)
    body = random.Random(5).randbytes(RECORD_BYTES)
    kafka.write(topics.bootstrap, source, ((b"%d" % n, body) for n in range(RECORDS)))
    with structlog.testing.capture_logs() as events:
        once = _seconds(topics, tmp_path, source, "exactly_once_v2")
    at_least = _seconds(topics, tmp_path, source, "at_least_once")
    aborted = [event for event in events if event["event"] == "producer_replaced"]
    assert len(aborted) <= 1, "a transaction takes what is written in time"
    assert at_least / once > 0.75, (once, at_least)
