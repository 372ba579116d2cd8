"""Changelogs that are gone are written anew from local rows, of every kind of store."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.streams.admin.local_changelogs import LocalChangelogs, lines
from headrace.streams.errors import ChangelogUnfinishedError, LocalStateError, ResetRefusedError
from headrace.streams.kafka.protocols import CommittedOffset, Member, Offsets, TopicPartition
from headrace.streams.plan.identity import ChangelogLostError
from headrace.streams.plan.plan import TaskId
from headrace.streams.plan.progress import COMMIT_ID, OffsetMetadata
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.memory_clients import MemoryAdmin, MemoryPlainProducer
from headrace.streams.testing.memory_worker import create_topics
from headrace.topology import (
    Materialized,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
)
from tests.support.topologies import EXACTLY_ONCE

TASKS = 3
MINUTE = timedelta(minutes=1)


def every_kind() -> Topology:
    """A table, a fold, windows, sessions, versions, and a join by a foreign key."""
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serdes.string, value=serdes.string)
    grouped = orders.group_by_key()
    grouped.count(store="counts").to_stream().to("out")
    grouped.windowed_by(TimeWindows(size=MINUTE)).count(store="windows")
    grouped.windowed_by(SessionWindows(inactivity_gap=MINUTE)).count(store="sessions")
    history = Materialized("versions", history=timedelta(hours=1))
    orders.to_table(store=history, key=serdes.string, value=serdes.string)
    bought = orders.to_table(store="bought", key=serdes.string, value=serdes.string)
    cities = builder.table("cities", key=serdes.string, value=serdes.string, store="cities")
    joined = bought.join(
        cities,
        lambda one, other: f"{one} {other}",
        foreign_key=lambda value: value[:1],
        store="joined",
        value=serdes.string,
        name="by-city",
    )
    joined.to_stream().to("parcels")
    return builder.build()


class Cluster(MemoryAdmin):
    """What the tool asks of a cluster, answered by one in memory."""

    def members(self, group: str) -> tuple[Member, ...]:
        return ()

    def committed(
        self,
        group: str,
        *,
        decided: bool,
    ) -> dict[TopicPartition, CommittedOffset]:
        return dict(self._cluster.offsets.get(group, {}))

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        self._cluster.commit_offsets(group, offsets)


def tool_of(driver: TopologyTestDriver, state_dir: Path, **more: Any) -> LocalChangelogs:
    return LocalChangelogs(
        replace(driver._config, state_dir=state_dir),
        driver._plans,
        Cluster(driver.cluster),
        make_producer=lambda: MemoryPlainProducer(driver.cluster, lambda _: None),
        now_ms=lambda: 0,
        **more,
    )


class Lost:
    """An application whose changelogs were deleted while it was stopped."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self.state_dir = directory / "state"
        self.driver = TopologyTestDriver(
            every_kind(), settings, partitions=TASKS, commit="manual", state_dir=self.state_dir
        )
        self.changelogs = [
            topic for plan in self.driver._plans for topic in plan.changelogs.values()
        ]
        self.feed(0, 40)
        self.driver.restart()
        self.before = self.rows()
        self.driver.restart()

    def feed(self, start: int, count: int) -> None:
        orders, cities = self.driver.input("orders"), self.driver.input("cities")
        for number in range(start, start + count):
            # Times go back now and then, and some rows are deleted again.
            time = number * 20_000 - (number % 3) * 50_000 + 100_000
            value = None if number % 11 == 10 else f"{'abc'[number % 3]}{number}"
            orders.send(f"k{number % 9}", value, timestamp=time)
            if number % 5 == 0:
                cities.send("abc"[number % 3], f"city {number}", timestamp=time)
        self.driver.commit()

    def delete_changelogs(self) -> None:
        for topic in self.changelogs:
            self.driver.cluster.delete(topic)

    def create_changelogs(self) -> None:
        """As a start, or brokers that create topics by themselves, would."""
        create_topics(self.driver.cluster, self.driver._plans, self.driver._config)

    def rows(self) -> dict[Any, list[tuple[bytes, bytes]]]:
        """All local rows, as they are on disk."""
        found = {}
        for plan in self.driver._plans:
            for partition in range(TASKS):
                task = TaskId(plan.id, partition)
                home = self.driver._worker.disk.open(task, plan.program.sub_topology.stores)
                for store in plan.changelogs:
                    found[task, store] = list(home.state.store(store).scan())
        return found

    def tool(self, **more: Any) -> LocalChangelogs:
        self.driver._worker.disk.process_ended()
        return tool_of(self.driver, self.state_dir, **more)

    def write(self) -> None:
        tool = self.tool()
        tool.carry_out(tool.plan())


