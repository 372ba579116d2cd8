"""When a worker commits on a real broker, what, and under which membership."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
import structlog

from headrace.streams.app import State
from headrace.streams.errors import AbortableError
from headrace.streams.plan.identity import without_ids
from headrace.streams.plan.progress import COMMIT_ID, OffsetMetadata
from headrace.topology import StreamsBuilder, serdes
from tests.support import kafka, oracle
from tests.support.counting import Counting
from tests.support.live import live, settings_of
from tests.support.processes import running, wait_until
from tests.support.topics import Topics

LONG_MS = 600_000
# A transaction lasts from one commit to the next.
RARELY = {"commit_interval_ms": LONG_MS, "producer_transaction_timeout_ms": 900_000}


def transactional(bootstrap: str, topic: str) -> confluent_kafka.Producer:
    """A producer that writes to a topic beside an application."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"writes-{topic}"}
    )
    producer.init_transactions(30)
    return producer


def write_in_transactions(bootstrap: str, topic: str, count: int, *, each: int) -> None:
    """Write records in committed transactions, whose markers take an offset each."""
    producer = transactional(bootstrap, topic)
    for first in range(0, count, each):
        producer.begin_transaction()
        for number in range(first, min(first + each, count)):
            producer.produce(topic, b"x", b"key-%d" % (number % 3))
        producer.commit_transaction(30)


class TestOffsets:
    """What is committed of the input."""

    def test_every_input_of_a_task_is_committed_moved_or_not(
        self, topics: Topics, tmp_path: Path
    ) -> None:
        """Offsets of the two belong together, and their metadata says how far the task was."""
        moved, still, sink = topics.create("in"), topics.create("in"), topics.create("out")
        builder = StreamsBuilder()
        a, b = (builder.stream(t, key=serdes.string, value=serdes.string) for t in (moved, still))
        a.merge(b).to(sink)
        settings = settings_of(topics, tmp_path)
        group = settings["application.id"]
        commit_ids = []
        for _ in range(2):
            kafka.write(topics.bootstrap, moved, [(b"k", b"v")] * 3, timestamp=1_000)
            with live(builder.build(), settings) as app:
                app.wait_processed(3)
            found = {
                topic: OffsetMetadata.decode(
                    kafka.committed_metadata(topics.bootstrap, group, topic)[0]
                )
                for topic in (moved, still)
            }
            assert found[moved].partition_time == 1_002
            assert found[still].partition_time == -1
            assert without_ids(found[moved].values) == without_ids(found[still].values)
            commit_ids.append(found[moved].values[COMMIT_ID])
        assert kafka.committed(topics.bootstrap, group, moved) == {0: 6}
        assert kafka.committed(topics.bootstrap, group, still) == {0: 0}
        assert commit_ids[0] != commit_ids[1]

    def test_commit_ids_rise_from_commit_to_commit(self, topics: Topics, tmp_path: Path) -> None:
        counting = Counting(topics, tmp_path)
        seen = []
        with counting.run() as app:
            for _ in range(3):
                counting.write(5)
                counting.wait(app)
                app.wait(lambda: counting.committed() == {0: sum(counting.expected.values())})
                text = kafka.committed_metadata(topics.bootstrap, counting.group, counting.input)
                seen.append(OffsetMetadata.decode(text[0]).values[COMMIT_ID])
        assert seen == sorted(set(seen))

    def test_the_offset_behind_transactions_of_others_leaves_no_lag(
        self, topics: Topics, tmp_path: Path
    ) -> None:
        """The last offset of the input is a marker, which no consumer hands out."""
        counting = Counting(topics, tmp_path)
        write_in_transactions(topics.bootstrap, counting.input, 20, each=7)
        with counting.run() as app:
            app.wait_processed(20)
        ends = kafka.ends(topics.bootstrap, counting.input)
        assert ends == {0: 23}
        assert counting.committed() == ends

    def test_what_was_aborted_behind_the_last_record_leaves_no_lag(
        self, topics: Topics, tmp_path: Path
    ) -> None:
        """Nothing of it is ever handed out to a worker that is quiet."""
        counting = Counting(topics, tmp_path)
        with counting.run() as app:
            counting.write(5)
            counting.wait(app)
            producer = transactional(topics.bootstrap, counting.input)
            producer.begin_transaction()
            producer.produce(counting.input, b"x", b"void")
            producer.flush(30)
            producer.abort_transaction(30)
            app.wait(lambda: counting.committed() == {0: 7}, what="no lag")
            assert kafka.ends(topics.bootstrap, counting.input) == {0: 7}
        counting.check_exact()

    def test_the_application_has_no_lag_in_its_own_repartition_topics(
        self, topics: Topics, tmp_path: Path
    ) -> None:
        source, sink = topics.create("in"), topics.create("out")
        builder = StreamsBuilder()
        stream = builder.stream(source, key=serdes.string, value=serdes.string)
        words = stream.group_by(lambda _, v: v, key=serdes.string, name="by-word")
        words.count(store="counts").to_stream().to(sink)
        settings = settings_of(topics, tmp_path, max_poll_records=7)
        group = settings["application.id"]
        repartition = f"{group}-by-word-repartition"
        kafka.write(topics.bootstrap, source, [(b"k", b"word")] * 30)
        with live(builder.build(), settings) as app:
            app.wait_processed(60)
            app.wait(
                lambda: (
                    kafka.committed(topics.bootstrap, group, repartition)
                    == kafka.ends(topics.bootstrap, repartition)
                ),
                what="no lag",
            )
        oracle.check_exact(kafka.read(topics.bootstrap, sink), {b"word": 30})


