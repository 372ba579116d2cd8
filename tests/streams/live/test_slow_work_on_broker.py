"""A function that takes longer than a real broker waits, for its transaction or for a poll."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from headrace.streams.errors import ConfigError, RecordError
from headrace.topology import Processor, ProcessorContext, Record, StreamsBuilder, serdes
from tests.support import kafka
from tests.support.live import Live, settings_of
from tests.support.topics import Topics


def stopped(topics: Topics, directory: Path, slow_s: float, **settings: Any) -> tuple[Any, ...]:
    """Run where the second of two records is slow; returns the error, events and two outputs."""
    source, first, second = (topics.create(name, partitions=1) for name in ("in", "a", "b"))
    kafka.write(topics.bootstrap, source, [(b"k", b"fast"), (b"k", b"slow")])
    builder = StreamsBuilder()
    records = builder.stream(source, key=serdes.string, value=serdes.string)
    records.to(first)
    slow: Callable[[Any, Any], None] = lambda _, v: time.sleep(slow_s if v == "slow" else 0)  # noqa: E731
    records.peek(slow).to(second)
    app = Live(builder.build(), settings_of(topics, directory, **settings))
    with structlog.testing.capture_logs() as events:
        error = app.failure()
    assert isinstance(error, RecordError)
    assert (error.topic, error.partition) == (source, 0)
    return (
        error,
        events,
        *([r.value for r in kafka.read(topics.bootstrap, out)] for out in (first, second)),
    )


@pytest.mark.slow
def test_a_record_that_outlasts_its_transaction_is_named_with_the_setting(
    topics: Topics, tmp_path: Path
) -> None:
    timeout = {"producer_transaction_timeout_ms": 2_500, "producer_linger_ms": 0}
    error, events, first, second = stopped(topics, tmp_path, 5.0, **timeout)
    assert error.offset == 1
    assert "set producer.transaction.timeout.ms to more than 5" in str(error)
    assert first == second == [b"fast"]
    reasons = [e["reason"] for e in events if e["event"] == "producer_replaced"]
    assert reasons
    assert all("the broker ended the transaction: it was open for" in r for r in reasons)


@pytest.mark.slow
@pytest.mark.long
def test_a_record_that_outlasts_the_time_between_polls_is_named_with_the_setting(
    topics: Topics, tmp_path: Path
) -> None:
    polls = {"consumer_max_poll_interval_ms": 6_000, "processing_guarantee": "at_least_once"}
    error, events, *_ = stopped(topics, tmp_path, 7.0, **polls, commit_interval_ms=100)
    assert error.offset == 1
    assert "set consumer.max.poll.interval.ms to more than 7" in str(error)
    warnings = [event for event in events if event["event"] == "work_took_too_long"]
    assert {event["setting"] for event in warnings} == {"consumer.max.poll.interval.ms"}


@pytest.mark.slow
def test_a_punctuator_that_outlasts_its_transaction_is_named_and_repeats_no_record(
    topics: Topics, tmp_path: Path
) -> None:
    source, out = topics.create("in"), topics.create("out")
    kafka.write(topics.bootstrap, source, [(b"k", b"%d" % n) for n in range(1_500)])

    class Slow(Processor[str, str, str, str]):
        def init(self, context: ProcessorContext[str, str]) -> None:
            self._context = context
            context.schedule(timedelta(milliseconds=100), self._call, kind="wall_clock")

        def process(self, record: Record[str, str]) -> None:
            self._context.forward(record)

        def _call(self, now: int) -> None:
            self._context.forward(Record("k", "called", now))
            time.sleep(4.0)

    builder = StreamsBuilder()
    records = builder.stream(source, key=serdes.string, value=serdes.string)
    records.process(Slow, name="slow").to(out, key=serdes.string, value=serdes.string)
    settings = settings_of(
        topics, tmp_path, producer_transaction_timeout_ms=2_500, producer_linger_ms=0
    )
    app = Live(builder.build(), settings)
    with structlog.testing.capture_logs() as events:
        error = app.failure()
    assert isinstance(error, ConfigError)
    assert "(node slow, task 0_0)" in str(error)
    assert "set producer.transaction.timeout.ms to more than 40" in str(error)
    told = [event for event in events if event["event"] == "punctuator_took_too_long"]
    assert [event["times"] for event in told] == [1, 2, 3]
    written = [r.value for r in kafka.read(topics.bootstrap, out)]
    assert written, "records before it are committed"
    assert written == [b"%d" % n for n in range(len(written))], "lost or doubled"