GUARANTEES = pytest.mark.parametrize(
    "settings",
    [pytest.param({}, marks=pytest.mark.slow), EXACTLY_ONCE],
    ids=["at_least_once", "exactly_once"],
)


@pytest.mark.slow
@GUARANTEES
def test_the_rows_of_every_kind_of_store_are_there_again(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    lost = Lost(tmp_path, settings)
    assert len({store for (_, store), rows in lost.before.items() if rows}) >= 8
    lost.delete_changelogs()
    lost.write()
    lost.driver.run()
    assert lost.driver.restored == 0, "the local rows go on"
    lost.driver.restart()
    assert lost.rows() == lost.before
    lost.driver.restart()
    lost.driver._worker.disk.lose()
    lost.driver.run()
    assert lost.driver.restored > 0
    lost.driver.restart()
    assert lost.rows() == lost.before, "restored from what was written"


@GUARANTEES
def test_it_goes_on_as_if_nothing_had_happened(settings: dict[str, Any], tmp_path: Path) -> None:
    lost, other = Lost(tmp_path / "a", settings), Lost(tmp_path / "b", settings)
    lost.delete_changelogs()
    lost.write()
    for one in (lost, other):
        one.feed(40, 40)
    assert dict(lost.driver.store("counts")) == dict(other.driver.store("counts"))
    parcels = [d.driver.output("parcels").as_dict() for d in (lost, other)]
    assert parcels[0] == parcels[1]


@pytest.mark.slow
def test_a_start_does_not_drop_the_rows_that_the_offsets_are_of(tmp_path: Path) -> None:
    """The changelogs were made anew meanwhile, by the brokers or by an older release."""
    lost = Lost(tmp_path, EXACTLY_ONCE)
    lost.delete_changelogs()
    lost.create_changelogs()
    with pytest.raises(ChangelogLostError, match="restore-from-local"):
        lost.driver.run()
    assert lost.rows() == lost.before
    lost.write()
    lost.driver.run()
    lost.driver.restart()
    assert lost.rows() == lost.before


def test_broken_files_are_told_and_nobody_is_asked_to_remove_the_only_rows(tmp_path: Path) -> None:
    lost = Lost(tmp_path, EXACTLY_ONCE)
    lost.delete_changelogs()
    tool = lost.tool()
    for listing in (lost.state_dir / "test" / "tasks" / "0_1").rglob("MANIFEST-*"):
        listing.write_bytes(b"\xa5" * 64)
    with pytest.raises(LocalStateError, match=r"tasks/0_1.*a copy of these files") as caught:
        tool.plan()
    assert "Corruption" in str(caught.value)
    assert not re.search("wipe|remove|delete", str(caught.value))


class KilledError(Exception):
    """Ends the tool."""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["changelogs_marked", "changelogs_created", "changelog_written"])
def test_what_was_broken_off_does_not_start_and_is_finished_by_a_second_run(
    step: str, tmp_path: Path
) -> None:
    lost = Lost(tmp_path, EXACTLY_ONCE)
    lost.delete_changelogs()

    def die(at: str) -> None:
        if at == step:
            raise KilledError

    tool = lost.tool(probe=die)
    with pytest.raises(KilledError):
        tool.carry_out(tool.plan())
    lost.create_changelogs()
    with pytest.raises(ChangelogUnfinishedError, match="restore-from-local"):
        lost.driver.run()
    lost.write()
    lost.driver.run()
    lost.driver.restart()
    lost.driver._worker.disk.lose()
    lost.driver.run()
    lost.driver.restart()
    assert lost.rows() == lost.before


@pytest.mark.slow
def test_tasks_of_another_host_are_named_and_keep_the_application_from_starting(
    tmp_path: Path,
) -> None:
    lost = Lost(tmp_path, EXACTLY_ONCE)
    lost.delete_changelogs()
    lost.driver._worker.disk.process_ended()
    tasks, away = lost.state_dir / "test" / "tasks", tmp_path / "away"
    move(tasks, away, ["0_1"])
    tool = lost.tool()
    plan = tool.plan()
    assert [str(task.id) for task in plan.elsewhere] == ["0_1"]
    assert "  0_1: no rows here" in list(lines(plan))
    tool.carry_out(plan)
    move(away, tasks, ["0_1"])
    with pytest.raises(ChangelogUnfinishedError):
        lost.driver.run()
    lost.driver._worker.disk.process_ended()
    plan = lost.tool().plan()
    assert [str(task.id) for task in plan.here] == ["0_1"]
    lost.write()
    lost.driver.run()
    lost.driver.restart()
    assert lost.rows() == lost.before


