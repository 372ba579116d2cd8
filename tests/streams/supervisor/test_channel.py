"""Messages between supervisor and worker arrive whole, and hold neither of them up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.streams.kafka.unreached import Unreached
from headrace.streams.metrics.snapshots import WorkerSnapshot
from headrace.streams.queries.query_queue import (
    Outcome,
    QueryQueue,
    QueryRefusal,
    StateQueryRequest,
    StateQueryResponse,
    UnansweredError,
)
from headrace.streams.supervisor.channel import (
    Answer,
    Channel,
    Launch,
    Message,
    QueryCommand,
    SetLogLevel,
    Stop,
    WorkerQueries,
)
from headrace.streams.supervisor.worker_process import StopSwitch, _Commands
from headrace.streams.supervisor.worker_reports import Ended, Loaded, Reporter, Status
from headrace.streams.tasks.failures import FailureReport
from tests.support.processes import wait_until
from tests.support.snapshots import worker_snapshot

STATUS = Status("running", 3, 10, 20, 1_000, 5, 0.25, 7.5)
ASKED = StateQueryRequest("counts", 0, 1, keys=(b"\x00\xff",))
SAID = StateQueryResponse(
    "topic", 5, 7, 9, values=(b"\xfe", None), rows=((b"a", b"1"),), after=b"a", count=3
)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """The channel's ends of the supervisor and of the worker."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    made = Channel(ours), Channel(theirs)
    yield made
    for end in made:
        end.close()


def received(channel: Channel, count: int) -> list[Message]:
    found: list[Message] = []

    def read() -> bool:
        found.extend(channel.receive())
        return len(found) >= count

    wait_until(read, what=f"{count} messages")
    return found


def test_messages_arrive_as_they_were_sent(ends: tuple[Channel, Channel]) -> None:
    reports: list[Message] = [
        Loaded("app", 5_000),
        STATUS,
        worker_snapshot(tasks=2),
        FailureReport("RecordError", "it is wrong", "KeyError", ["a.py:1 f"], ["line"]),
        Unreached("kafka:9092", "refused", 2.0, 4.0, "start it"),
        Answer(7, response=SAID),
        Answer(8, refused=QueryRefusal("restoring", remaining=5)),
        Ended(0),
    ]
    assert all(ends[1].send(report) for report in reports)
    assert received(ends[0], len(reports)) == reports
    commands: list[Message] = [
        Launch(target="a:b", settings={"poll.ms": 5, "sasl.password": "p"}, endpoint="h:1"),
        SetLogLevel("debug"),
        QueryCommand(7, ASKED),
        Stop(leave=True),
    ]
    assert all(ends[0].send(command) for command in commands)
    reader = ends[1].receive()
    assert [next(reader) for _ in commands] == commands


def test_a_reader_that_does_not_read_holds_nobody_up_and_tears_no_message(
    ends: tuple[Channel, Channel],
) -> None:
    messages = [Loaded("app" * 100, number) for number in range(20_000)]
    with capture_logs() as logs:
        sent = [message for message in messages if ends[1].send(message)]
        assert 0 < len(sent) < len(messages)
        assert received(ends[0], len(sent)) == sent
        assert ends[1].send(STATUS)
        assert received(ends[0], 1) == [STATUS]
        dropped = len(messages) - len(sent)
        wait_until(lambda: sum(e["messages"] for e in logs) == dropped, what="the log of the drops")
    assert {(e["event"], e["log_level"]) for e in logs} == {("messages_dropped", "warning")}


def test_a_message_of_any_size_arrives_whole(ends: tuple[Channel, Channel]) -> None:
    large = Loaded("a" * 3_000_000, 1)
    assert ends[1].send(large)
    assert not ends[1].send(STATUS)
    assert not ends[1].send_and_flush(STATUS, within_s=0.05)
    assert received(ends[0], 2) == [large, STATUS]
    assert ends[1].send_and_flush(STATUS, within_s=60)
    assert received(ends[0], 1) == [STATUS]


def test_a_worker_of_many_tasks_is_reported_whole(ends: tuple[Channel, Channel]) -> None:
    snapshot = worker_snapshot(tasks=1_000)
    assert ends[1].send(snapshot)
    assert received(ends[0], 1) == [snapshot]


def test_a_reader_that_is_gone_is_noticed_and_does_no_harm(ends: tuple[Channel, Channel]) -> None:
    ends[0].close()
    assert not ends[1].send_and_flush(STATUS, within_s=60)
    assert list(ends[1].receive()) == []
    assert ends[1].has_ended


def test_a_frame_that_is_too_large_ends_the_channel() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    theirs.sendall(b"\xff\xff\xff\xff")
    assert list(channel.receive()) == []
    assert channel.has_ended
    channel.close()
    theirs.close()


def test_secrets_of_the_settings_reach_the_worker_and_are_wrapped_there(tmp_path: Path) -> None:
    launch = Launch(target="a:b", settings={"sasl.password": "hunter2"})
    assert launch.settings["sasl.password"].reveal() == "hunter2"
    assert "hunter2" not in repr(launch)


def test_a_reporter_sends_how_things_are_now_and_once_more_at_the_end() -> None:
    asked = threading.Event()
    found: list[Status | WorkerSnapshot] = []
    processed = 1

    def status() -> Status:
        asked.set()
        return replace(STATUS, processed=processed)

    with Reporter(found.append, status, every_s=2):
        assert asked.wait(10)
        processed = 2
    assert found[-1] == replace(STATUS, processed=2)


