"""Inputs that went on without a record are committed, so that a quiet application has no lag.

The production worker on a cluster in memory: markers of transactions are offsets that no consumer
hands out, and what was aborted is not handed out either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.testing.local_cluster import Transaction
from tests.support.topologies import word_count
from tests.support.workers import HERE, SETTINGS, Member, WorkerBench

INTERVAL_MS = int(str(SETTINGS["commit.interval.ms"]))


class Late(Member):
    """A consumer that has not come to the markers behind its records for a while."""

    is_late = True

    def positions(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {
            place: self._before_markers(place, position) if self.is_late else position
            for place, position in super().positions(partitions).items()
        }

    def _before_markers(self, place: TopicPartition, position: int) -> int:
        records, _ = self._cluster.log(place).read(0, position, committed=True)
        return max((m.offset() + 1 for m in records if m.offset() < position), default=0)


class Quiet(WorkerBench):
    """A worker that has committed all that it was sent."""

    def __init__(self) -> None:
        super().__init__(word_count())
        self.consumer = self.late = Late(self.cluster, group="app", committed=True)
        self.start()
        for line in ("a b", "c"):
            self.cluster.append("lines", line.encode(), b"k", 0, 5, None)
        self.commit()

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.pass_ms(duration_ms)
        self.turns()

    def lags(self) -> dict[str, int]:
        """By topic: how many offsets nobody has committed yet."""
        found: dict[str, int] = {}
        for place, offset in self.offsets().items():
            left = self.cluster.log(place).end - offset
            found[place.topic] = found.get(place.topic, 0) + left
        return found


@pytest.fixture
def quiet() -> Quiet:
    return Quiet()


def test_the_lag_of_a_quiet_application_in_its_repartition_topic_comes_to_none(
    quiet: Quiet,
) -> None:
    repartition = "app-by-word-repartition"
    assert quiet.lags()[repartition] > 0, "its commits came before it was past the markers"
    quiet.late.is_late = False
    commits = quiet.counts.commits
    quiet.pass_ms(INTERVAL_MS - 1)
    assert quiet.counts.commits == commits, "it waits for an interval"
    quiet.pass_ms(1)
    assert set(quiet.lags().values()) == {0}
    for _ in range(5):
        quiet.pass_ms(INTERVAL_MS)
    assert quiet.counts.commits == commits + 1, "one commit was enough"
    assert set(quiet.lags().values()) == {0}


def test_what_was_aborted_is_passed_without_a_record() -> None:
    bench = WorkerBench().start()
    bench.send("a")
    bench.commit()
    void = Transaction()
    bench.cluster.append(HERE.topic, b"x", b"a", HERE.partition, 5, None, void)
    bench.cluster.end(void, committed=False)
    bench.clock.pass_ms(INTERVAL_MS)
    bench.turns()
    assert bench.offsets()[HERE] == bench.cluster.log(HERE).end == 3
    assert bench.out() == [("a", 1)]


def test_a_commit_of_others_takes_along_what_went_on_without_a_record() -> None:
    """One that is never quiet as a whole has no lag in inputs that are."""
    bench = WorkerBench().start()
    bench.send("a")
    bench.commit()
    there = TopicPartition(HERE.topic, 1)
    void = Transaction()
    bench.cluster.append(there.topic, b"x", b"b", there.partition, 5, None, void)
    bench.cluster.end(void, committed=False)
    bench.send("a")
    bench.turns(1)
    bench.clock.pass_ms(INTERVAL_MS)
    commits = bench.counts.commits
    bench.turns(1)
    assert bench.counts.commits == commits + 1
    assert bench.offsets() == {HERE: 2, there: 2}


def test_records_that_wait_are_not_passed(quiet: Quiet) -> None:
    """The consumer is past them, and nobody has processed them."""
    task = quiet.worker.tasks.running[0]
    ((place, committed),) = task.start.items()
    quiet.cluster.append(place.topic, b"d", b"k", place.partition, 5, None)
    task.add(place, quiet.cluster.log(place).read(committed.offset, 1, committed=True)[0])
    task.passed({place: committed.offset + 1})
    assert not task.needs_commit()


def test_who_ends_leaves_no_lag_and_does_not_wait_for_the_interval(quiet: Quiet) -> None:
    quiet.late.is_late = False
    quiet.turns(1)
    assert max(quiet.lags().values()) > 0
    quiet.worker.finish()
    assert set(quiet.lags().values()) == {0}
