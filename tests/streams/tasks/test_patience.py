"""What is said of offsets that stay undecided."""

from __future__ import annotations

from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.tasks.tasks import WARN_AFTER_S, Backoff
from headrace.streams.testing.memory_worker import EventLog, ManualClock

PLACES = [TopicPartition("in", 0)]


def test_waiting_for_long_is_told_louder_and_seldom() -> None:
    clock, log = ManualClock(0), EventLog()
    patience = Backoff(clock, log)
    for _ in range(400):
        patience.increase(PLACES)
        clock.pass_ms(1000)
    told = [event for event in log.events if event["event"] == "offsets_undecided"]
    assert [event["level"] for event in told] == ["info", *["warning"] * 4]
    assert [event["waited_s"] for event in told[1:]] == [30.0, 60.0, 120.0, 240.0]
    assert all(event["partitions"] == ["in-0"] for event in told)


def test_an_answer_begins_the_wait_anew() -> None:
    clock, log = ManualClock(0), EventLog()
    patience = Backoff(clock, log)
    for _ in range(10):
        patience.increase(PLACES)
        clock.pass_ms(int(WARN_AFTER_S - 1) * 1000)
        patience.reset()
    assert {event["level"] for event in log.events} == {"info"}
