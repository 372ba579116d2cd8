"""`headrace top`: rates between two looks, and the tasks that are far behind first."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console, Group
from rich.text import Text

from headrace.streams.admin.overview import InputLag, Overview, TaskView
from headrace.streams.cli.top import ClusterSnapshot, _repeat, shown
from headrace.streams.kafka.protocols import GroupState, Member, TopicPartition
from headrace.streams.plan.plan import TaskId


def look(at_s: float, *committed: int | None, end: int = 1000) -> ClusterSnapshot:
    member = Member("w-0", "shop-consumer", "/10.0.0.7")
    tasks = []
    for partition, offset in enumerate(committed):
        task = TaskId(0, partition)
        tp = TopicPartition("in", partition)
        lag = InputLag(task, tp, False, offset, 0, end)
        tasks.append(TaskView(task, member if partition == 0 else None, (lag,)))
    return ClusterSnapshot(
        Overview("shop", GroupState("stable", {member: ()}), tuple(tasks), ("gone",)), at_s
    )


def text(seen: ClusterSnapshot, before: ClusterSnapshot | None, rows_max: int = 10) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(shown(seen, before, rows_max=rows_max))
    return out.getvalue()


def test_a_rate_is_what_was_committed_between_two_looks() -> None:
    before, seen = look(10.0, 100, None, 500), look(12.0, 300, 50, 400)
    assert seen.rates(before) == {TopicPartition("in", 0): 100.0, TopicPartition("in", 2): 0.0}
    assert seen.rates(None) == {}
    assert seen.rates(seen) == {}
    shown_text = text(seen, before)
    assert "shop: stable, 1 worker, lag 2,250, 100/s" in shown_text
    assert "Topic gone does not exist." in shown_text


def test_tasks_that_are_far_behind_come_first_and_the_rest_is_counted() -> None:
    lines = text(look(1.0, 999, 1, 500), None, rows_max=2).splitlines()
    rows = [line.split()[:3] for line in lines if line.startswith("0_")]
    assert rows == [["0_1", "-", "-"], ["0_2", "-", "-"]]
    assert lines[-1] == "and 1 task that is less far behind"


def test_event_times_are_shown_with_the_slowest_partition_of_each_sub_topology() -> None:
    seen = look(1.0, 100, 300, 1000)
    times = (3_600_000, 0, 7_200_000)
    tasks = tuple(
        replace(task, inputs=(replace(task.inputs[0], event_time_ms=time),))
        for task, time in zip(seen.overview.tasks, times, strict=True)
    )
    lines = text(replace(seen, overview=replace(seen.overview, tasks=tasks)), None).splitlines()
    assert "sub-topology 0: in-1 is 2:00:00 behind in-2" in lines
    rows = [line.split() for line in lines if line.startswith("0_")]
    assert {row[0]: " ".join(row[-2:]) for row in rows} == {
        "0_0": "1970-01-01 01:00:00",
        "0_1": "1970-01-01 00:00:00",
        "0_2": "1970-01-01 02:00:00",
    }


def test_a_partition_that_was_not_read_is_shown_as_the_slowest() -> None:
    seen = look(1.0, 100, None)
    tasks = tuple(
        replace(task, inputs=(replace(task.inputs[0], event_time_ms=time),))
        for task, time in zip(seen.overview.tasks, (3_600_000, -1), strict=True)
    )
    lines = text(replace(seen, overview=replace(seen.overview, tasks=tasks)), None).splitlines()
    assert "sub-topology 0: in-1 has not been read yet, in-0 has" in lines


def test_what_goes_into_a_file_ends_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    def table(_: object, before: object, *, rows_max: int) -> Group:
        return Group(Text("row"))

    _repeat(lambda: None, table, 1.0, 1)
    assert capsys.readouterr().out == "row\n"
