"""repartition.lag.max.records: who writes to a repartition topic waits for those who read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import FatalClientError
from headrace.streams.kafka.clocks import at_once
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.flow import RepartitionFlow
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.backpressure import STALLED_S, RepartitionBackpressure
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.memory_worker import EventLog, ManualClock
from tests.support.topologies import word_count

LIMIT = 100
WORDS = "app-words"
PLACE = TopicPartition(WORDS, 0)
SPLITS, COUNTS = TaskId(0, 0), TaskId(1, 0)


@dataclass
class Reader:
    """A task, as far as it matters here."""

    id: TaskId
    next_offset: dict[TopicPartition, int] = field(default_factory=dict)
    start: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    queued: int = 0
    moved: bool = False

    def queued_in(self, place: TopicPartition) -> int:
        del place
        return self.queued


class Group:
    """A worker that splits, and somebody who counts: here or elsewhere."""

    def __init__(self, *, counts_here: bool, **settings: object) -> None:
        self.splitting = Reader(SPLITS)
        self.counting = Reader(COUNTS, {PLACE: 0}, {PLACE: CommittedOffset(0)})
        self.end = 0
        self.committed = 0
        self.unreachable = False
        self.questions = 0
        self.waiting = False
        self.answers = True
        self.clock = ManualClock(0)
        readers = {PLACE: self.counting} if counts_here else {}
        running = [self.splitting, *readers.values()]
        given = {"application.id": "app", "bootstrap.servers": "b:1", **settings}
        self.backlog = RepartitionBackpressure(
            StreamsConfig.parse({"repartition.lag.max.records": LIMIT, **given}),
            RepartitionFlow({0: (WORDS,), 1: ()}, {WORDS: (0,)}, {0: 1, 1: 0}),
            SimpleNamespace(lag=lambda _, offset: self.end - offset, positions=lambda _: {}),  # type: ignore[arg-type]
            SimpleNamespace(
                reader_of=readers.get, running=running, has_all_of=lambda _: counts_here
            ),  # type: ignore[arg-type]
            partitions={WORDS: 1},
            end_offsets=self._ends,
            committed=lambda _: {PLACE: self.committed},
            background=lambda question: self.answers and at_once(question),
            clock=self.clock,
            log=EventLog(),
        )

    def _ends(self, places: Any) -> Mapping[TopicPartition, int]:
        self.questions += 1
        if self.unreachable:
            raise FatalClientError("nobody answers")
        return dict.fromkeys(places, self.end)

    def holds(self, *, after_ms: int = 300, read: int = LIMIT) -> bool:
        """Whether the task that splits waits after it has read, once there was time to look."""
        self.backlog.add_read(self.splitting, read)  # type: ignore[arg-type]
        for _ in range(3):
            self.clock.pass_ms(after_ms // 3)
            found = self.backlog.must_wait(self.splitting, lambda _: self.waiting)  # type: ignore[arg-type]
        return found

    def room(self) -> int:
        return self.backlog.max_records(self.splitting)  # type: ignore[arg-type]

    def reads_to(self, offset: int) -> None:
        self.counting.next_offset[PLACE] = self.committed = offset


@pytest.mark.parametrize("counts_here", [True, False])
def test_a_writer_waits_above_the_bound_and_goes_on_at_half_of_it(counts_here: bool) -> None:
    group = Group(counts_here=counts_here)
    group.end = LIMIT
    assert not group.holds()
    group.end += 1
    assert group.holds()
    group.reads_to(LIMIT // 2)
    assert group.holds(), "one record more than half of the bound"
    group.reads_to(LIMIT // 2 + 1)
    assert not group.holds()


def test_no_bound_holds_nobody() -> None:
    group = Group(counts_here=True, **{"repartition.lag.max.records": 0})
    group.end = 10**9
    assert not group.holds()


@pytest.mark.parametrize("counts_here", [True, False])
def test_a_reader_that_gets_nowhere_holds_nobody_up_for_ever(counts_here: bool) -> None:
    """What it waits for may be what is held up."""
    group = Group(counts_here=counts_here)
    group.end = LIMIT + 1
    assert group.holds()
    assert group.holds()
    assert not group.holds(after_ms=int(STALLED_S * 1000) + 1000)
    group.end += 3 * LIMIT
    assert group.holds(), "it may be further behind, but not by any number"
    group.reads_to(1)
    assert group.holds(), "it gets on, and has no more than the others"


def test_a_reader_that_waits_for_another_input_holds_nobody_up() -> None:
    group = Group(counts_here=True)
    group.end, group.waiting = LIMIT + 1, True
    assert not group.holds()
    group.waiting = False
    assert group.holds()


def test_what_waits_here_to_be_processed_is_behind_too() -> None:
    group = Group(counts_here=True)
    group.end, group.counting.queued = LIMIT, 10
    assert group.holds()


def test_a_cluster_that_does_not_answer_holds_nobody_up() -> None:
    group = Group(counts_here=False)
    group.end = LIMIT + 1
    assert group.holds()
    group.unreachable = True
    assert not group.holds()


@pytest.mark.parametrize("counts_here", [True, False])
def test_between_two_looks_a_quarter_of_the_bound_is_read(counts_here: bool) -> None:
    """What is made of that is known to nobody, from the first record on."""
    group = Group(counts_here=counts_here)
    group.answers = False
    assert group.room() == LIMIT // 4
    assert not group.holds(read=LIMIT // 4 - 1)
    assert group.room() == 1
    assert group.holds(read=1)
    group.answers = True
    assert not group.holds(read=0)
    group.answers, group.end = False, LIMIT + 1
    assert group.holds(read=LIMIT // 4)
    group.answers = True
    assert group.holds(read=0), "now it is known that it is full"


def test_an_answer_is_of_what_was_read_before_the_question() -> None:
    group = Group(counts_here=False)
    group.answers = False
    assert not group.holds(read=LIMIT // 8), "it asks"
    assert not group.holds(read=LIMIT // 8 - 1)
    group.answers = True
    assert not group.holds(read=0)
    group.answers = False
    assert group.room() == LIMIT // 4 - (LIMIT // 8 - 1)
    assert group.holds(read=group.room())


@pytest.mark.parametrize("counts_here", [True, False])
def test_a_commit_is_wanted_where_readers_are_waited_for_and_not_an_answer(
    counts_here: bool,
) -> None:
    group = Group(counts_here=counts_here, **{"processing.guarantee": "exactly_once_v2"})
    group.splitting.moved, group.answers = True, False
    assert group.holds(read=LIMIT // 4)
    assert not group.backlog.needs_commit(), "the answer is there before a commit is made"
    group.answers, group.end = True, LIMIT + 1
    assert group.holds(read=0)
    assert group.backlog.needs_commit(), "nobody can read yet what it wrote"
    group.splitting.moved = False
    assert not group.backlog.needs_commit(), "nothing is there to be committed"


def test_who_waits_for_an_answer_does_not_wait_for_ever() -> None:
    group = Group(counts_here=False)
    group.answers = False
    assert group.holds(read=LIMIT)
    assert not group.holds(after_ms=int(STALLED_S * 1000) + 1000, read=0)


def test_the_cluster_is_asked_seldom() -> None:
    """For readers here only where much was read: fetches tell how far they are behind."""
    here, elsewhere = Group(counts_here=True), Group(counts_here=False)
    for _ in range(50):
        here.holds(after_ms=9, read=1)
        elsewhere.holds(after_ms=9, read=1)
    assert 1 <= here.questions <= 50 // (LIMIT // 8) + 1
    assert 1 <= elsewhere.questions <= 50 // (LIMIT // 8) + 3
    asked = here.questions, elsewhere.questions
    for _ in range(50):
        here.holds(after_ms=9, read=0)
        elsewhere.holds(after_ms=9, read=0)
    assert here.questions <= asked[0] + 1, "nobody writes"
    assert elsewhere.questions <= asked[1] + 1


def test_a_reader_commits_early_where_others_see_only_that() -> None:
    here, elsewhere = Group(counts_here=True), Group(counts_here=False)
    for group in (here, elsewhere):
        group.reads_to(LIMIT // 4 - 1)
        assert not group.backlog.is_awaited([group.counting])  # type: ignore[list-item]
        group.reads_to(LIMIT // 4)
    assert not here.backlog.is_awaited([here.counting])  # type: ignore[list-item]
    assert elsewhere.backlog.is_awaited([elsewhere.counting])  # type: ignore[list-item]


def test_tasks_that_make_results_have_the_first_turn() -> None:
    group = Group(counts_here=True)
    tasks = group.backlog.downstream_first([group.splitting, group.counting])  # type: ignore[list-item]
    assert tasks == [group.counting, group.splitting]


def test_windows_are_not_closed_for_want_of_what_another_reader_holds_up() -> None:
    settings = {"window.close.idle.ms": 1000}
    group = Group(counts_here=True, **settings)
    group.end = LIMIT + 1
    assert group.holds(), "only one reads it, and has much"
    flow = RepartitionFlow(
        {0: (WORDS, "app-others"), 1: ()}, {WORDS: (0,), "app-others": (0,)}, {0: 1, 1: 0}
    )
    config = {"application.id": "app", "bootstrap.servers": "b:1", **settings}
    backlog = RepartitionBackpressure(
        StreamsConfig.parse(config),
        flow,
        SimpleNamespace(),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        partitions={},
        end_offsets=dict,
        committed=dict,
        background=at_once,
        clock=group.clock,
        log=EventLog(),
    )
    assert not backlog.is_limited(group.splitting)  # type: ignore[arg-type]


# -- in a worker ---------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_counts_come_while_most_of_a_backlog_is_unread(guarantee: str) -> None:
    """Nothing is committed unless it is needed: a reader cannot see what is not."""
    lines, words, limit = 3000, 4, 400
    settings = {
        "processing.guarantee": guarantee,
        "repartition.lag.max.records": limit,
        "buffered.records.per.partition": 50,
        "max.poll.records": 100,
        "statestore.cache.max.bytes": 0,
    }
    with TopologyTestDriver(word_count(), settings, partitions=2, commit="manual") as driver:
        driver.run()
        process, cluster = driver._worker, driver._worker.cluster
        for number in range(lines):
            text = " ".join(f"w{(number + i) % 50}" for i in range(words)).encode()
            cluster.append("lines", text, None, number % 2, number, None)
        behind = []
        unread_at_first = None
        worker = process.present()
        while unread := _unread(worker, cluster, "lines"):
            driver._clock.pass_ms(10)
            process.turn()
            behind.append(max(_unread(worker, cluster, "-repartition")))
            assert len(behind) < 5000, "nothing goes on"
            if unread_at_first is None and _has_results(cluster):
                unread_at_first = sum(unread)
            if not any(unread):
                break
        assert unread_at_first is not None
        assert unread_at_first > lines / 2
        # A turn reads max.poll.records, and what they become is beyond the bound at most.
        assert max(behind) <= limit + 2 * 100 * words
        for _ in range(2):
            driver.commit()
            driver.run()
        driver.commit()
        last = {r.key: r.value for r in driver.output("word-counts").read_all()}
        assert sum(last.values()) == lines * words


def _unread(worker: Any, cluster: Any, topic: str) -> list[int]:
    """How many records of each partition of a topic are unprocessed."""
    return [
        cluster.log(place).end - task.next_offset[place]
        for task in worker.tasks.running
        for place in task.inputs
        if place.topic.endswith(topic)
    ] or [1]


def _has_results(cluster: Any) -> bool:
    logs = cluster.topics["word-counts"].logs
    return any(log.read(0, 1, committed=False)[0] for log in logs)
