"""What the live producers make of a client's answers; the client is a script."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from headrace.streams.errors import (
    FatalClientError,
    MissingTopicError,
    OutcomeUnknownError,
    RecordTooLargeError,
)
from headrace.streams.kafka.offset_texts import TimeLimits
from headrace.streams.kafka.plain_producer import PlainProducer
from headrace.streams.kafka.protocols import CommittedOffset, Offsets, TopicPartition
from headrace.streams.kafka.transactional_producer import TransactionalProducer
from headrace.streams.testing.memory_worker import ManualClock
from headrace.topology.errors import RefusedTimestampError

ROWS = TopicPartition("rows", 0)
OFFSETS = {TopicPartition("in", 0): CommittedOffset(7)}
Report = Callable[[KafkaError | None, Message], None]


@dataclass
class Client:
    """As much of confluent_kafka's producer as is asked here; it reports when it is told to."""

    config: dict[str, Any]
    calls: list[str]
    clock: ManualClock
    sent: list[tuple[bytes | None, int]] = field(default_factory=list)
    """Values and timestamps."""
    full: int = 0
    """How many sends find no room."""
    refuses: int | None = None
    """The code that each send fails with."""
    held: list[Report] = field(default_factory=list)
    reports: list[Callable[[], None]] = field(default_factory=list)
    """What the next poll serves."""
    fails: dict[str, KafkaError] = field(default_factory=dict)
    begins_fail: KafkaError | None = None
    waiting: int = 0
    """How many records no broker has."""
    takes_s: float = 0.0
    identity_s: float = 0.0
    """How long it was to wait for its identity."""

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        report: Report | None = None,
        partitioner: object = None,
        timestamp: int = 0,
        headers: object = None,
    ) -> None:
        if self.refuses is not None:
            raise KafkaException(KafkaError(self.refuses))
        if self.full:
            self.full -= 1
            raise BufferError
        self.sent.append((value, timestamp))
        if report is not None:
            self.held.append(report)

    def report(self, *, offset: int) -> None:
        """Have the next poll say where the record went that was sent first."""
        report, message = self.held.pop(0), Message(topic="rows", partition=0, offset=offset)
        self.reports.append(lambda: report(None, message))

    def poll(self, timeout: float) -> int:
        self.clock.sleep(timeout)
        reports, self.reports = self.reports, []
        for report in reports:
            report()
        return len(reports)

    def flush(self, timeout: float) -> int:
        self.calls.append("flush")
        self.poll(timeout)
        return self.waiting

    def purge(self) -> None:
        self.calls.append("purge")
        self.waiting = 0

    def close(self) -> None:
        self.calls.append("close")

    def __len__(self) -> int:
        return self.waiting

    def begin_transaction(self) -> None:
        if self.begins_fail is not None:
            raise KafkaException(self.begins_fail)

    def list_topics(self, topic: str, timeout: float) -> None:
        self._call(f"list_topics {topic}")

    def init_transactions(self, timeout: float) -> None:
        self.identity_s = timeout
        self._call("init_transactions")

    def commit_transaction(self, timeout: float) -> None:
        self._call("commit_transaction")

    def abort_transaction(self, timeout: float) -> None:
        self._call("abort_transaction")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        self.clock.sleep(self.takes_s)
        if name in self.fails:
            raise KafkaException(self.fails[name])


