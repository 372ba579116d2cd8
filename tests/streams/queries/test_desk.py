"""A worker answers questions between two batches, some at a time, and nobody waits for ever."""

from __future__ import annotations

import threading

import pytest

from headrace.streams.queries.query_queue import (
    POLL_S,
    TURN_S,
    WAITING_MAX,
    Outcome,
    QueryQueue,
    QueryRefusal,
    StateQueryRequest,
    StateQueryResponse,
    UnansweredError,
)
from tests.support.processes import wait_until

ASKED = StateQueryRequest("counts", 0, 1, keys=(b"\x00\xff",))
SAID = StateQueryResponse(
    "topic", 5, 7, 9, values=(b"\xfe", None), rows=((b"a", b"1"),), after=b"a", count=3
)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_question_is_answered_in_the_thread_of_the_worker() -> None:
    desk, threads = QueryQueue(), []
    desk.open()
    found: list[Outcome] = []
    asker = threading.Thread(target=lambda: found.append(desk.ask(ASKED, 30.0)))
    asker.start()

    def answer(question: StateQueryRequest) -> Outcome:
        assert question == ASKED
        threads.append(threading.current_thread())
        return SAID

    wait_until(lambda: desk.bounded(1.0) == 0.0, what="the question to be there")
    desk.turn(answer)
    asker.join(30)
    assert (found, threads) == ([SAID], [threading.current_thread()])


def test_a_turn_answers_for_a_short_time_and_the_next_one_goes_on() -> None:
    clock = Clock()
    desk, done = QueryQueue(clock), []
    desk.open()
    for _ in range(6):
        desk.submit(ASKED).add_done_callback(done.append)

    def slow(_: StateQueryRequest) -> Outcome:
        clock.now_s += TURN_S * 0.4
        return SAID

    desk.turn(slow)
    assert len(done) == 3
    desk.turn(slow)
    assert len(done) == 6


def test_what_needs_more_turns_comes_again_and_holds_up_no_other() -> None:
    desk, done, asked = QueryQueue(), [], []
    other = StateQueryRequest("other", 0, 0)
    desk.open()
    desk.submit(ASKED).add_done_callback(lambda _: done.append("long"))
    desk.submit(other).add_done_callback(lambda _: done.append("short"))

    def answer(question: StateQueryRequest) -> Outcome | None:
        asked.append(question)
        return None if question == ASKED and asked.count(ASKED) < 3 else SAID

    desk.turn(answer)
    assert done == ["short"]
    desk.turn(answer)
    desk.turn(answer)
    assert done == ["short", "long"]


def test_a_worker_that_is_asked_waits_less_long_for_records_and_then_as_before() -> None:
    clock = Clock()
    desk = QueryQueue(clock)
    desk.open()
    assert desk.bounded(0.1) == 0.1
    desk.submit(ASKED)
    assert desk.bounded(0.1) == 0.0
    desk.turn(lambda _: SAID)
    assert (desk.bounded(0.1), desk.bounded(0.001)) == (POLL_S, 0.001)
    clock.now_s += 1.1
    assert desk.bounded(0.1) == 0.1


def test_nobody_waits_for_a_worker_that_is_stuck_closed_or_asked_by_too_many() -> None:
    desk = QueryQueue()
    with pytest.raises(UnansweredError, match="its worker is not running"):
        desk.ask(ASKED, 30.0)
    desk.open()
    with pytest.raises(UnansweredError, match=r"did not answer within 0\.01 s"):
        desk.ask(ASKED, 0.01)
    answered: list[StateQueryRequest] = []
    desk.turn(lambda question: answered.append(question) or SAID)
    assert answered == []  # nobody waits for it any more
    left = [desk.submit(ASKED) for _ in range(WAITING_MAX)]
    with pytest.raises(UnansweredError, match="queries wait for this worker"):
        desk.ask(ASKED, 30.0)
    desk.close()
    assert all(isinstance(future.result(0), QueryRefusal) for future in left)