def test_a_reporter_tells_the_numbers_before_the_status() -> None:
    asked = threading.Event()
    found: list[Status | WorkerSnapshot] = []
    snapshot = worker_snapshot(tasks=2)

    def status() -> Status:
        asked.set()
        return STATUS

    with Reporter(found.append, status, lambda: snapshot, every_s=2):
        assert asked.wait(10)
    assert found == [snapshot, STATUS] * 2


class Supervisor(threading.Thread):
    """Reads what a worker sends, as the supervisor does in its loop."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(daemon=True)
        self.channel = channel
        self.queries = WorkerQueries(channel)
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.001):
            for message in self.channel.receive():
                assert isinstance(message, Answer)
                self.queries.on_answer(message)
            if self.channel.has_ended:
                self.queries.close()


@pytest.fixture
def joined(ends: tuple[Channel, Channel]) -> Iterator[tuple[WorkerQueries, QueryQueue, Channel]]:
    supervisor = Supervisor(ends[0])
    supervisor.start()
    commands, desk = _Commands(ends[1], StopSwitch(), lambda: None), QueryQueue()
    commands.queue = desk
    commands.start()
    yield supervisor.queries, desk, ends[1]
    supervisor.over.set()
    supervisor.join()
    commands.ended.set()


class Working(threading.Thread):
    """Answers what a desk has, as a worker does."""

    def __init__(self, desk: QueryQueue, outcome: Outcome) -> None:
        super().__init__(daemon=True)
        self._desk = desk
        self._outcome = outcome
        self.over = threading.Event()

    def __enter__(self) -> None:
        self._desk.open()
        self.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()

    def run(self) -> None:
        while not self.over.wait(0.001):
            self._desk.turn(lambda _: self._outcome)


def test_questions_and_answers_go_through_a_socket_as_they_are(
    joined: tuple[WorkerQueries, QueryQueue, Channel],
) -> None:
    line, desk, _ = joined
    with Working(desk, SAID):
        assert line.ask(ASKED, 30.0) == SAID
        many: list[StateQueryResponse] = []
        askers = [
            threading.Thread(target=lambda: many.append(line.ask(ASKED, 30.0))) for _ in range(20)
        ]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join(30)
        assert many == [SAID] * 20


def test_a_refusal_and_a_large_answer_go_through_too(
    joined: tuple[WorkerQueries, QueryQueue, Channel],
) -> None:
    line, desk, _ = joined
    restoring = QueryRefusal("the task is restoring", remaining=5)
    with Working(desk, restoring), pytest.raises(UnansweredError, match="is restor") as refused:
        line.ask(ASKED, 30.0)
    assert refused.value.refused.remaining == 5
    large = StateQueryResponse("topic", 5, 7, 9, values=(bytes(5 << 20),))
    with Working(desk, large):
        assert line.ask(ASKED, 30.0) == large


def test_an_answer_that_comes_too_late_is_not_that_of_the_next_question(
    joined: tuple[WorkerQueries, QueryQueue, Channel],
) -> None:
    line, desk, _ = joined
    desk.open()
    with pytest.raises(UnansweredError, match="did not answer within"):
        line.ask(ASKED, 0.05)
    wait_until(lambda: desk.bounded(1.0) == 0.0, what="the question to be there")
    other = StateQueryResponse("topic", 6, 8, 9)
    answers = iter([SAID, other])

    class InTurn(Working):
        def run(self) -> None:
            while not self.over.wait(0.001):
                self._desk.turn(lambda _: next(answers))

    with InTurn(desk, SAID):
        assert line.ask(ASKED, 30.0) == other


def test_whoever_waits_is_told_that_the_worker_has_ended(
    joined: tuple[WorkerQueries, QueryQueue, Channel],
) -> None:
    line, desk, theirs = joined
    desk.open()
    said: list[str] = []

    def ask() -> None:
        try:
            line.ask(ASKED, 30.0)
        except UnansweredError as error:
            said.append(str(error))

    asker = threading.Thread(target=ask)
    asker.start()
    wait_until(lambda: desk.bounded(1.0) == 0.0, what="the question to be there")
    theirs.close()
    asker.join(30)
    assert said == ["its worker has ended. Retry later"]
    with pytest.raises(UnansweredError, match="its worker has ended"):
        line.ask(ASKED, 30.0)


def test_a_process_that_reads_no_questions_takes_nobody_with_it(
    ends: tuple[Channel, Channel],
) -> None:
    queries = WorkerQueries(ends[0])
    large = StateQueryRequest("counts", 0, 1, keys=(bytes(200_000),))
    silent = "its worker did not answer within 0.001 s: a batch, a commit or a function takes"
    said = set()
    for _ in range(90):
        with pytest.raises(UnansweredError) as refused:
            queries.ask(large, 0.001)
        said.add(str(refused.value))
    assert len(said) == 2
    assert any(text.startswith(silent) for text in said)
    assert "its worker reads no queries now. Retry later" in said
    queries.close()
    with pytest.raises(UnansweredError, match="its worker has ended"):
        queries.ask(ASKED, 30.0)


def test_queries_before_the_application_is_loaded_are_refused_at_once(
    ends: tuple[Channel, Channel],
) -> None:
    commands = _Commands(ends[1], StopSwitch(), lambda: None)
    commands.start()
    assert ends[0].send(QueryCommand(1, ASKED))
    (answer,) = received(ends[0], 1)
    assert isinstance(answer, Answer)
    assert answer.refused is not None
    commands.ended.set()
