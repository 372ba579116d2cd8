"""Keys that change most are found by a sketch of a bounded size, of committed rows alone."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import StreamsBuilder, TimeWindows, TopologyTestDriver, serdes
from headrace.streams.metrics.hot_keys import (
    HALVED_S,
    KEY_BYTES_MAX,
    LOOKED_MAX,
    HotKeys,
    Sketch,
    without_keys,
)
from headrace.streams.metrics.snapshots import HotKey, WorkerSnapshot
from headrace.streams.plan.plan import TaskId
from tests.support.snapshots import application_snapshot

TASK = TaskId(0, 1)


@given(st.lists(st.sets(st.sampled_from("abcdefghij"), min_size=1), min_size=1, max_size=60))
def test_a_sketch_never_says_too_little_and_says_by_how_much_it_may_be_too_much(
    commits: list[set[str]],
) -> None:
    sketch, true = Sketch(4), Counter[bytes]()
    for commit in commits:
        keys = [key.encode() for key in sorted(commit)]
        sketch.add(keys)
        true.update(keys)
    found = sketch.most(10)
    assert len(found) <= 4
    for hot in found:
        assert hot.share * len(commits) >= min(true[hot.key], len(commits)) - 1e-9
        assert (hot.share - hot.max_error) * len(commits) <= true[hot.key] + 1e-9
    # What is written more often than all counters together can hold is never missed.
    bound = sum(true.values()) / 4
    assert {key for key, count in true.items() if count > bound} <= {hot.key for hot in found}


def test_a_key_of_each_commit_stands_out_among_many_that_come_once() -> None:
    sketch, rng = Sketch(80), random.Random(5)
    for commit in range(400):
        keys = [b"hot"] + [b"%d-%d" % (commit, n) for n in range(20)]
        rng.shuffle(keys)
        sketch.add(keys)
    hot, *others = sketch.most(10)
    assert (hot.key, round(hot.share, 1)) == (b"hot", 1.0)
    assert hot.max_error < 0.1
    assert max(other.share - other.max_error for other in others) < 0.1


def test_of_a_large_commit_some_keys_stand_for_all() -> None:
    sketch = Sketch(80)
    for commit in range(200):
        sketch.add([b"hot", *(b"%d-%d" % (commit, n) for n in range(3 * LOOKED_MAX - 1))])
    assert len(sketch._counts) <= 80
    sketch.add([b"x" * (KEY_BYTES_MAX + 1)])
    assert all(len(key) <= KEY_BYTES_MAX for key in sketch._counts)


def test_what_is_older_weighs_less_and_is_forgotten() -> None:
    now_s = 0.0
    hot = HotKeys(3, {}, monotonic_s=lambda: now_s)
    for _ in range(8):
        hot.written([(TASK, {"counts": [(b"old", b"", 0)]})])
    for _ in range(3):
        now_s += HALVED_S
        hot.written([(TASK, {"counts": [(b"new", b"", 0)]})])
    shares = {one.key: round(one.share, 2) for one in hot.of(TASK, "counts")}
    assert shares == {b"new": 0.64, b"old": 0.36}
    for _ in range(4):
        now_s += HALVED_S
        hot.written([(TASK, {"counts": [(b"new", b"", 0)]})])
    assert [one.key for one in hot.of(TASK, "counts")] == [b"new"]


def test_windows_of_a_key_are_one_key_and_tasks_that_left_are_forgotten() -> None:
    hot = HotKeys(3, {"windows": 12}, monotonic_s=lambda: 0.0)
    hot.written(
        [(TASK, {"windows": [(b"a" + bytes(12), b"", 0), (b"a" + bytes(11) + b"1", b"", 0)]})]
    )
    assert hot.of(TASK, "windows") == (HotKey(key=b"a", share=1.0, max_error=0.0),)
    hot.retain([TaskId(0, 2)])
    assert hot.of(TASK, "windows") == ()


def test_nothing_is_counted_unless_it_is_asked_for() -> None:
    hot = HotKeys(0, {}, monotonic_s=lambda: pytest.fail("the clock is read"))
    hot.written([(TASK, {"counts": [(b"a", b"", 0)]})])
    assert hot.of(TASK, "counts") == ()


def driver(**settings: Any) -> TopologyTestDriver:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string).group_by_key()
    words.count(store="counts")
    size = timedelta(minutes=1)
    words.windowed_by(TimeWindows(size=size, grace=timedelta(days=1))).count(store="windows")
    told = {"application.id": "a", "bootstrap.servers": "nowhere:1", **settings}
    return TopologyTestDriver(builder.build(), told, commit="manual")


def told(running: Any) -> dict[str, list[tuple[bytes, float]]]:
    worker = running._worker.present()
    worker._snapshots.collect()
    return {
        store.name: [(one.key, one.share) for one in store.hot_keys]
        for task in worker.latest_snapshot.tasks
        for store in task.stores
    }


def test_a_worker_tells_those_of_commits_and_not_of_what_was_aborted() -> None:
    with driver(**{"hot.keys.max": 2, "processing.guarantee": "exactly_once_v2"}) as running:
        words = running.input("words")
        for minute in range(4):
            for key in ("hot", f"k{minute}"):
                words.send(key, "", timestamp=60_000 * minute)
            running.commit()
        assert told(running)["counts"][0] == (b"hot", 1.0)
        assert told(running)["windows"][0] == (b"hot", 1.0)
        assert [len(keys) for keys in told(running).values()] == [2, 2]
        before = told(running)
        words.send("hot", "", timestamp=0)
        running.run()
        running.abort()
        running.run()
        assert told(running) == before


def test_a_worker_tells_none_unless_the_setting_says_so() -> None:
    with driver() as running:
        running.input("words").send("a", "")
        running.commit()
        assert told(running) == {"counts": [], "windows": []}


def test_keys_go_between_processes_as_they_are_and_can_be_left_out() -> None:
    app = application_snapshot()
    (view,) = app.workers
    assert view.snapshot is not None
    (task,) = view.snapshot.tasks
    hot = HotKey(key=b"\x00\xff", share=0.5, max_error=0.0)
    task = replace(task, stores=(replace(task.stores[0], hot_keys=(hot,)),))
    facts = replace(view.snapshot, tasks=(task,))
    assert msgspec.json.decode(msgspec.json.encode(facts), type=WorkerSnapshot) == facts
    for pid in (1, None):  # those of a process that has ended, too
        shown = without_keys(replace(app, workers=(replace(view, pid=pid, snapshot=facts),)))
        assert shown.snapshots[0].tasks[0].stores[0].hot_keys == ()
    assert without_keys(app) is app
