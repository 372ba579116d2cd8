"""Workers that are added to an application in its process, and removed again, on a real cluster."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from headrace.streams import KafkaStreams
from headrace.streams.app import State
from headrace.streams.errors import RecordError
from headrace.streams.worker.uncaught_errors import UncaughtErrorResponse
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support import kafka
from tests.support.live import Live, live, settings_of
from tests.support.processes import wait_until
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

KEYS = 12


class Counts:
    """A count of each key, and what it has to be."""

    def __init__(self, topics: Topics) -> None:
        self.bootstrap = topics.bootstrap
        self.input = topics.create("in", partitions=4)
        self.output = topics.create("out", partitions=4)
        self.threads: set[str] = set()
        self.written = 0

    def topology(self) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream(self.input, key=serdes.string, value=serdes.string)
        counted = stream.map_values(self.seen).group_by_key().count(store="counts")
        counted.to_stream().to(self.output)
        return builder.build()

    def seen(self, value: str) -> str:
        self.threads.add(threading.current_thread().name)
        if value == "poison":
            raise ValueError(value)
        return value

    def write(self, rounds: int = 1, value: bytes = b"x") -> None:
        keys = [b"key-%02d" % number for number in range(KEYS)] * rounds
        kafka.write(self.bootstrap, self.input, [(key, value) for key in keys])
        self.written += rounds

    def wait_counted(self) -> None:
        def is_counted() -> bool:
            found = kafka.read(self.bootstrap, self.output)
            last = {record.key: int.from_bytes(record.value or b"") for record in found}
            return len(last) == KEYS and min(last.values()) >= self.written

        wait_until(is_counted, what="all records counted")

    def check_exact(self) -> None:
        """Each count came once."""
        found = Counter(
            (record.key, int.from_bytes(record.value or b""))
            for record in kafka.read(self.bootstrap, self.output)
        )
        keys = [b"key-%02d" % number for number in range(KEYS)]
        assert found == Counter((key, n + 1) for key in keys for n in range(self.written))


def tasks_by_worker(app: KafkaStreams) -> dict[int, int]:
    return {
        view.index: len([t for t in view.snapshot.tasks if t.state == "running"])
        for view in app.metrics().workers
        if view.snapshot is not None
    }


def test_counts_stay_exact_while_workers_come_and_go(topics: Topics, tmp_path: Path) -> None:
    counts = Counts(topics)
    settings = settings_of(topics, tmp_path)
    with live(counts.topology(), settings) as here:
        app = here.app
        here.wait_running()
        counts.write(5)
        assert app.remove_worker() is None  # the own one stays
        name = f"headrace-{app.config.application_id}"
        assert [app.add_worker(), app.add_worker()] == [f"{name}-1", f"{name}-2"]
        counts.write(5)
        here.wait(
            lambda: sorted(tasks_by_worker(app).values()) == [1, 1, 2], what="tasks shared out"
        )
        here.wait_running()
        members = kafka.members(topics.bootstrap, app.config.application_id)
        assert members == {"w", "w-1", "w-2"}
        counts.write(5)
        counts.wait_counted()
        assert {f"{name}-1", f"{name}-2"} <= counts.threads
        assert len(app.tasks()) == len(app.lags()) == 4
        assert app.remove_worker() == f"{name}-2"
        assert f"{name}-2" not in {thread.name for thread in threading.enumerate()}
        counts.write(5)
        here.wait(lambda: sorted(tasks_by_worker(app).values()) == [2, 2], what="tasks taken over")
        assert app.add_worker() == f"{name}-2"
        counts.write(5)
        counts.wait_counted()
        assert app.remove_worker() == f"{name}-2"
        assert app.remove_worker() == f"{name}-1"
        assert app.remove_worker() is None
        counts.write(5)
        counts.wait_counted()
        here.wait(lambda: tasks_by_worker(app) == {0: 4}, what="all tasks at the own worker")
        # What an abort made void is processed again, and counts again.
        assert app.records_processed >= KEYS * counts.written
        app.add_worker()
        counts.write(5)
    assert app.state is State.NOT_RUNNING
    assert app.add_worker() is None
    assert not [t for t in threading.enumerate() if t.name.startswith(name)]
    with live(counts.topology(), settings) as again:
        again.wait_running()
        counts.wait_counted()
    counts.check_exact()


def test_pausing_and_usage_are_those_of_the_process(topics: Topics, tmp_path: Path) -> None:
    counts = Counts(topics)
    with live(counts.topology(), settings_of(topics, tmp_path)) as here:
        app = here.app
        here.wait_running()
        app.add_worker()
        here.wait(lambda: tasks_by_worker(app) == {0: 2, 1: 2}, what="tasks shared out")
        here.wait_running()
        app.pause()
        here.wait(
            lambda: all(
                v.snapshot is not None and v.snapshot.is_paused for v in app.metrics().workers
            ),
            what="both paused",
        )
        assert app.state is State.PAUSED
        counts.write()
        app.resume()
        counts.wait_counted()
        here.wait_running()
        usage = [(f.cpu_s, f.memory_bytes) for f in app.metrics().snapshots]
        assert usage[0][0]
        assert usage[0][1]
        assert usage[1] == (None, None)


def test_an_error_in_an_added_worker_stops_all_of_them(topics: Topics, tmp_path: Path) -> None:
    counts = Counts(topics)
    here = Live(counts.topology(), settings_of(topics, tmp_path))
    app = here.app
    app.start()
    here.wait_running()
    name = app.add_worker()
    here.wait(lambda: tasks_by_worker(app) == {0: 2, 1: 2}, what="tasks shared out")
    theirs = next(v.snapshot for v in app.metrics().workers if v.index == 1)
    assert theirs is not None
    partition = theirs.tasks[0].partition
    key = next(
        record.key
        for record in _written(counts)
        if record.partition == partition and record.key is not None
    )
    kafka.write(counts.bootstrap, counts.input, [(key, b"poison")])
    wait_until(lambda: app.state is State.ERROR, what="stopped")
    with pytest.raises(RecordError, match=f"{counts.input}-{partition}"):
        app.close()
    assert name not in {thread.name for thread in threading.enumerate()}
    assert [view.state for view in app.metrics().workers] == ["error", "error"]
    assert app.remove_worker() is None


def _written(counts: Counts) -> list[kafka.Record]:
    counts.write()
    return kafka.read(counts.bootstrap, counts.input)


def test_an_added_worker_is_replaced_as_the_handler_says(topics: Topics, tmp_path: Path) -> None:
    failures: list[str] = []

    class Failing(Counts):
        """Fails once, in the thread of an added worker."""

        def seen(self, value: str) -> str:
            name = threading.current_thread().name
            if name.endswith("-1") and not failures:
                failures.append(name)
                raise ZeroDivisionError
            return super().seen(value)

    failing = Failing(topics)
    app = KafkaStreams(
        failing.topology(),
        settings_of(topics, tmp_path),
        uncaught_error_handler=lambda _: UncaughtErrorResponse.REPLACE_WORKER,
    )
    with app:
        app.start()
        wait_until(lambda: app.state is State.RUNNING, what="running")
        name = app.add_worker()
        wait_until(lambda: tasks_by_worker(app) == {0: 2, 1: 2}, what="tasks shared out")
        failing.write(3)
        failing.wait_counted()
        assert failures == [name]
    failing.check_exact()