@dataclass
class Bench:
    calls: list[str] = field(default_factory=list)
    clock: ManualClock = field(default_factory=lambda: ManualClock(0))
    fails: dict[str, KafkaError] = field(default_factory=dict)
    """What each client fails in."""
    takes_s: float = 0.0
    """How long a call to the brokers takes."""
    clients: int = 0

    def make(self, config: dict[str, Any]) -> Any:
        self.clients += 1
        fails = dict(self.fails)
        self.client = Client(config, self.calls, self.clock, fails=fails, takes_s=self.takes_s)
        return self.client

    def transactional(self, **limits: Any) -> TransactionalProducer:
        return TransactionalProducer(
            {}, timeout_s=10, clock=self.clock, make_client=self.make, **limits
        )

    def plain(self, **limits: Any) -> PlainProducer:
        def commit(offsets: Offsets) -> None:
            self.calls.append(f"commit {[c.offset for c in offsets.values()]}")

        def ends(places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
            return dict.fromkeys(places, 100)

        return PlainProducer(
            {},
            timeout_s=10,
            clock=self.clock,
            make_client=self.make,
            commit_offsets=commit,
            end_offsets=ends,
            **limits,
        )

    def fail_a_record(self) -> None:
        """The report of a record that the brokers do not take."""
        error = KafkaError(KafkaError._MSG_TIMED_OUT, "no broker took it")
        message = Message(topic="out", partition=0)
        self.client.reports.append(lambda: self.client.config["on_delivery"](error, message))


def rows(*times: int) -> list[tuple[bytes, bytes | None, int]]:
    return [(b"k", b"%d" % number, time) for number, time in enumerate(times)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("kind", ["transactional", "plain"])
def test_a_time_of_0_is_not_the_present(bench: Bench, kind: str) -> None:
    """The client takes 0 for none, so the first millisecond stands for it."""
    producer = getattr(bench, kind)()
    producer.begin()
    producer.send("out", b"v", b"k", -1, 0, None)
    producer.send_changelog(ROWS, rows(0, 5, 0))
    assert [time for _, time in bench.client.sent] == [1, 1, 5, 1]


@pytest.mark.parametrize("kind", ["transactional", "plain"])
def test_what_finds_no_room_is_sent_once_there_is_some(bench: Bench, kind: str) -> None:
    producer = getattr(bench, kind)()
    producer.begin()
    bench.client.full = 2
    producer.send("out", b"v", b"k", -1, 5, None)
    bench.client.full = 1
    producer.send_changelog(ROWS, rows(5, 5))
    assert [value for value, _ in bench.client.sent] == [b"v", b"0", b"1"]
    assert producer.waited_s == pytest.approx(3 * 0.05), "that is no time of the work"


def test_the_last_row_of_a_delta_waits_for_room_too(bench: Bench) -> None:
    producer = bench.transactional()
    producer.begin()
    bench.client.full = 1
    producer.send_changelog(ROWS, rows(5))
    assert [value for value, _ in bench.client.sent] == [b"0"]


@pytest.mark.parametrize(("answer", "questions"), [("heard", 2), ("none", 1)])
def test_a_producer_hears_of_brokers_before_it_asks_for_its_coordinator(
    bench: Bench, answer: str, questions: int
) -> None:
    """A client that has no connection to one it has heard of asks half a second later."""
    producer = bench.transactional(topic_limits={"out": 1000})
    if answer == "none":
        bench.client.fails["list_topics out"] = KafkaError(KafkaError._TIMED_OUT)
    producer.init()
    assert bench.calls == ["list_topics out"] * questions + ["init_transactions"]


def test_a_producer_that_knows_no_topic_asks_of_none(bench: Bench) -> None:
    bench.transactional().init()
    assert bench.calls == ["init_transactions"]


def test_a_client_is_asked_for_its_identity_only_once(bench: Bench) -> None:
    """Called again it asks again, and the second answer makes the first one void, unseen."""
    producer = bench.transactional()
    first = bench.client
    first.fails["init_transactions"] = KafkaError(KafkaError._TIMED_OUT)
    producer.init()
    assert bench.calls == ["init_transactions"] * 2
    assert bench.client is not first, "the second client was asked"
    producer.begin()
    producer.send("out", b"v", b"k", -1, 5, None)
    assert first.sent == []
    assert [value for value, _ in bench.client.sent] == [b"v"]


def test_the_client_that_ends_a_predecessors_transaction_makes_room_soon(bench: Bench) -> None:
    """It would ask again after half a second only; a new one is answered at once."""
    producer = bench.transactional()
    first = bench.client
    first.fails["init_transactions"] = KafkaError(KafkaError._TIMED_OUT)
    producer.init()
    assert first.identity_s < 0.5
    assert first.identity_s < bench.client.identity_s < 5
    assert producer.abandoned_clients == 1


def test_where_brokers_are_far_the_first_client_gets_the_time_to_connect(bench: Bench) -> None:
    bench.takes_s = 0.4
    bench.transactional(topic_limits={"out": 1000}).init()
    assert 0.8 < bench.client.identity_s < 1.3


def test_an_identity_that_no_client_gets_in_time_is_given_up(bench: Bench) -> None:
    bench.fails["init_transactions"] = KafkaError(KafkaError._TIMED_OUT)
    bench.takes_s = 5
    producer = bench.transactional()
    with pytest.raises(OutcomeUnknownError):
        producer.init()
    assert bench.clients == bench.calls.count("init_transactions") == 2


SENDS: dict[str, Callable[[Any], None]] = {
    "a record": lambda producer: producer.send("rows", b"v", b"k", -1, 5, None),
    "the last row": lambda producer: producer.send_changelog(ROWS, rows(5)),
    "a row": lambda producer: producer.send_changelog(ROWS, rows(5, 5)),
}


@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("kind", ["transactional", "plain"])
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, RecordTooLargeError),
        (KafkaError._UNKNOWN_TOPIC, MissingTopicError),
        (KafkaError._INVALID_ARG, FatalClientError),
    ],
)
def test_what_the_client_refuses_is_not_passed_over(
    bench: Bench, send: str, kind: str, code: int, error: type[Exception]
) -> None:
    producer = getattr(bench, kind)()
    producer.begin()
    bench.client.refuses = code
    with pytest.raises(error):
        SENDS[send](producer)