class TestWhen:
    """The moment of a commit."""

    def test_exactly_once_commits_as_soon_as_the_input_is_drained(
        self, topics: Topics, tmp_path: Path
    ) -> None:
        counting = Counting(topics, tmp_path, **RARELY)
        counting.write(20)
        with counting.run() as app:
            app.wait_processed(20)
            counting.write(5)
            app.wait_processed(25)
        counting.check_exact()

    def test_exactly_once_waits_for_the_interval_where_it_is_told_to(
        self, topics: Topics, tmp_path: Path
    ) -> None:
        counting = Counting(topics, tmp_path, commit_interval_min_ms=LONG_MS, **RARELY)
        counting.write(20)
        with counting.run() as app:
            app.wait(lambda: len(uncommitted(counting)) == 20, what="20 records, not committed")
            assert (app.commits, counting.committed()) == ([], {})
            assert kafka.read(topics.bootstrap, counting.output) == []
        assert app.processed == 20
        counting.check_exact()

    def test_at_least_once_waits_for_the_interval(self, topics: Topics, tmp_path: Path) -> None:
        counting = Counting(
            topics, tmp_path, processing_guarantee="at_least_once", commit_interval_ms=LONG_MS
        )
        counting.write(20)
        with counting.run() as app:
            counting.wait(app)
            assert (app.commits, counting.committed()) == ([], {})
        assert counting.committed() == {0: 20}

    @pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
    def test_the_interval_commits_what_is_done(
        self, guarantee: str, topics: Topics, tmp_path: Path
    ) -> None:
        counting = Counting(
            topics,
            tmp_path,
            processing_guarantee=guarantee,
            commit_interval_ms=300,
            commit_interval_min_ms=LONG_MS,
        )
        counting.write(20)
        with counting.run() as app:
            app.wait_processed(20)
            assert app.state is State.RUNNING

    def test_a_full_buffer_commits_early(self, topics: Topics, tmp_path: Path) -> None:
        counting = Counting(
            topics,
            tmp_path,
            statestore_uncommitted_max_bytes=1 << 20,
            max_poll_records=500,
            commit_interval_min_ms=LONG_MS,
            **RARELY,
        )
        records = [(b"%d" % n + b"-" * 500, b"x") for n in range(5_000)]
        kafka.write(topics.bootstrap, counting.input, records)
        with counting.run() as app:
            app.wait(lambda: len(app.commits) >= 2, what="two commits before the interval")
            assert app.processed < len(records)
            app.wait(lambda: len(uncommitted(counting)) == len(records), what="the rest")
        assert app.processed == len(records)


def uncommitted(counting: Counting) -> list[kafka.Record]:
    return kafka.read(counting.bootstrap, counting.output, "read_uncommitted")


class TestStopping:
    """What is left behind by a worker that stops."""

    @pytest.mark.parametrize(("on_stop", "left"), [("leave", set()), ("stay", {"w"})])
    def test_the_group_is_left_at_once_unless_the_worker_is_to_come_back(
        self, on_stop: str, left: set[str], topics: Topics, tmp_path: Path
    ) -> None:
        """Trap 34: leaving is the default, so nobody waits for the session to end."""
        counting = Counting(topics, tmp_path, on_stop=on_stop)
        counting.settings["consumer.session.timeout.ms"] = 60_000
        counting.write(10)
        counting.finish()
        assert kafka.members(topics.bootstrap, counting.group) == left

    @pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
    def test_sigterm_commits_what_was_processed_and_ends_well(
        self, guarantee: str, topics: Topics, tmp_path: Path
    ) -> None:
        counting = Counting(
            topics,
            tmp_path,
            processing_guarantee=guarantee,
            commit_interval_min_ms=LONG_MS,
            **RARELY,
        )
        counting.write(50)
        plan = {
            "settings": counting.settings,
            "input": counting.input,
            "output": counting.output,
        }
        with running(plan, tmp_path / "log") as process:
            wait_until(
                lambda: not process.running or len(uncommitted(counting)) == 50,
                what="all records processed",
            )
            assert process.running, process.text()
            assert counting.committed() == {}
            process.stop()
        assert counting.committed() == {0: 50}
        assert kafka.members(topics.bootstrap, counting.group) == set()
        counting.check_exact()
        assert counting.finish().processed == 0


