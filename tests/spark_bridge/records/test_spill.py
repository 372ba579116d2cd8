"""State that grows out of memory lies where Spark removes it, and is gone after its task."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.spark_bridge.records.spill import SpillingState, spill_directory
from headrace.state.spec import StoreSpec
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes
from tests.spark_bridge.support.local_engine import backfilled

_SEEN: set[Path] = set()


def note_what_is_on_disk(_: Any, value: str) -> str:
    _SEEN.update(Path(os.environ["SPARK_LOCAL_DIRS"].split(",")[0]).iterdir())
    return value


def test_a_task_spills_into_the_directory_that_spark_gives_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    _SEEN.clear()
    builder = StreamsBuilder()
    left = builder.stream("left", key=serdes.string, value=serdes.string)
    both = left.merge(builder.stream("right", key=serdes.string, value=serdes.string))
    both.map_values(note_what_is_on_disk, with_key=True).group_by_key().count(store="counts")
    driver = TopologyTestDriver(builder.build(), {}, partitions=1, commit="manual")
    for time in range(4):  # in turns: each is a run of its own
        driver.cluster.append(("left", "right")[time % 2], b"v", b"k", 0, time, None)
    backfilled(builder.build(), {}, driver.cluster, memory_bytes=0, uncommitted_bytes=0)
    assert [path.parent for path in _SEEN] == [tmp_path], _SEEN
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "number", "wanted"),
    [(None, 0, None), ("", 1, None), ("/a", 3, "/a"), ("/a,/b", 0, "/a"), ("/a,/b", 3, "/b")],
)
def test_tasks_take_the_directories_of_spark_in_turn(
    said: str | None, number: int, wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    if said is not None:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", said)
    assert spill_directory(number) == wanted


def test_what_moved_keeps_its_rows_and_is_removed_at_the_end(tmp_path: Path) -> None:
    state = SpillingState([StoreSpec("counts")], memory_bytes=400, directory=str(tmp_path))
    counts = state.store("counts")
    state.write({"counts": [(b"a", b"1"), (b"b", b"2")]}, {})
    assert not state.is_on_disk
    state.write({"counts": [(b"a", None), (b"c", b"3")]}, {})
    assert state.is_on_disk
    assert list(tmp_path.iterdir()) != []
    assert list(counts.scan()) == [(b"b", b"2"), (b"c", b"3")]
    state.close()
    assert list(tmp_path.iterdir()) == []