def test_a_send_that_fails_in_a_sound_transaction_is_told_by_itself(bench: Bench) -> None:
    producer = bench.transactional()
    producer.begin()
    bench.client.refuses = KafkaError._UNKNOWN_PARTITION
    bench.client.begins_fail = KafkaError(KafkaError._STATE, "not valid in state InTransaction")
    with pytest.raises(FatalClientError, match="Unknown partition"):
        SENDS["a record"](producer)


@pytest.mark.parametrize("kind", ["transactional", "plain"])
def test_a_row_that_its_topic_does_not_take_is_refused_before_any_is_sent(
    bench: Bench, kind: str
) -> None:
    """The broker would say so at the commit, and not which."""
    producer = getattr(bench, kind)(topic_limits={"rows": 10})
    producer.begin()
    producer.send_changelog(ROWS, [(b"k", b"v" * 10, 5), (b"gone", None, 5)])
    bench.client.sent.clear()
    with pytest.raises(RecordTooLargeError, match="11 bytes"):
        producer.send_changelog(ROWS, [(b"k", b"v", 5), (b"k", b"v" * 11, 5)])
    assert bench.client.sent == []


@pytest.mark.parametrize("kind", ["transactional", "plain"])
def test_a_clock_that_was_set_back_refuses_no_record_of_now(bench: Bench, kind: str) -> None:
    """The brokers compare with their own clocks, which go on."""
    hour_ms = 3_600_000
    limits = TimeLimits({"out": hour_ms})
    producer = getattr(bench, kind)(time_limits=limits, latest_ms=lambda: 72 * hour_ms)
    producer.begin()
    producer.send("out", b"v", b"k", -1, 72 * hour_ms, None)
    assert len(bench.client.sent) == 1
    with pytest.raises(RefusedTimestampError):
        producer.send("out", b"v", b"k", -1, 74 * hour_ms, None)


@pytest.mark.parametrize("kind", ["transactional", "plain"])
def test_a_limit_is_asked_for_again_where_it_is_reported(bench: Bench, kind: str) -> None:
    limits = [8, 20, 5]
    producer = getattr(bench, kind)(topic_limits={"rows": 10}, ask_limit=lambda _: limits.pop(0))
    producer.begin()
    with pytest.raises(RecordTooLargeError, match="of 8 of rows"):
        producer.send_changelog(ROWS, [(b"k", b"v" * 11, 5)])
    with pytest.raises(RecordTooLargeError, match="of 8 of rows"):
        producer.send_changelog(ROWS, [(b"k", b"v" * 11, 5)])
    assert len(limits) == 2, "many records that are refused ask once"
    bench.clock.sleep(1)
    producer.send_changelog(ROWS, [(b"k", b"v" * 11, 5)])
    bench.clock.sleep(1)
    bench.client.refuses = KafkaError.MSG_SIZE_TOO_LARGE
    with pytest.raises(RecordTooLargeError, match="of 5 of rows"):
        producer.send("rows", b"v" * 11, b"k", -1, 5, None)


# -- exactly once --------------------------------------------------------------------------------


