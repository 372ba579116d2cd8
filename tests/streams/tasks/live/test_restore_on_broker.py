"""Taking over state on a real broker: what is read, waited for, kept and refused."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import confluent_kafka
import pytest
import structlog
from confluent_kafka.admin import AdminClient

from headrace.state.codec import encode_timestamped
from headrace.streams.app import State
from headrace.streams.plan.identity import ChangelogLostError
from headrace.streams.tasks.lost_offsets import StateWithoutOffsetsError
from headrace.topology import Materialized, serdes
from tests.support import kafka
from tests.support.counting import Counting
from tests.support.live import Live
from tests.support.patience import PATIENCE_S
from tests.support.processes import running, wait_until
from tests.support.topics import Topics


def write_aborted(bootstrap: str, topic: str, count: int) -> None:
    """Leave aborted records and a marker at the end of a topic."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"aborts-{topic}"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, b"\0" * 8, b"key-%d" % number)
    producer.flush(30)
    producer.abort_transaction(30)


def rows_in(counting: Counting) -> int:
    return len(kafka.read(counting.bootstrap, counting.changelog))


def test_a_restore_ends_behind_aborted_records_and_reads_only_what_is_missing(
    topics: Topics, tmp_path: Path
) -> None:
    """The changelog ends in control markers alone, where no record ever comes."""
    counting = Counting(topics, tmp_path)
    counting.write(30)
    counting.finish()
    write_aborted(topics.bootstrap, counting.changelog, 5)
    counting.write(10)
    kept = counting.finish()
    (restored,) = kept.restored
    # Between the local position and the end: the last commit's marker, and what was aborted.
    assert (restored.end - restored.begin, restored.total) == (7, 0)
    write_aborted(topics.bootstrap, counting.changelog, 5)
    counting.lose_state()
    counting.write(10)
    lost = counting.finish()
    (restored,) = lost.restored
    assert (restored.place, restored.store) == ((counting.changelog, 0), "counts")
    assert (restored.begin, restored.total) == (0, sum(count for _, count in restored.batches))
    assert [offset for offset, _ in restored.batches] == sorted(o for o, _ in restored.batches)
    counting.check_exact()


def test_local_state_lost_reads_every_committed_row_and_no_other(
    topics: Topics, tmp_path: Path
) -> None:
    counting = Counting(topics, tmp_path)
    counting.write(30)
    counting.finish()
    write_aborted(topics.bootstrap, counting.changelog, 5)
    rows = rows_in(counting)
    counting.lose_state()
    with counting.run() as app:
        app.wait_running()
    (restored,) = app.restored
    assert restored.total == rows
    state = counting.local_state()
    held = {key: serdes.long.deserialize(row[8:]) for key, row in state.store("counts").scan()}
    state.close()
    assert held == counting.expected


def test_the_transaction_of_a_dead_worker_is_waited_for(topics: Topics, tmp_path: Path) -> None:
    """Its offsets were sent and are undecided; a new worker with another identity cannot end it."""
    counting = Counting(
        topics,
        tmp_path,
        max_poll_records=10,
        consumer_session_timeout_ms=2_000,
        consumer_heartbeat_interval_ms=500,
        producer_transaction_timeout_ms=6_000,
    )
    counting.write(100)
    plan = {
        "settings": counting.settings | {"worker.id": "dead"},
        "input": counting.input,
        "output": counting.output,
        "die_at": "offsets_sent",
        "die_on": 4,  # the first one is of what the task begins from
    }
    with running(plan, tmp_path / "log") as dead:
        assert dead.wait() < 0, dead.text()
    counting.lose_state()
    with structlog.testing.capture_logs() as events:
        app = counting.finish(worker_id="new")
    assert "offsets_undecided" in [event["event"] for event in events]
    assert app.processed == 100 - 20
    counting.check_exact()


def test_a_changelog_that_was_created_anew_does_not_replace_the_local_rows(
    topics: Topics, tmp_path: Path
) -> None:
    """Its number stands beside the offsets, even where the rows are of another worker's commit."""
    counting = Counting(topics, tmp_path)
    counting.write(30)
    counting.finish()
    counting.damage({}, commit_id=1)
    delete(topics, counting.changelog)
    topics.create_named(counting.changelog, config={"cleanup.policy": "compact"})
    kafka.write(topics.bootstrap, counting.input, [(b"key-0", b"x"), (b"key-1", b"x")])
    with (
        pytest.raises(ChangelogLostError, match="new topics of the same names"),
        counting.run() as app,
    ):
        app.wait_processed(2)