class TestAborts:
    """A transaction that cannot be committed; the stream goes on exactly where it was."""

    def test_an_aborted_commit_is_done_again_from_committed_facts(
        self, topics: Topics, tmp_path: Path
    ) -> None:
        counting = Counting(topics, tmp_path, partitions=2, max_poll_records=10)
        counting.write(200)
        left = ["caches_flushed", "changelogs_written", "offsets_sent"]
        seen = 0

        def fail_now_and_then(step: str) -> None:
            nonlocal seen
            seen += step == "caches_flushed"
            if left and step == left[0] and seen % 2 == 0:
                raise AbortableError(f"injected at {left.pop(0)}")

        with structlog.testing.capture_logs() as events:
            app = counting.finish(probe=fail_now_and_then)
        reasons = [e["reason"] for e in events if e["event"] == "transaction_aborted"]
        assert [reason.split()[-1] for reason in reasons] == [
            "caches_flushed", "changelogs_written", "offsets_sent"
        ]  # fmt: skip
        assert app.processed == 200
        counting.check_exact()

    def test_a_commit_goes_on_under_the_next_generation_of_the_same_member(
        self, topics: Topics, tmp_path: Path
    ) -> None:
        """What it commits is still its own: nothing is taken away before its callbacks."""
        counting = Counting(topics, tmp_path, partitions=2, max_poll_records=10)
        counting.write(100)
        steps: list[str] = []
        with contextlib.ExitStack() as stack:

            def rebalance_behind_its_back(step: str) -> None:
                is_of_records = "transaction_committed" in steps
                if step == "changelogs_written" and is_of_records and "rebalanced" not in steps:
                    stack.enter_context(another_member(counting))
                    step = "rebalanced"
                if step != "transaction_begun":
                    steps.append(step)

            with counting.run(probe=rebalance_behind_its_back) as app:
                app.wait(lambda: steps.count("caches_flushed") > 3, what="another commit")
                stack.close()
                counting.wait(app)
        after = steps[steps.index("rebalanced") + 1]
        assert after == "offsets_sent", "the commit was refused, and done again"
        counting.check_exact()

    def test_a_function_that_outlasts_the_poll_interval_is_done_again(
        self, topics: Topics, tmp_path: Path
    ) -> None:
        """The group has moved the partitions on meanwhile: nothing of it may be committed."""
        counting = Counting(
            topics,
            tmp_path,
            max_poll_records=10,
            consumer_max_poll_interval_ms=1_500,
            consumer_heartbeat_interval_ms=300,
        )
        counting.settings["consumer.session.timeout.ms"] = 1_500
        counting.write(50)
        slow = iter([0, 2.5])  # the first commit is of where the task begins

        def once_slow(step: str) -> None:
            if step == "caches_flushed":
                time.sleep(next(slow, 0))

        with structlog.testing.capture_logs() as events:
            counting.finish(probe=once_slow)
        assert any(e["event"] in ("transaction_aborted", "partitions_lost") for e in events)
        counting.check_exact()


@contextlib.contextmanager
def another_member(counting: Counting) -> Iterator[None]:
    """A member that takes what it is given and reads nothing; here once both are in the group."""
    member = confluent_kafka.Consumer(
        {
            "bootstrap.servers": counting.bootstrap,
            "group.id": counting.group,
            "group.instance.id": "another",
            # It ends with the version of the topology, which has to be that of the worker.
            "client.id": kafka.client_ids(counting.bootstrap, counting.group)["w"],
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "session.timeout.ms": 2_000,
            "heartbeat.interval.ms": 500,
        }
    )
    member.subscribe(
        [counting.input],
        on_assign=lambda client, _: client.incremental_assign([]),
        on_revoke=lambda client, _: client.incremental_unassign([]),
    )
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            member.poll(0.05)
        member.unsubscribe()
        member.poll(0.1)
        member.close()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        both = {"w", "another"}
        wait_until(lambda: kafka.members(counting.bootstrap, counting.group) == both, what="both")
        yield
    finally:
        stop.set()
        thread.join()
