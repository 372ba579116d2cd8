"""Brokers that take less than a worker could write: a produce quota."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from headrace.topology import StreamsBuilder, serdes
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.processes import wait_until
from tests.support.quotas import produce_quota
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

BYTES_PER_S = 600_000
RECORDS, RECORD_BYTES = 4_000, 5_000
"""More than three times what the quota lets through at once."""


class _Copying:
    """An application that copies a topic under a quota of its own."""

    def __init__(self, topics: Topics, directory: Path, source: str, guarantee: str) -> None:
        self._bootstrap, self._source = topics.bootstrap, source
        self._out = topics.create("out", partitions=2)
        builder = StreamsBuilder()
        records = builder.stream(source, key=serdes.string, value=serdes.bytes)
        records.map_values(lambda value: value).to(self._out, value=serdes.bytes)
        self._topology = builder.build()
        self._settings = settings_of(
            topics,
            directory / guarantee,
            processing_guarantee=guarantee,
            commit_interval_ms=100,
            producer_compression_type="none",
        )
        self.id = self._settings["application.id"]
        self.seconds: float | None = None
        """How long it took until all of it was committed."""

    @contextmanager
    def running(self) -> Iterator[None]:
        quota = produce_quota(self._bootstrap, f"{self.id}-producer", BYTES_PER_S)
        with quota, live(self._topology, self._settings) as app:
            app.wait_running()
            self._begun_s = time.monotonic()
            yield

    def is_done(self) -> bool:
        """Whether all is committed, by the brokers: the answer to a commit may have been late."""
        if self.seconds is None:
            offsets = kafka.committed(self._bootstrap, self.id, self._source)
            if sum(max(0, offset) for offset in offsets.values()) >= RECORDS:
                self.seconds = time.monotonic() - self._begun_s
        return self.seconds is not None

    def copied(self) -> list[int]:
        """The numbers of the records that the output has, in their order."""
        return sorted(int(record.key or b"-1") for record in kafka.read(self._bootstrap, self._out))


def test_exactly_once_is_as_fast_as_at_least_once_under_a_quota(
    topics: Topics, tmp_path: Path
) -> None:
    """Both run at the same time, so that a busy machine is as slow for one as for the other."""
    source = topics.create("in", partitions=2)
    body = random.Random(5).randbytes(RECORD_BYTES)
    kafka.write(topics.bootstrap, source, ((b"%d" % n, body) for n in range(RECORDS)))
    once = _Copying(topics, tmp_path, source, "exactly_once_v2")
    at_least = _Copying(topics, tmp_path, source, "at_least_once")
    with structlog.testing.capture_logs() as events, once.running(), at_least.running():
        wait_until(lambda: all([once.is_done(), at_least.is_done()]), what="all committed")
    assert once.copied() == list(range(RECORDS)), "lost or doubled"
    assert set(at_least.copied()) == set(range(RECORDS)), "lost"  # a busy machine makes it repeat
    voids = {"producer_replaced", "transaction_aborted"}
    aborted = [e for e in events if e["event"] in voids and e["application"] == once.id]
    assert len(aborted) <= 2, "one, which may need a new producer: the next ones are smaller"
    assert once.seconds is not None
    assert at_least.seconds is not None
    assert at_least.seconds / once.seconds > 0.75, (once.seconds, at_least.seconds)
