"""A worker that joins takes over half of the tasks, and the others go on."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.streams.live.test_crashes_on_broker import Scenario
from tests.support import kafka
from tests.support.patience import PATIENCE_S
from tests.support.processes import AppProcess, running, wait_until
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

WORDS = 4
"""In each sentence."""
PARTITIONS = 4
GAP_MAX_S = 20.0
"""Generous: it is a bound for machines that do much else. On a quiet one it takes half a second."""


class Feed:
    """Writes sentences at a steady pace, and knows what must come of them."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._producer = Producer({"bootstrap.servers": scenario.bootstrap, "linger.ms": 5})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.01):
            words = [b"key-%02d" % ((number * 7 + n) % 40) for n in range(WORDS)]
            self._producer.produce(
                self._scenario.input, b" ".join(words), partition=number % PARTITIONS
            )
            self._scenario.expected.update(words)
            self._producer.poll(0)
            number += 1

    @contextmanager
    def going(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
            self._producer.flush(PATIENCE_S)


def tasks_of(process: AppProcess) -> list[str]:
    """The tasks that a worker began, each as often as it did."""
    started = [line for line in process.text().splitlines() if "task_started" in line]
    return [line.partition("task=")[2].split()[0] for line in started]


def longest_gap_s(records: list[kafka.Record], since_s: float) -> float:
    """The longest time without an output, of the partition that had to wait longest."""
    longest = 0.0
    for partition in range(PARTITIONS):
        times = [r.timestamp / 1000 for r in records if r.partition == partition]
        gaps = [b - a for a, b in itertools.pairwise(times) if b >= since_s]
        longest = max([longest, *gaps])
    return longest


def test_a_second_worker_takes_over_half_of_the_tasks(topics: Topics, tmp_path: Path) -> None:
    """What stays goes on, and what moves waits for no more than the group takes to say so."""
    scenario = Scenario(topics, tmp_path, partitions=PARTITIONS, repartition=True, worker_id=None)
    times = {"message.timestamp.type": "LogAppendTime"}
    scenario.output = topics.create("times", partitions=PARTITIONS, config=times)
    scenario.settings |= {"commit.interval.ms": 100, "topology.optimization": "none"}
    log, other_log = tmp_path / "first.log", tmp_path / "second.log"
    feed = Feed(scenario)
    with running(scenario.plan(), log) as first, feed.going():
        wait_until(lambda: len(tasks_of(first)) == 2 * PARTITIONS, what="the first has all")
        wait_until(lambda: bool(scenario.output_records()), what="the first counts")
        since_s = time.time()
        with running(scenario.plan(), other_log) as second:
            wait_until(lambda: len(tasks_of(second)) == PARTITIONS, what="the second has half")
            time.sleep(2)
            second.pause()
            moved = tasks_of(second)
            second.resume()
            gap_s = longest_gap_s(scenario.output_records(), since_s)
            again = tasks_of(first)[2 * PARTITIONS :]
            aborted = "transaction_aborted" in first.text()
            second.stop()
    with running(scenario.plan(), log) as last:
        wait_until(scenario.is_complete, what="all counts")
        last.stop()
    print(f"the longest gap took {gap_s:.2f} s; begun again: {again or 'none'}")
    assert len(set(moved)) == PARTITIONS
    assert aborted or not again, "a task that stays was begun again"
    assert gap_s < GAP_MAX_S
    scenario.check_exact()
