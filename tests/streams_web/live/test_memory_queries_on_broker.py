"""Stores in workers' memory answer on a real cluster what was committed, whatever befalls them."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace import KafkaStreams, Materialized, State, StreamsBuilder, serdes
from headrace.streams.queries.errors import NotReadableError, StoreInMemoryError
from headrace.streams.supervisor.exit_codes import ExitCode
from tests.support import kafka
from tests.support.asked_counts import (
    KEYS,
    Asked,
    assert_counts_never_go_back,
    assert_own_writes_are_seen,
)
from tests.support.processes import wait_until
from tests.support.served import Served
from tests.support.supervised import Counted, Run
from tests.support.topics import Topics

pytestmark = pytest.mark.slow
IN_MEMORY = 'count(store=Materialized("counts", kind="memory"))'


@pytest.mark.faults
def test_counts_in_memory_never_go_back_while_workers_are_killed_and_frozen(
    topics: Topics, tmp_path: Path
) -> None:
    app = Counted(topics, tmp_path, hot_keys_max=5)
    source = tmp_path / "my_app.py"
    text = source.read_text().replace('count(store="counts")', IN_MEMORY)
    source.write_text("from headrace import Materialized\n" + text)
    assert IN_MEMORY in text
    with app.running(2, "--http=0", "--queries") as run:
        asked = Asked(run)
        expected = assert_counts_never_go_back(app, run, asked)
        assert asked.get("count?exact=true")[1]["count"] == len(KEYS)
        assert_own_writes_are_seen(app, asked, expected)
        assert_hot_keys_and_the_group_are_told(run)
        os.kill(run.pid(0), signal.SIGSTOP)
        code, found = asked.get("range?limit=7")
        assert code == 503
        assert "did not answer within 3 s" in found["error"]
        os.kill(run.pid(0), signal.SIGCONT)
        wait_until(lambda: asked.counts() == expected, what="all counts again")
        run.signal(signal.SIGTERM)
        assert run.wait() == ExitCode.STOPPED
    app.check_exact()


def assert_hot_keys_and_the_group_are_told(run: Run) -> None:
    served = Served(run)

    def told() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = served.get("/api/hot-keys")[1]["stores"]
        return [one for store in found for one in store["keys"]]

    wait_until(lambda: len({one["partition"] for one in told()}) == 4, what="keys of all tasks")
    assert {one["key"] for one in told()} <= set(KEYS)
    assert all(0 < one["share"] <= 1 for one in told())
    wait_until(
        lambda: len(served.get("/api/group")[1]["members"]) == 2, what="the dead to be forgotten"
    )
    code, group = served.get("/api/group")
    assert (code, group["state"]) == (200, "stable")
    assert {one["host"] for one in group["members"]} == {group["host"]}
    tasks = sorted(task for one in group["members"] for task in one["tasks"])
    assert tasks == ["0_0", "0_1", "0_2", "0_3"]
    (sent,) = {
        tuple(view["snapshot"]["sent"]) for view in served.get("/api/snapshot")[1]["workers"]
    }
    assert len(sent) == 2  # the output and the changelog
    assert all(
        store["hot_keys"] == []
        for view in served.get("/api/snapshot")[1]["workers"]
        for task in view["snapshot"]["tasks"]
        for store in task["stores"]
    )


def test_a_program_asks_its_own_workers(topics: Topics, tmp_path: Path) -> None:
    read = topics.create("in", partitions=2)
    builder = StreamsBuilder()
    words = builder.stream(read, key=serdes.string, value=serdes.string)
    words.group_by_key().count(store=Materialized("counts", kind="memory"))
    app = KafkaStreams(
        builder.build(),
        {
            "application.id": topics.name("app"),
            "bootstrap.servers": topics.bootstrap,
            "state.dir": str(tmp_path),
            # The second worker may take a task within a commit, whose rows count twice otherwise.
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": 50,
        },
    )
    counts = app.store("counts")
    with pytest.raises(StoreInMemoryError):
        counts.get("k1")
    with app:
        app.start()
        wait_until(lambda: app.state is State.RUNNING, what="running")
        assert app.add_worker() is not None
        kafka.write(topics.bootstrap, read, [(f"k{n}".encode(), b"") for n in range(40)])

        def total() -> int:
            try:
                return sum(row.value for row in counts.all())
            except NotReadableError:
                return 0

        wait_until(lambda: total() == 40, what="all counts")
        wait_until(
            lambda: (
                {len(view.snapshot.tasks) for view in app.metrics().workers if view.snapshot} == {1}
            ),
            what="tasks shared out",
        )
        wait_until(lambda: total() == 40, what="all counts of both workers")
        assert {row.partition for row in counts.all()} == {0, 1}
        found: list[object] = []
        askers = [
            threading.Thread(target=lambda: found.append(counts.get_many(["k1", "k2", "x"])))
            for _ in range(8)
        ]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join(30)
        assert found == [[1, 1, None]] * 8
    with pytest.raises(StoreInMemoryError):
        counts.get("k1")
