"""Where a client says that something failed, the log says what the topics have to do with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.streams.errors import AbortableError, MemberFencedError, OffsetLostError, StreamsError
from headrace.streams.tasks.input_identity import PAUSE_S, InputIdentity
from headrace.streams.tasks.task import Task
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.memory_worker import EventLog, ManualClock
from headrace.topology import StreamsBuilder, serdes

Found = Mapping[str, str] | None
A, B = "mIZ3c7IdTReMqgcwdmKasA", "TaV9E4cwSRaMmdzz6DDvkg"
TASKS = [cast(Task, SimpleNamespace(topic_ids={"in": A}))]


class Asked:
    def __init__(self, found: Found) -> None:
        self.found, self.times = found, 0

    def __call__(self, topics: Sequence[str]) -> Callable[[float], Found]:
        assert topics == ["in", "out"]
        self.times += 1
        return lambda _: self.found


def identity(asked: Asked, clock: ManualClock) -> InputIdentity:
    return InputIdentity(asked, outputs=["out"], missing=lambda: None, clock=clock, log=EventLog())


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        ({"in": A, "out": B}, ""),
        ({"out": B}, "topic in, which is read, does not exist"),
        ({"in": B, "out": B}, "topic in, which is read, was deleted and re-created"),
        ({"in": A}, "topic out, which is written, does not exist"),
    ],
)
def test_a_cause_is_named_where_the_topics_show_one(found: Found, cause: str) -> None:
    assert identity(Asked(found), ManualClock(0)).cause(TASKS) == cause


def test_brokers_that_do_not_answer_are_not_asked_again_for_a_while() -> None:
    asked, clock = Asked(None), ManualClock(0)
    causes = identity(asked, clock)
    assert [causes.cause(TASKS) for _ in range(3)] == [""] * 3
    assert asked.times == 1
    clock.sleep(PAUSE_S)
    asked.found = {}
    assert causes.cause(TASKS) == "topic in, which is read, does not exist"


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (AbortableError("producer, commit: skipped sequence numbers"), "transaction_aborted"),
        (OffsetLostError("in-0", "Broker: Offset out of range"), "offset_lost"),
    ],
)
def test_what_is_aborted_for_a_topic_that_is_gone_says_so(error: StreamsError, event: str) -> None:
    log = log_of(error, {"out": B})
    (said,) = [entry for entry in log if entry["event"] == event]
    assert said["reason"].endswith("; topic in, which is read, does not exist")


def test_an_abort_that_topics_have_nothing_to_do_with_is_said_as_it_is() -> None:
    log = log_of(AbortableError("why"), None)
    (said,) = [entry for entry in log if entry["event"] == "transaction_aborted"]
    assert said["reason"] == "why"
    assert "nothing is lost" in said["advice"]


def test_a_member_that_is_replaced_says_what_it_means_and_when_to_act() -> None:
    log = log_of(MemberFencedError("consumer: Unknown member"), None)
    (said,) = [entry for entry in log if entry["event"] == "member_replaced"]
    assert "nothing is lost" in said["advice"]
    assert "worker.id" in said["advice"]


def log_of(error: StreamsError, found: Found) -> list[dict[str, Any]]:
    """What a worker logs that meets an error, where the cluster has these topics."""
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string, value=serdes.string).to("out")
    driver = TopologyTestDriver(builder.build(), {"application.id": "app"})
    driver.input("in").send("a", "b")
    recovery = driver._worker.present()._recovery
    recovery._input_identity._ask = lambda _: lambda _: found  # type: ignore[assignment, misc]
    log = EventLog()
    recovery._log = log
    with recovery.handle_errors():
        raise error
    return log.events
