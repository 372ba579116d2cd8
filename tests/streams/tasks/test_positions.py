"""What the group knows of a sink's position: one that goes back, or goes away, is never silent."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.tasks.sink_connections import UnusableSinkError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import MemorySink, SinkBatch, StreamsBuilder, serdes
from tests.streams.tasks.test_external_sinks import EXACTLY_ONCE, PAIRS, Faulty, events, failing


def driver_of(
    sink: Any, *, direct: bool, commit: Any = "each_record", application: str = "test"
) -> Any:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.long)
    stream.to_sink(sink, name="keep", direct=direct)
    settings = {**EXACTLY_ONCE, "application.id": application}
    return TopologyTestDriver(
        builder.build(), settings, partitions=1, real_sinks=True, commit=commit
    )


def backup(sink: Faulty) -> Any:
    return list(sink.table.rows), dict(sink.table._positions)


def restore(sink: Faulty, kept: Any) -> None:
    sink.table.rows, sink.table._positions = list(kept[0]), dict(kept[1])


def test_a_sink_that_goes_back_after_a_jump_to_its_position_is_noticed() -> None:
    """As after `headrace reset` and a run that writes no row."""
    sink = failing()
    driver = driver_of(sink, direct=True)
    driver.input("in").send_many(PAIRS[:3])
    kept = backup(sink)
    driver.input("in").send_many(PAIRS[3:])
    driver.restart()
    driver.cluster.offsets["test"] = {TopicPartition("in", 0): CommittedOffset(0)}
    driver.run()
    assert driver.committed_offsets("in")[0] >= len(PAIRS)
    driver.restart()
    restore(sink, kept)
    driver.run()
    assert sink.pairs == PAIRS
    assert len(events(driver, "sink_position_rewound")) == 1


@pytest.mark.parametrize("direct", [True, False])
def test_a_sink_that_goes_back_after_a_kill_behind_its_commit_is_noticed(*, direct: bool) -> None:
    """The group hears of the position at the next start alone."""
    sink = failing()
    driver = driver_of(sink, direct=direct, commit="manual")
    driver.input("in").send_many(PAIRS)
    while not sink.pairs:
        kept = backup(sink)
        driver.run()
        driver.crash("sink_written")
        driver.commit(rounds=1)
    assert sink.pairs == PAIRS
    driver.commit()
    driver.restart()
    (position,) = sink.table._positions
    restore(sink, (kept[0], {position: driver.cluster.log(_place(driver)).start}))
    driver.commit()
    assert sink.pairs == PAIRS
    assert len(events(driver, "sink_position_rewound")) == 1


@pytest.mark.parametrize("direct", [True, False])
def test_a_sink_whose_positions_are_gone_is_refused_with_what_to_do(*, direct: bool) -> None:
    """As in another database: rows would be missing, or be there twice."""
    sink = failing()
    driver = driver_of(sink, direct=direct)
    driver.input("in").send_many(PAIRS[:3])
    positions = dict(sink.table._positions)
    driver.restart()
    sink.table._positions = {}
    with pytest.raises(UnusableSinkError) as caught:
        driver.input("in").send_many(PAIRS[3:])
    (((name, source, partition), position),) = positions.items()
    row = f"name '{name}', source '{source}', partition {partition}, next {position}"
    assert row in str(caught.value)
    assert "headrace reset" in str(caught.value)
    assert sink.pairs == PAIRS[:3]
    driver.restart()
    sink.table._positions = positions
    driver.run()
    assert sink.pairs == PAIRS


@pytest.mark.parametrize("direct", [True, False])
def test_a_new_step_begins_where_the_group_is(*, direct: bool) -> None:
    """Where no position was ever committed there is none to miss."""
    sink = failing()
    driver = driver_of(sink, direct=direct)
    driver.input("in").send_many(PAIRS[:3])
    driver.restart()
    group = driver.cluster.offsets["test"]
    driver.cluster.offsets["test"] = {p: CommittedOffset(c.offset) for p, c in group.items()}
    restore(sink, ([], {}))
    driver.input("in").send_many(PAIRS[3:])
    assert sink.pairs == PAIRS[3:]


@pytest.mark.parametrize("direct", [True, False])
def test_a_renamed_application_is_told_of_positions_under_its_old_name(*, direct: bool) -> None:
    """It appends all rows once more."""
    sink = MemorySink()
    told = []
    for application in ("old", "new", "new"):
        driver = driver_of(sink, direct=direct, application=application)
        driver.input("in").send_many(PAIRS)
        told.append([e["others"] for e in events(driver, "sink_positions_conflict")])
        driver.close()
    assert told == [[], [["old"]], []]


def test_another_step_of_another_application_is_nobody_s_business() -> None:
    sink = MemorySink()
    sink.open("old/other").write(SinkBatch("in", 0, None, 8, []))
    driver = driver_of(sink, direct=True)
    driver.input("in").send_many(PAIRS)
    assert events(driver, "sink_positions_conflict") == []


def test_a_step_of_that_name_with_another_table_is_nobody_s_business() -> None:
    """Positions of all tables of a database are together, and this table is empty."""
    sink = MemorySink()
    sink.open("old/keep").write(SinkBatch("in", 0, None, 8, []))
    driver = driver_of(sink, direct=True)
    driver.input("in").send_many(PAIRS)
    assert events(driver, "sink_positions_conflict") == []


def _place(driver: Any) -> TopicPartition:
    named = "test-keep-repartition"
    return TopicPartition(named if named in driver.cluster.topics else "in", 0)
