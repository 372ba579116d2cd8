"""What must end an application by its name, and never change what it has written.

When everything is checked, the workers are stopped and the cluster still runs, somebody deletes the
offsets of an input, an input topic, a changelog. A worker that is started then must end within its
time, with the exit code for that, naming what is gone, and not one record written.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.supervisor.exit_codes import ExitCode
from tests.chaos import application
from tests.chaos.cluster import Cluster
from tests.chaos.workers import Fleet, Slot
from tests.support import kafka

ENDS_WITHIN_S = 90.0
OF_OTHER_TASKS = ("region-totals", "tier-totals")
LETS_MARKERS_GO = {
    f"{stage}_exception_handler": "continue" for stage in ("deserialization", "processing")
}
"""The tasks that are not concerned read what the check has left in their inputs."""

Undo = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Ending:
    """One thing that somebody does, and how a worker must end.

    Args:
        name: what is done.
        act: does it, and returns what makes it undone, if that can be.
        code: what the worker ends with.
        names: words that its log must have.
    """

    name: str
    act: Callable[[Scene], Undo | None]
    code: ExitCode
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """How a worker ended.

    Args:
        code: its exit code; None where it went on.
        text: what it logged.
        written: how many records more there are in outputs and changelogs.
    """

    code: int | None
    text: str
    written: int


class Scene:
    """A cluster at rest, with an application on it.

    Args:
        cluster: the brokers.
        prefix: of the application's names.
    """

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self.cluster = cluster
        self.prefix = prefix
        self.group = application.application_id(prefix)

    def topic(self, name: str) -> str:
        """The full name of an input or an output."""
        return application.topic(self.prefix, name)

    def written(self) -> int:
        """How many offsets there are in all that the tasks write which read the inputs.

        The others may have something left to do, and do it.
        """
        stores = [store for store, home in application.STORES.items() if home == 0]
        changelogs = [f"{self.group}-{store}-changelog" for store in stores]
        there = self.cluster.admin.list_topics(timeout=10).topics
        outputs = [name for name in application.OUTPUTS if name not in OF_OTHER_TASKS]
        names = [*map(self.topic, outputs), *changelogs]
        ends = [kafka.ends(self.cluster.bootstrap, name) for name in names if name in there]
        return sum(offset for found in ends for offset in found.values())

    @property
    def admin(self) -> AdminClient:
        return self.cluster.admin

    def groups(self) -> GroupAdmin:
        return GroupAdmin({"bootstrap.servers": self.cluster.bootstrap}, timeout_s=30)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self.admin.delete_topics([name])[name].result(timeout=30)
        deadline = time.monotonic() + 30
        while name in self.admin.list_topics(timeout=10).topics:
            assert time.monotonic() < deadline, f"{name} is still there"
            time.sleep(0.1)


def delete_offsets(scene: Scene) -> Undo:
    """The offsets of one of several inputs of a task with state."""
    groups = scene.groups()
    before: Mapping[TopicPartition, CommittedOffset] = groups.committed(scene.group, decided=True)
    payments = scene.topic("payments")
    scene.admin.delete_consumer_groups([scene.group])[scene.group].result(timeout=30)
    groups.set_offsets(scene.group, {p: c for p, c in before.items() if p.topic != payments})
    return lambda: groups.set_offsets(scene.group, before)


def make_input_anew(scene: Scene) -> None:
    """An input topic is another one, under the same name."""
    accounts = scene.topic("accounts")
    scene.delete_topic(accounts)
    scene.cluster.create(accounts, application.INPUTS["accounts"])


def delete_changelog(scene: Scene) -> None:
    """A changelog of a store whose rows are on the disks."""
    scene.delete_topic(f"{scene.group}-totals-changelog")


ENDINGS = (
    Ending("offsets of one input deleted", delete_offsets, ExitCode.OFFSETS, ("payments",)),
    Ending("a changelog deleted", delete_changelog, ExitCode.OFFSETS, ("totals-changelog",)),
    Ending("an input topic made anew", make_input_anew, ExitCode.OFFSETS, ("accounts",)),
)
"""In this order: what cannot be undone stays so, and lost offsets are looked for first."""


def wrong_with(ending: Ending, seen: Seen) -> list[str]:
    """What is not as it must be."""
    found = []
    if seen.code is None:
        found.append(f"it went on for {ENDS_WITHIN_S:.0f} s")
    elif seen.code != ending.code:
        found.append(f"it ended with {seen.code} instead of {int(ending.code)}")
    missing = [word for word in ending.names if word not in seen.text]
    if missing:
        found.append(f"its log does not name {', '.join(missing)}")
    if seen.written:
        found.append(f"it wrote {seen.written} records")
    return found


def try_ending(ending: Ending, scene: Scene, fleet: Fleet, slot: Slot) -> list[str]:
    """Do it, start a worker, and say what is wrong with its end."""
    undo = ending.act(scene)
    before, logged = scene.written(), slot.log.stat().st_size
    fleet.launch(slot, **LETS_MARKERS_GO)
    process = slot.process
    assert process is not None
    try:
        code: int | None = process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        fleet.kill(slot)
        code = None
    slot.process = None
    text = slot.log.read_bytes()[logged:].decode(errors="replace")
    found = wrong_with(ending, Seen(code, text, scene.written() - before))
    if undo is not None:
        undo()
    return found