def move(here: Path, there: Path, names: Iterable[str]) -> None:
    there.mkdir(exist_ok=True)
    for name in names:
        (here / name).rename(there / name)


def test_rows_of_another_commit_than_the_offsets_are_not_taken(tmp_path: Path) -> None:
    """A kill between the commit and the local rows leaves them one commit behind."""
    lost = Lost(tmp_path, EXACTLY_ONCE)
    lost.delete_changelogs()
    offsets = lost.driver.cluster.offsets["test"]
    for place, committed in list(offsets.items()):
        known = OffsetMetadata.decode(committed.metadata)
        values = {**known.values, COMMIT_ID: known.values[COMMIT_ID] + 1}
        offsets[place] = replace(committed, metadata=replace(known, values=values).encode())
    plan = lost.tool().plan()
    assert not plan.here
    assert {task.refusal for task in plan.elsewhere} == {
        "the rows on this host and the offsets are of different commits"
    }


def test_rows_of_a_restore_that_was_broken_off_are_not_taken_for_all(tmp_path: Path) -> None:
    """The store that is empty is complete at once, and says nothing of the other one."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    stream.group_by_key().count(store="counts")
    stream.filter(lambda k, v: False).group_by_key().count(store="none")
    driver = TopologyTestDriver(
        builder.build(), EXACTLY_ONCE, commit="manual", state_dir=tmp_path / "state"
    )
    driver.input("in").send_many([(f"k{number}", "x") for number in range(20)])
    driver.commit()
    driver.crash(keep=False)
    driver.crash(at="records_restored")
    driver._worker.turn()
    assert driver.crashes == 2
    for store in ("counts", "none"):
        driver.cluster.delete(f"test-{store}-changelog")
    plan = tool_of(driver, tmp_path / "state").plan()
    assert not plan.here
    assert [task.refusal for task in plan.elsewhere] == [
        "the rows on this host and the offsets are of different commits"
    ]


@pytest.mark.parametrize("is_begun", [False, True])
def test_rows_of_one_store_do_not_speak_for_those_of_another(
    tmp_path: Path, is_begun: bool
) -> None:
    """One that was dropped and is being restored has some rows, or none."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    stream.group_by_key().count(store="counts")
    stream.group_by_key().reduce(lambda old, new: new, store="last")
    driver = TopologyTestDriver(
        builder.build(),
        {**EXACTLY_ONCE, "restore.batch.records": 5},
        commit="manual",
        state_dir=tmp_path / "state",
    )
    driver.input("in").send_many([(f"k{number}", "x") for number in range(20)])
    driver.commit()
    driver.restart()
    plan = driver._plans[0]
    home = driver._worker.disk.open(TaskId(0, 0), plan.program.sub_topology.stores)
    home.state.drop_store("counts")
    driver._worker.disk.process_ended()
    if is_begun:
        driver.crash(at="records_restored")
        driver._worker.turn()
        driver._worker.disk.process_ended()
    for store in ("counts", "last"):
        driver.cluster.delete(f"test-{store}-changelog")
    found = tool_of(driver, tmp_path / "state").plan()
    assert not found.here
    assert [task.refusal for task in found.elsewhere] == [
        "the rows on this host and the offsets are of different commits"
    ]


def test_rows_that_were_in_memory_alone_are_not_there(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    stream.group_by_key().count(store=Materialized("counts", kind="memory")).to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), state_dir=tmp_path / "state")
    driver.input("in").send("k", "v")
    driver.restart()
    driver.cluster.delete("test-counts-changelog")
    plan = tool_of(driver, tmp_path / "state").plan()
    assert [task.refusal for task in plan.tasks] == ["the rows of counts were only in memory"]


@pytest.mark.slow
def test_nothing_is_written_while_a_process_has_the_state(tmp_path: Path) -> None:
    lost = Lost(tmp_path, EXACTLY_ONCE)
    lost.driver.run()
    with pytest.raises(ResetRefusedError, match="locked"):
        tool_of(lost.driver, lost.state_dir).plan()


def test_where_nothing_is_lost_nothing_is_to_be_done(tmp_path: Path) -> None:
    lost = Lost(tmp_path, EXACTLY_ONCE)
    assert list(lines(lost.tool().plan())) == ["No changelog of test lacks rows."]
