"""A broker that is slow, or silent: memory is bounded, and outcomes are found out."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
from confluent_kafka import KafkaException

from headrace.streams.devbroker import DevBroker
from tests.streams.live.test_crashes_on_broker import Scenario
from tests.support import kafka
from tests.support.counting import Counting
from tests.support.patience import PATIENCE_S
from tests.support.processes import AppProcess, wait_until
from tests.support.topics import Topics

MIB = 1 << 20
INPUT_MIB = 192
QUEUES_MIB = 8
"""Of each of the clients."""
LIMIT_MIB = 96
"""Twice what the queues and a batch take, and half of the input."""


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DevBroker, Topics]]:
    """A broker that no test of another module is slowed down with."""
    broker = DevBroker(tmp_path_factory.mktemp("slow"), port=0)
    yield broker, Topics(broker.start())
    broker.stop()


@pytest.fixture
def own_topics(own_broker: tuple[DevBroker, Topics]) -> tuple[DevBroker, Topics]:
    """That broker, when it has recovered from the test before."""
    _, topics = own_broker

    def takes_topics() -> bool:
        try:
            return bool(topics.create("probe", partitions=1))
        except KafkaException:
            return False

    wait_until(takes_topics, what="the broker takes topics")
    return own_broker


@contextmanager
def slowed(broker: DevBroker) -> Iterator[None]:
    """Let the broker work for a few hundredths of the time, and by and by for more.

    So it goes on at some time on any machine: what is little on busy cores is nothing at all.
    """
    ended = threading.Event()

    def slow() -> None:
        works_s = 0.05
        while not ended.is_set():
            broker.pause(1)
            time.sleep(1.0)
            broker.resume(1)
            time.sleep(works_s)
            works_s = min(1.05 * works_s, 5.0)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def resident_mib(process: AppProcess) -> float:
    """What the process has in memory now."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def has_gone_on(scenario: Scenario, count: int) -> bool:
    """Whether so many records were written to the output, committed or not."""
    try:
        return sum(kafka.ends(scenario.bootstrap, scenario.output).values()) >= count
    except KafkaException:
        return False  # it is slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "guarantee", ["exactly_once_v2", pytest.param("at_least_once", marks=pytest.mark.long)]
)
def test_what_waits_for_a_slow_broker_is_bounded(
    guarantee: str, own_topics: tuple[DevBroker, Topics], tmp_path: Path
) -> None:
    """Input is read no faster than output is taken, so memory does not grow with the backlog."""
    broker, topics = own_topics
    scenario = Scenario(topics, tmp_path, partitions=2, guarantee=guarantee)
    scenario.settings |= {
        "producer.queue.buffering.max.kbytes": QUEUES_MIB << 10,
        "consumer.queued.max.messages.kbytes": QUEUES_MIB << 10,
        "producer.transaction.timeout.ms": 60_000,
        "max.poll.records": 1_000,
    }
    value = os.urandom(1 << 10)
    records = [(b"%d" % (n % 1_000), value) for n in range(INPUT_MIB << 10)]
    kafka.write(topics.bootstrap, scenario.input, records[:1_000])
    with scenario.start(echo=True) as app:
        wait_until(lambda: bool(scenario.output_records()), what="it processes")
        before = resident_mib(app)
        app.pause()
        for begin in range(0, len(records), 50_000):
            kafka.write(topics.bootstrap, scenario.input, records[begin : begin + 50_000])
        peak = before
        with slowed(broker):
            app.resume()
            begun = time.monotonic()
            while app.running and (
                time.monotonic() < begun + 15 or not has_gone_on(scenario, 2_000)
            ):
                assert time.monotonic() < begun + PATIENCE_S, "it does not go on"
                peak = max(peak, resident_mib(app))
                time.sleep(0.05)
            assert app.running, app.text()[-2000:]
            app.pause()  # else it is done in the time that it takes to count
        done = len(scenario.output_records())
        assert done < len(records), "the broker was too fast for this to say anything"
    assert peak - before < LIMIT_MIB, f"{before:.0f} MiB before, {peak:.0f} at the peak"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["changelogs_written", "offsets_sent"])
def test_a_commit_whose_outcome_is_unknown_is_found_out_and_nothing_is_done_twice(
    step: str, own_topics: tuple[DevBroker, Topics], tmp_path: Path
) -> None:
    """The broker falls silent in the middle of a commit, for longer than the client waits."""
    broker, topics = own_topics
    counting = Counting(
        topics, tmp_path, partitions=2, max_poll_records=20, consumer_session_timeout_ms=30_000
    )
    counting.settings["task.timeout.ms"] = 5_000
    counting.settings["producer.transaction.timeout.ms"] = 60_000
    counting.write(200)
    seen = 0

    def fall_silent(at: str) -> None:
        nonlocal seen
        seen += at == step
        if at == step and seen == 3:
            broker.pause(1)
            threading.Timer(7, broker.resume, [1]).start()

    with structlog.testing.capture_logs() as events:
        counting.finish(probe=fall_silent)
    assert "producer_replaced" in [event["event"] for event in events]
    counting.check_exact()
    assert counting.committed() == kafka.ends(topics.bootstrap, counting.input)