def committed_ends(bench: Bench, producer: TransactionalProducer, offset: int) -> dict[Any, int]:
    """Write rows in a transaction, whose last one is at an offset, and commit it."""
    producer.begin()
    producer.send_changelog(ROWS, rows(5, 5))
    producer.commit()
    bench.client.report(offset=offset)
    return dict(producer.changelog_ends([ROWS]))


def test_a_changelog_ends_behind_the_last_record_that_is_reported(bench: Bench) -> None:
    """The reports may come after the commit, and that of the commit before says nothing."""
    producer = bench.transactional()
    assert committed_ends(bench, producer, 41) == {ROWS: 42}
    assert committed_ends(bench, producer, 44) == {ROWS: 45}


def test_a_report_of_an_aborted_transaction_says_nothing_of_the_next_one(bench: Bench) -> None:
    producer = bench.transactional()
    producer.begin()
    producer.send_changelog(ROWS, rows(5))
    producer.abort()
    bench.client.report(offset=7)
    producer.begin()
    producer.apply_backpressure(1)
    producer.send_changelog(ROWS, rows(5))
    producer.commit()
    bench.client.report(offset=9)
    assert producer.changelog_ends([ROWS]) == {ROWS: 10}


def test_a_client_that_does_not_say_where_rows_went_is_of_no_use(bench: Bench) -> None:
    producer = bench.transactional()
    producer.begin()
    producer.send_changelog(ROWS, rows(5))
    producer.commit()
    with pytest.raises(OutcomeUnknownError, match="end offsets of changelogs"):
        producer.changelog_ends([ROWS])


def test_a_commit_without_an_answer_is_not_called_again(bench: Bench) -> None:
    """It may have been final, and then another one would be the next transaction's."""
    producer = bench.transactional()
    producer.begin()
    bench.client.fails["commit_transaction"] = KafkaError(KafkaError._TIMED_OUT)
    with pytest.raises(OutcomeUnknownError):
        producer.commit()
    assert bench.calls == ["commit_transaction"]


@pytest.mark.parametrize(("end", "closed"), [(None, False), ("commit", True), ("abort", True)])
def test_a_producer_is_dropped_without_a_wait_for_its_open_transaction(
    bench: Bench, end: str | None, closed: bool
) -> None:
    producer = bench.transactional()
    producer.begin()
    if end is not None:
        getattr(producer, end)()
    producer.close()
    assert ("close" in bench.calls) is closed


def test_what_a_client_warns_of_when_it_closes_is_no_line_on_standard_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    producer = bench.transactional()

    def close() -> None:
        warnings.warn("abort_transaction failed during close", RuntimeWarning, stacklevel=1)
        bench.calls.append("close")

    monkeypatch.setattr(bench.client, "close", close)
    producer.close()
    assert bench.calls[-1] == "close"
    assert not recwarn.list


# -- at least once -------------------------------------------------------------------------------


def test_offsets_are_committed_behind_all_records(bench: Bench) -> None:
    producer = bench.plain()
    producer.send_offsets(OFFSETS, "member")
    producer.commit()
    assert bench.calls == ["flush", "commit [7]"]


def test_nothing_is_committed_of_records_that_failed(bench: Bench) -> None:
    producer = bench.plain()
    producer.send_offsets(OFFSETS, "member")
    bench.fail_a_record()
    with pytest.raises(FatalClientError, match="out-0 failed: no broker took it"):
        producer.commit()
    assert bench.calls == ["flush"]


def test_a_failure_is_forgotten_with_what_was_aborted(bench: Bench) -> None:
    """What failed is processed again, so it is no reason against the next commit."""
    producer = bench.plain()
    bench.fail_a_record()
    with pytest.raises(FatalClientError):
        producer.apply_backpressure(1)
    producer.abort()
    producer.send_offsets(OFFSETS, "member")
    producer.commit()
    assert bench.calls == ["purge", "flush", "flush", "commit [7]"]


def test_records_that_no_broker_acknowledges_are_not_waited_for_for_ever(bench: Bench) -> None:
    producer = bench.plain()
    producer.send_offsets(OFFSETS, "member")
    bench.client.waiting = 3
    with pytest.raises(OutcomeUnknownError, match="3 records were not acknowledged within 10 s"):
        producer.commit()
    assert "commit [7]" not in bench.calls
