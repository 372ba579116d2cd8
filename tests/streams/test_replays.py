"""Under at-least-once a record that is read again goes on, also where it changes nothing any more.

The first time, the row can have come into its changelog and what follows from it nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from streams.memory_cluster import MemoryMessage
from streams.testing import TopologyTestDriver
from tests.support.operators import NO_CACHE
from topology import KTable, StreamsBuilder, serdes

Step = Callable[[KTable[str, int]], KTable[str, int]]

STEPS: dict[str, Step] = {
    "a table": lambda table: table,
    "a filter": lambda table: table.filter(lambda k, v: v > 0),
    "a stored filter": lambda table: table.filter(lambda k, v: v > 0, store="positive"),
    "a stored mapping": lambda table: table.map_values(lambda v: v, store="mapped"),
    "a join": lambda table: table.left_join(table, lambda one, other: one, store="joined"),
}


def driver_of(step: Step, settings: Mapping[str, object]) -> TopologyTestDriver:
    builder = StreamsBuilder()
    table = builder.table("in", key=serdes.string, value=serdes.long, store="rows")
    step(table).to_stream().to("out", key=serdes.string, value=serdes.long)
    return TopologyTestDriver(builder.build(), settings, commit="manual")


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("settings", [NO_CACHE, {}], ids=["without caches", "with caches"])
@pytest.mark.parametrize("value", [7, None], ids=["a value", "a deletion"])
def test_what_was_lost_behind_a_row_is_sent_again(
    monkeypatch: pytest.MonkeyPatch, step: Step, settings: Mapping[str, object], value: int | None
) -> None:
    driver = driver_of(step, settings)
    driver.input("in").send("a", 3)
    driver.commit()
    append = driver.cluster.append

    def lose(topic: str, *rest: Any) -> MemoryMessage:
        return append("lost" if topic == "out" and not driver.crashes else topic, *rest)

    monkeypatch.setattr(driver.cluster, "append", lose)
    driver.input("in").send("a", value)
    driver.crash(at="changelogs_written")
    driver.commit()
    assert driver.crashes == 1
    assert [r.value for r in driver.output("out").read_all()][-1] == value


def test_records_that_come_later_are_compared_again() -> None:
    driver = driver_of(STEPS["a table"], NO_CACHE)
    driver.input("in").send("a", 3)
    driver.commit()
    driver.crash()
    driver.input("in").send("a", 4)
    driver.commit()
    driver.input("in").send("a", 4)
    driver.commit()
    assert [r.value for r in driver.output("out").read_all()] == [3, 4]


def test_nothing_is_sent_twice_under_exactly_once() -> None:
    driver = driver_of(STEPS["a table"], {**NO_CACHE, "processing.guarantee": "exactly_once_v2"})
    driver.input("in").send("a", 3)
    driver.commit()
    driver.crash()
    driver.input("in").send("a", 3)
    driver.commit()
    assert [r.value for r in driver.output("out").read_all()] == [3]
