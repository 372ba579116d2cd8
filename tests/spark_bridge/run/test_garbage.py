"""What user functions leave behind in circles does not fill the memory of a worker."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from headrace.spark_bridge.run import task_run
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes
from tests.spark_bridge.support.local_engine import backfilled

_ALIVE: weakref.WeakSet[Any] = weakref.WeakSet()
_MOST: list[int] = []


class Circle:
    def __init__(self) -> None:
        self.parts = [[self] for _ in range(50)]


def leave_a_circle(_: Any, value: str) -> str:
    _ALIVE.add(Circle())
    _MOST.append(len(_ALIVE))
    return value


def test_garbage_in_circles_is_collected_while_a_task_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_run, "COLLECT_OBJECTS", 2000)
    builder = StreamsBuilder()
    left = builder.stream("left", key=serdes.string, value=serdes.string)
    both = left.merge(builder.stream("right", key=serdes.string, value=serdes.string))
    both.map_values(leave_a_circle, with_key=True).to("out")
    driver = TopologyTestDriver(builder.build(), {}, partitions=1, commit="manual")
    for time in range(400):  # in turns: each is a run of its own
        driver.cluster.append(("left", "right")[time % 2], b"v", b"k", 0, time, None)
    with task_run._collector_off():
        backfilled(builder.build(), {}, driver.cluster)
    assert len(_MOST) == 400
    assert max(_MOST) < 100
    assert gc.isenabled()
