"""Global tables on a real broker: the load at the start, updates, restarts, kills, refusals."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from headrace.state.codec import decode_timestamped
from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.spec import StoreSpec
from headrace.streams.app import State
from headrace.streams.cli.main import main
from headrace.streams.errors import MissingTopicError, RecordError, StreamsError
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of
from headrace.topology import Materialized
from tests.support import kafka
from tests.support.global_app import topology
from tests.support.live import Live, live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.processes import ROOT, wait_until
from tests.support.topics import Topics

MEMORY = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=8 << 20)


class Joining:
    """One application that joins a stream with a global table, and its topics."""

    def __init__(
        self, topics: Topics, directory: Path, *, partitions: int = 3, **settings: Any
    ) -> None:
        self.topics = topics
        self.bootstrap = topics.bootstrap
        self.table = topics.create("table", partitions=partitions)
        self.input = topics.create("in", partitions=2)
        self.output = topics.create("out")
        self.settings = settings_of(topics, directory, **settings)
        self.group = self.settings["application.id"]
        self.directory = Path(self.settings["state.dir"]) / self.group / "global"
        self.topology = topology(self.table, self.input, self.output)
        self.sent = 0

    def run(self, **more: Any) -> AbstractContextManager[Live]:
        return live(self.topology, {**self.settings, **more})

    def failure(self, act: Callable[[], object] | None = None) -> StreamsError:
        """Run until an error ends it; `act` is called once it runs."""
        if act is None:
            return Live(self.topology, self.settings).failure()
        try:
            with self.run() as app:
                app.wait_running()
                act()
                app.wait(lambda: False, what="an error")
        except StreamsError as error:
            return error
        raise AssertionError("it stopped without an error")

    def write_rows(self, rows: dict[str, str | None]) -> None:
        kafka.write(
            self.bootstrap,
            self.table,
            [(k.encode(), None if v is None else v.encode()) for k, v in rows.items()],
        )

    def ask(self, *keys: str) -> None:
        """Write a record to the stream for each of these keys of the table."""
        records = [(b"%d" % (self.sent + n), key.encode()) for n, key in enumerate(keys)]
        self.sent += len(records)
        kafka.write(self.bootstrap, self.input, records)

    def answers(self) -> list[str]:
        found = kafka.read(self.bootstrap, self.output)
        return [r.value.decode() for r in found if r.value is not None]

    def wait_for(self, answer: str) -> None:
        """Ask for a key until this is the answer."""

        def is_there() -> bool:
            self.ask(answer.partition("=")[0])
            return answer in self.answers()

        wait_until(is_there, what=answer)

    def rows(self, worker: str = "w") -> dict[str, str]:
        """The local rows of a worker that does not run."""
        specs = [StoreSpec("r-rows"), StoreSpec("o-rows")]
        state = RocksTaskState(self.directory / worker / "rocksdb", specs, memory=MEMORY)
        try:
            found = state.store("r-rows").scan()
            return {key.decode(): decode_timestamped(row)[1].decode() for key, row in found}
        finally:
            state.close()


@pytest.fixture
def joining(topics: Topics, tmp_path: Path) -> Joining:
    return Joining(topics, tmp_path)


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_all_rows_are_there_for_the_first_record(
    guarantee: str, topics: Topics, tmp_path: Path
) -> None:
    joining = Joining(topics, tmp_path, processing_guarantee=guarantee)
    for version in range(3):
        joining.write_rows({f"k{n}": f"{n}.{version}" for n in range(500)})
    joining.write_rows({f"k{n}": None for n in range(0, 500, 5)})
    joining.ask(*(f"k{n}" for n in range(500)))
    with joining.run() as app:
        app.wait_processed(500)
        assert {r.store for r in app.restored} == {"rows"}
        assert sum(r.total or 0 for r in app.restored) == 1600
    expected = {f"k{n}={n}.2" if n % 5 else f"k{n}=None" for n in range(500)}
    assert sorted(joining.answers()) == sorted(expected)
    assert kafka.committed(joining.bootstrap, joining.group, joining.table) == {}


def test_rows_follow_their_topic_while_the_application_runs(joining: Joining) -> None:
    with joining.run() as app:
        app.wait_running()
        joining.wait_for("a=None")
        joining.write_rows({"a": "1"})
        joining.wait_for("a=1")
        joining.write_rows({"a": "2"})
        joining.wait_for("a=2")
        joining.write_rows({"a": None, "b": "3"})
        joining.wait_for("b=3")
    assert joining.rows() == {"b": "3"}


def test_a_restart_reads_only_what_came_meanwhile(joining: Joining) -> None:
    joining.write_rows({f"k{n}": "old" for n in range(300)})
    with joining.run() as app:
        app.wait_running()
    joining.write_rows({"k1": "new", "k2": "new"})
    joining.ask("k0", "k1", "k2")
    with joining.run() as app:
        app.wait_processed(3)
        # The last record in the rows is read again, and compared.
        assert sum(r.total or 0 for r in app.restored) == 2
    assert sorted(joining.answers()) == ["k0=old", "k1=new", "k2=new"]


def test_a_restart_without_news_applies_nothing(joining: Joining) -> None:
    joining.write_rows({"a": "1"})
    with joining.run() as app:
        app.wait_running()
    joining.ask("a")
    with joining.run() as app:
        app.wait_processed(1)
        assert [r.total for r in app.restored] == [0]
    assert joining.answers() == ["a=1"]


class Changes:
    """Rows that are set and deleted at random, and what must be left of them."""

    def __init__(self, joining: Joining, seed: int) -> None:
        self._joining = joining
        self._choose = random.Random(seed)
        self.rows: dict[str, str] = {}

    def make(self, count: int) -> None:
        made: dict[str, str | None] = {}
        for _ in range(count):
            key = f"k{self._choose.randrange(3_000)}"
            made[key] = None if self._choose.random() < 0.3 else f"v{self._choose.random()}"
        self._joining.write_rows(made)
        for key, value in made.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def die(self, step: str, on: int, *, bulk: int = 500) -> None:
        """Run until the process kills itself at a step; loads in bulk from that many records on."""
        joining = self._joining
        plan = {
            "settings": {**joining.settings, "restore.batch.records": 100},
            "table": joining.table,
            "input": joining.input,
            "output": joining.output,
            "die_at": step,
            "die_on": on,
            "bulk": bulk,
            "keep": 700,
        }
        command = [sys.executable, "-m", "tests.support.global_app", json.dumps(plan)]
        process = subprocess.run(
            command, cwd=ROOT, capture_output=True, timeout=PATIENCE_S, check=False
        )
        assert process.returncode == -signal.SIGKILL, process.stdout[-2000:]


@pytest.mark.parametrize("step", ["global_rows_loaded", "global_load_kept"])
def test_rows_are_exact_after_kills_within_a_load(step: str, joining: Joining) -> None:
    changes = Changes(joining, 7)
    for _ in range(3):
        changes.make(3_000)
    for on in (2, 3, 4):
        changes.die(step, on)
        changes.make(1_000)
    with joining.run() as app:
        app.wait_running()
    assert joining.rows() == changes.rows


def test_rows_are_exact_after_kills_while_they_are_followed(joining: Joining) -> None:
    changes = Changes(joining, 8)
    changes.make(3_000)
    with joining.run() as app:
        app.wait_running()
    for on in (1, 4, 9):
        changes.make(2_000)
        changes.die("global_rows_written", on, bulk=100_000)
    with joining.run() as app:
        app.wait_running()
    assert joining.rows() == changes.rows


def test_two_workers_of_one_host_have_a_copy_each(joining: Joining) -> None:
    joining.write_rows({"a": "1"})
    with joining.run() as one, joining.run(**{"worker.id": "x"}) as other:
        one.wait_running()
        other.wait_running()
        joining.wait_for("a=1")
    assert joining.rows("w") == joining.rows("x") == {"a": "1"}


def undecided(joining: Joining) -> confluent_kafka.Producer:
    """Another writer, who has written a row and not committed it."""
    settings = {"bootstrap.servers": joining.bootstrap}
    producer = confluent_kafka.Producer(
        {**settings, "transactional.id": joining.topics.name("other")}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(joining.table, b"aborted", b"a")
    producer.flush(30)
    return producer


def test_a_stop_while_rows_are_loaded_is_a_clean_one(joining: Joining) -> None:
    producer = undecided(joining)
    with joining.run() as app:
        time.sleep(1)
        assert app.state is State.REBALANCING
    assert app.states[-1] is State.NOT_RUNNING
    producer.abort_transaction(30)


def test_what_another_writer_has_not_committed_is_waited_for(joining: Joining) -> None:
    producer = undecided(joining)
    joining.write_rows({"b": "2"})
    joining.ask("a", "b")
    with joining.run() as app:
        time.sleep(1)
        assert app.state is State.REBALANCING
        assert joining.answers() == []
        producer.abort_transaction(30)
        app.wait_processed(2)
    assert sorted(joining.answers()) == ["a=None", "b=2"]


def test_a_table_in_memory_is_loaded_at_each_start(topics: Topics, tmp_path: Path) -> None:
    joining = Joining(topics, tmp_path)
    in_memory = Materialized("rows", kind="memory")
    joining.topology = topology(joining.table, joining.input, joining.output, store=in_memory)
    joining.write_rows({"a": "1"})
    for count in (1, 2):
        joining.ask("a")
        with joining.run() as app:
            app.wait_processed(1)
            assert [r.total for r in app.restored] == [1]
        assert joining.answers() == ["a=1"] * count


# -- topics that change ---------------------------------------------------------------------------


def test_partitions_that_the_topic_gets_are_followed_without_a_restart(
    topics: Topics, tmp_path: Path
) -> None:
    joining = Joining(topics, tmp_path, partitions=1, topics_check_interval_ms=200)
    with joining.run() as app:
        app.wait_running()
        admin = AdminClient({"bootstrap.servers": joining.bootstrap})
        admin.create_partitions([NewPartitions(joining.table, 4)])[joining.table].result(PATIENCE_S)
        wait_until(lambda: topics.partitions(joining.table) == 4, what="4 partitions")
        time.sleep(0.5)
        joining.write_rows({f"k{n}": "new" for n in range(20)})
        wanted = {f"k{n}=new" for n in range(20)}

        def are_there() -> bool:
            joining.ask(*(f"k{n}" for n in range(20)))
            return wanted <= set(joining.answers())

        wait_until(are_there, what="rows of all partitions")


def test_a_topic_that_is_deleted_stops_the_application(topics: Topics, tmp_path: Path) -> None:
    joining = Joining(topics, tmp_path, topics_check_interval_ms=200)
    joining.write_rows({"a": "1"})
    admin = AdminClient({"bootstrap.servers": joining.bootstrap})
    error = joining.failure(
        lambda: admin.delete_topics([joining.table])[joining.table].result(PATIENCE_S)
    )
    assert isinstance(error, MissingTopicError)
    assert joining.table in str(error)


def test_rows_of_a_topic_that_was_made_anew_are_read_anew(topics: Topics, tmp_path: Path) -> None:
    joining = Joining(topics, tmp_path)
    joining.write_rows({"a": "1", "b": "1"})
    with joining.run() as app:
        app.wait_running()
    admin = AdminClient({"bootstrap.servers": joining.bootstrap})
    admin.delete_topics([joining.table])[joining.table].result(PATIENCE_S)
    wait_until(lambda: not topics.partitions(joining.table), what="deleted")
    topics.create_named(joining.table, partitions=3)
    joining.write_rows({"b": "2"})
    joining.ask("a", "b")
    with joining.run() as app:
        app.wait_processed(2)
    assert sorted(joining.answers()) == ["a=None", "b=2"]
    assert joining.rows() == {"b": "2"}


# -- what is refused ------------------------------------------------------------------------------


def test_a_topic_that_does_not_exist_is_named_at_the_start(joining: Joining) -> None:
    joining.topology = topology(f"{joining.table}x", joining.input, joining.output)
    error = joining.failure()
    assert isinstance(error, MissingTopicError)
    assert f"{joining.table}x (did you mean {joining.table}?)" in str(error)
    assert exit_code_of(error) is ExitCode.TOPICS


@pytest.mark.parametrize("running", [False, True])
def test_a_record_that_cannot_be_decoded_stops_the_application_with_its_place(
    running: bool, topics: Topics, tmp_path: Path
) -> None:
    joining = Joining(topics, tmp_path, partitions=1)
    joining.write_rows({"a": "1"})
    undecodable = [(b"b", b"\xff")]
    if running:
        error = joining.failure(lambda: kafka.write(joining.bootstrap, joining.table, undecodable))
    else:
        kafka.write(joining.bootstrap, joining.table, undecodable)
        joining.ask("a")
        error = joining.failure()
        assert joining.answers() == []
    assert isinstance(error, RecordError)
    assert (error.topic, error.partition, error.offset) == (joining.table, 0, 1)
    assert exit_code_of(error) is ExitCode.RECORD


def test_local_rows_that_cannot_be_read_are_loaded_anew(joining: Joining) -> None:
    joining.write_rows({f"k{n}": "x" * 100 for n in range(1_000)})
    with joining.run() as app:
        app.wait_running()
    for file in (joining.directory / "w" / "rocksdb").glob("*.sst"):
        file.write_bytes(b"\0" * file.stat().st_size)
    joining.ask("k1", "k2")
    with joining.run() as app:
        app.wait_processed(2)
    assert sorted(joining.answers()) == [f"k{n}={'x' * 100}" for n in (1, 2)]


# -- tools ----------------------------------------------------------------------------------------


def test_a_reset_removes_the_local_rows_and_leaves_the_topic(
    joining: Joining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joining.write_rows({"a": "1"})
    joining.ask("a")
    with joining.run() as app:
        app.wait_processed(1)
    source = (
        "from headrace.streams import KafkaStreams\n"
        "from tests.support.global_app import topology\n"
        f"app = KafkaStreams(topology({joining.table!r}, {joining.input!r}, {joining.output!r}), "
        f"{joining.settings!r})\n"
    )
    name = f"resets_{joining.group.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    checked = CliRunner().invoke(main, ["check", "--deployed", f"{name}:app"])
    assert checked.exit_code == 0, checked.output
    done = CliRunner().invoke(main, ["reset", f"{name}:app", "--yes"])
    assert done.exit_code == 0, done.output
    assert str(joining.directory / "w") in done.output
    assert joining.table not in done.output
    assert not (joining.directory / "w").exists()
    assert sum(kafka.ends(joining.bootstrap, joining.table).values()) == 1
    with joining.run() as app:
        app.wait_processed(1)
    assert joining.answers() == ["a=1", "a=1"]
