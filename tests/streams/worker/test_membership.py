"""A worker's place in its group: what it commits under, and when it joins or asks again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.streams.errors import FatalClientError, IdentityError, MemberFencedError
from headrace.streams.kafka.clocks import at_once
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.testing.memory_worker import EventLog, ManualClock
from headrace.streams.worker.membership import (
    CHECK_AFTER_S,
    FENCED_TIMES,
    FENCED_WITHIN_S,
    HEARTBEAT_CHECK_S,
    JOIN_PATIENCE_SESSIONS,
    JOINING_POLL_S,
    JOINING_S,
    Membership,
)

SESSION_S = 10.0
LISTENER: Any = None
"""Whom the consumer calls; nobody does here."""
HERE, THERE = TopicPartition("in", 0), TopicPartition("in", 1)
ALL = frozenset({HERE, THERE})
FENCED = MemberFencedError("fenced")
Answer = frozenset[TopicPartition] | None | Exception


@dataclass
class Consumer:
    """As much of one as is asked; each question about the group finds another generation."""

    calls: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    """What is asked so that it hears of rebalances soon."""
    name: str = "member-1"
    generations: Any = field(default_factory=lambda: itertools.count(1))

    def __getattr__(self, call: str) -> Callable[..., None]:
        return lambda *_: self.calls.append(call)

    def trigger_rejoin(self) -> None:
        self.touched.append("trigger_rejoin")

    def send_heartbeat(self) -> None:
        self.touched.append("send_heartbeat")

    def member_id(self) -> str:
        return self.name

    def group_metadata(self) -> Any:
        return next(self.generations)


@dataclass
class Bench:
    consumer: Any = field(default_factory=Consumer)
    clock: ManualClock = field(default_factory=lambda: ManualClock(0))
    log: EventLog = field(default_factory=EventLog)
    answers: list[Answer] = field(default_factory=list)
    """Which partitions the members have, look by look; the last one stays so."""
    looks: int = 0

    def __post_init__(self) -> None:
        self.membership = Membership(
            self.consumer,
            session_s=SESSION_S,
            assigned=self.assigned,
            subscribed=lambda: ALL,
            background=at_once,
            clock=self.clock,
            log=self.log,
        )

    def assigned(self) -> frozenset[TopicPartition] | None:
        self.looks += 1
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return found

    def joined(self, *answers: Answer) -> None:
        """Join, and hear of an assignment."""
        self.answers = list(answers) or [ALL]
        self.membership.join(["in"], LISTENER)
        self.membership.record_assignment()
        self.consumer.calls.clear()

    def turns(self, count: int = 10) -> list[str]:
        """What turns, one look apart, ask of the consumer."""
        for _ in range(count):
            self.clock.sleep(CHECK_AFTER_S)
            self.membership.turn()
        found, self.consumer.calls[:] = list(self.consumer.calls), []
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_commits_go_under_the_present_generation(bench: Bench) -> None:
    """It begins before its callbacks come, and takes the place of the one before at once."""
    bench.membership.take_new_membership()
    assert [bench.membership.metadata() for _ in range(3)] == [2, 3, 4]


def test_commits_go_under_the_membership_of_the_last_callback(bench: Bench) -> None:
    """Where the member was given up, or has joined anew by now, and has not heard of it."""
    heard = []
    for name, later in (("member-1", ""), ("member-2", "another"), ("member-3", "member-1")):
        bench.consumer.name = name
        bench.membership.take_new_membership()
        bench.consumer.name = later
        heard.append(bench.membership.metadata())
    assert heard == [1, 3, 5], "those of the callbacks; each question finds another"


def test_a_member_that_is_given_up_while_it_is_asked_commits_as_before(bench: Bench) -> None:
    bench.membership.take_new_membership()
    heard = bench.membership.metadata()

    def given_up() -> int:
        bench.consumer.name = "another"
        return 77

    bench.consumer.group_metadata = given_up
    assert bench.membership.metadata() == heard


def test_the_last_callbacks_of_a_client_that_closes_change_no_membership(bench: Bench) -> None:
    bench.membership.take_new_membership()
    heard = bench.membership.metadata()
    bench.consumer.name, bench.consumer.generations = "", itertools.repeat(None)
    assert not bench.membership.take_new_membership()
    assert bench.membership.metadata() == heard


def test_each_generation_is_taken_part_in_at_once(bench: Bench) -> None:
    """Who got nothing in one waits for what others give up, in the next."""
    bench.joined()
    bench.turns(3)
    assert bench.consumer.touched.count("trigger_rejoin") == 1
    bench.membership.record_assignment()
    bench.turns(3)
    assert bench.consumer.touched.count("trigger_rejoin") == 2


def test_heartbeats_that_are_due_go_out_between_two_commits(bench: Bench) -> None:
    """Not with the question for the generation, whose answer they would change."""
    for _ in range(101):
        bench.membership.turn()
        bench.clock.sleep(HEARTBEAT_CHECK_S / 10)
    assert len(bench.consumer.touched) == pytest.approx(11, abs=1)


def test_another_name_of_the_member_is_another_membership(bench: Bench) -> None:
    said = []
    for name in ("member-1", "member-1", "member-2", "member-2"):
        bench.consumer.name = name
        said.append(bench.membership.take_new_membership())
    assert said == [False, False, True, False]


def test_a_group_that_has_everything_is_looked_at_once(bench: Bench) -> None:
    bench.joined()
    assert bench.turns() == []
    assert bench.looks == 1


def test_partitions_that_nobody_has_are_shared_out_again(bench: Bench) -> None:
    """Once they were met twice, as one look could meet them on their way."""
    bench.joined(frozenset({HERE}), frozenset({HERE}), ALL)
    assert bench.turns() == ["ask_for_rebalance"]
    assert [event["partitions"] for event in bench.log.events] == [["in-1"]]
    assert bench.looks == 3


def test_partitions_on_their_way_are_left_alone(bench: Bench) -> None:
    bench.joined(frozenset({HERE}), frozenset({THERE}), ALL)
    assert bench.turns() == []
    assert bench.looks == 3


def test_what_stays_without_a_member_is_asked_for_again(bench: Bench) -> None:
    bench.joined(frozenset({HERE}))
    assert bench.turns(9).count("ask_for_rebalance") > 1


@pytest.mark.parametrize("unsure", [None, FatalClientError("no answer")])
def test_an_answer_that_is_none_is_asked_for_again(bench: Bench, unsure: Answer) -> None:
    bench.joined(unsure, unsure, unsure, ALL)
    assert bench.turns() == []
    assert bench.looks == 4


def test_more_assignments_do_not_put_the_look_off(bench: Bench) -> None:
    bench.joined()
    for _ in range(4):
        bench.clock.sleep(CHECK_AFTER_S / 2)
        bench.membership.record_assignment()
        bench.membership.turn()
    bench.membership.turn()
    assert bench.looks == 1


def test_a_new_client_looks_again(bench: Bench) -> None:
    bench.joined()
    bench.turns()
    bench.membership.replace(FENCED)
    assert bench.turns() == ["rejoin"]
    bench.membership.record_assignment()
    bench.turns()
    assert bench.looks == 2


def test_a_client_that_has_joined_again_by_itself_looks_again(bench: Bench) -> None:
    """As after a poll that came too late: nobody calls for it, it bears another name."""
    bench.joined()
    bench.membership.take_new_membership()
    bench.turns()
    assert bench.looks == 1
    bench.consumer.name = "member-2"
    assert bench.membership.take_new_membership()
    bench.answers = [frozenset({HERE}), frozenset({HERE}), ALL]
    bench.membership.record_assignment()
    assert bench.turns() == ["ask_for_rebalance"]


def test_a_fenced_member_joins_in_the_next_turn_and_not_in_the_callback(bench: Bench) -> None:
    bench.joined()
    bench.membership.replace(FENCED)
    assert bench.consumer.calls == []
    assert bench.turns(1) == ["rejoin"]
    assert bench.turns(1) == []


def test_who_is_fenced_again_and_again_has_a_twin(bench: Bench) -> None:
    bench.joined()
    for _ in range(FENCED_TIMES - 1):
        bench.membership.replace(FENCED)
        bench.turns(1)
    with pytest.raises(IdentityError, match=r"unique worker\.id"):
        bench.membership.replace(FENCED)


def test_who_is_fenced_now_and_then_has_none(bench: Bench) -> None:
    bench.joined()
    for _ in range(2 * FENCED_TIMES):
        bench.membership.replace(FENCED)
        bench.clock.sleep(FENCED_WITHIN_S)
        bench.turns(1)


def test_a_join_without_an_answer_is_begun_anew(bench: Bench) -> None:
    """A client that was started while a broker was silent may wait for it for ever."""
    bench.membership.join(["in"], LISTENER)
    bench.consumer.calls.clear()
    sessions_s = JOIN_PATIENCE_SESSIONS * SESSION_S
    assert bench.turns(int(sessions_s)) == []
    assert bench.turns(1) == ["rejoin"]
    assert bench.turns(int(sessions_s)) == [], "a new client has as much time"
    assert bench.turns(1) == ["rejoin"]


def test_who_has_joined_does_not_join_again(bench: Bench) -> None:
    bench.joined()
    assert bench.turns(int(2 * JOIN_PATIENCE_SESSIONS * SESSION_S)) == []


def test_the_first_partitions_are_looked_for_often_and_not_for_ever(bench: Bench) -> None:
    """A poll that hears of them goes on waiting for records until its end."""
    assert bench.membership.poll_max_s == math.inf
    bench.membership.join(["in"], LISTENER)
    assert bench.membership.poll_max_s == JOINING_POLL_S
    bench.turns(int(JOINING_S))
    assert bench.membership.poll_max_s == math.inf, "there may be none for this worker"
    bench.membership.join(["in"], LISTENER)
    bench.membership.record_assignment()
    assert bench.membership.poll_max_s == math.inf