@pytest.mark.parametrize("proof", ["beyond the end", "deletions missed"])
def test_local_rows_that_are_proved_wrong_are_read_anew(
    proof: str, topics: Topics, tmp_path: Path
) -> None:
    """The topic's own delete.retention.ms decides which deletions may be missed."""
    store = Materialized("counts", topic_config={"delete.retention.ms": "60000"})
    counting = Counting(topics, tmp_path, store=store)
    counting.write(30)
    counting.finish()
    wrong = {key: encode_timestamped(0, serdes.long.serialize(999)) for key in counting.expected}
    if proof == "beyond the end":
        counting.damage(wrong, offset=1_000, commit_id=0)
    else:
        counting.damage(wrong, offset=1, wall_ms=1_700_000_000_000)
    rows = rows_in(counting)
    counting.write(10)
    with structlog.testing.capture_logs() as events:
        app = counting.finish()
    assert [e["store"] for e in events if e["event"] == "store_dropped"] == ["counts"]
    assert [r.total for r in app.restored] == [rows]
    counting.check_exact()


def test_local_rows_that_are_a_little_behind_are_built_upon(topics: Topics, tmp_path: Path) -> None:
    """Behind the end, but within delete.retention.ms: no proof against them."""
    counting = Counting(topics, tmp_path)
    counting.write(30, keys=1)
    counting.finish()
    rows = rows_in(counting)
    kept = encode_timestamped(0, serdes.long.serialize(7))
    counting.damage({b"other": kept}, offset=1)
    counting.write(10, keys=1)
    app = counting.finish()
    assert [(r.begin, r.total) for r in app.restored] == [(1, rows - 1)]
    state = counting.local_state()
    assert state.store("counts").get(b"other") == kept
    state.close()
    counting.check_exact()


def test_a_store_in_memory_is_restored_at_each_start(topics: Topics, tmp_path: Path) -> None:
    counting = Counting(topics, tmp_path, store=Materialized("counts", kind="memory"))
    for _ in range(2):
        counting.write(20)
        counting.finish()
    rows = rows_in(counting)
    counting.write(20)
    app = counting.finish()
    assert [(r.begin, r.total) for r in app.restored] == [(0, rows)]
    assert not list(counting.state_dir.rglob("rocksdb"))
    counting.check_exact()


def test_an_unlogged_store_is_kept_with_its_offsets_and_emptied_with_others(
    topics: Topics, tmp_path: Path
) -> None:
    """Nothing but the commit's number says whether it belongs to the committed offsets."""
    counting = Counting(topics, tmp_path, store=Materialized("counts", logged=False))
    counting.write(20, keys=1)
    counting.finish()
    backup = tmp_path / "backup"
    shutil.copytree(counting.state_dir, backup)
    counting.write(10, keys=1)
    counting.finish()
    counting.check_exact()
    counting.lose_state()
    shutil.copytree(backup, counting.state_dir)
    kafka.write(topics.bootstrap, counting.input, [(b"key-0", b"x")])
    with counting.run() as app:
        app.wait_processed(1)
    assert topics.partitions(counting.changelog) == 0
    last = kafka.read(topics.bootstrap, counting.output)[-1]
    assert last.value == serdes.long.serialize(1)


@pytest.mark.parametrize("state", ["kept", "lost"])
def test_state_without_offsets_is_refused(state: str, topics: Topics, tmp_path: Path) -> None:
    """From the beginning again, every record would be counted twice."""
    counting = Counting(topics, tmp_path)
    counting.write(20)
    counting.finish()
    delete_group(topics, counting.group)
    if state == "lost":
        counting.lose_state()
    app = Live(counting.topology(), counting.settings)
    error = app.failure()
    assert isinstance(error, StateWithoutOffsetsError)
    assert f"no committed offsets for {counting.input}-0" in str(error)
    assert app.state is State.ERROR
    assert counting.committed() == {}
    counting.check_exact()


def test_at_least_once_begins_anew_without_offsets(topics: Topics, tmp_path: Path) -> None:
    """It promises no more than that nothing is lost."""
    counting = Counting(topics, tmp_path, processing_guarantee="at_least_once")
    counting.write(20)
    counting.finish()
    delete_group(topics, counting.group)
    counting.expected += Counter(counting.expected)
    counting.finish()


def delete(topics: Topics, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    wait_until(lambda: topics.partitions(topic) == 0, what=f"{topic} is gone")


def delete_group(topics: Topics, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})
    admin.delete_consumer_groups([group])[group].result(PATIENCE_S)
