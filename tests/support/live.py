"""An application in this process, with what it did: for tests that need no kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.streams import KafkaStreams
from headrace.streams.app import State
from headrace.streams.errors import StreamsError
from headrace.streams.kafka.protocols import Probe, TopicPartition, no_probe
from headrace.streams.plan.plan import TaskId
from headrace.topology import Topology
from tests.support.processes import wait_until
from tests.support.topics import Topics


@dataclass
class Restored:
    """One restore of one store."""

    place: TopicPartition
    store: str
    begin: int
    end: int
    batches: list[tuple[int, int]] = field(default_factory=list)
    """The offset reached and the count of each batch."""
    total: int | None = None
    """How many records were applied, once it is complete."""


class RestoreRecorder:
    """A restore listener that remembers everything."""

    def __init__(self) -> None:
        self.restored: list[Restored] = []

    def on_restore_start(self, place: TopicPartition, store: str, begin: int, end: int) -> None:
        self.restored.append(Restored(place, store, begin, end))

    def _open(self, place: TopicPartition) -> Restored:
        return next(r for r in reversed(self.restored) if r.place == place)

    def on_batch_restored(self, place: TopicPartition, store: str, offset: int, count: int) -> None:
        self._open(place).batches.append((offset, count))

    def on_restore_end(self, place: TopicPartition, store: str, total: int) -> None:
        self._open(place).total = total


class Live(RestoreRecorder):
    """`KafkaStreams` with listeners that remember everything."""

    def __init__(
        self, topology: Topology, settings: Mapping[str, Any], *, probe: Probe = no_probe
    ) -> None:
        super().__init__()
        self.states: list[State] = []
        self.assigned: list[list[TaskId]] = []
        self.commits: list[tuple[list[TaskId], int]] = []
        self.app = KafkaStreams(
            topology,
            settings,
            state_listener=lambda new, _: self.states.append(new),
            worker_listener=self,
            restore_listener=self,
            probe=probe,
        )

    @property
    def state(self) -> State:
        return self.app.state

    @property
    def processed(self) -> int:
        """How many records were committed by this application."""
        return sum(count for _, count in self.commits)

    def wait_processed(self, count: int) -> None:
        self.wait(lambda: self.processed >= count, what=f"{count} records committed")
        assert self.processed == count

    def wait_running(self) -> None:
        self.wait(lambda: self.state is State.RUNNING, what="running")

    def wait(self, condition: Callable[[], bool], *, what: str = "") -> None:
        """Wait for a condition; ends with the application's error if there is one."""
        wait_until(lambda: self.state is State.ERROR or condition(), what=what)
        if self.state is State.ERROR:
            self.app.close()

    def failure(self) -> StreamsError:
        """Run in this thread until an error ends it."""
        try:
            self.app.run()
        except StreamsError as error:
            assert self.state is State.ERROR
            return error
        raise AssertionError("it stopped without an error")

    # What the listeners hear.

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        self.assigned.append(list(tasks))

    def on_running(self) -> None:
        pass

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        self.commits.append((list(tasks), records))


@contextmanager
def live(
    topology: Topology, settings: Mapping[str, Any], *, probe: Probe = no_probe
) -> Iterator[Live]:
    """Start an application in a thread of its own; close it at the end, whatever happened."""
    app = Live(topology, settings, probe=probe)
    app.app.start()
    try:
        yield app
    except BaseException:
        app.app._stopping.set()
        _close_quietly(app.app)
        raise
    app.app.close()


def _close_quietly(app: KafkaStreams) -> None:
    try:
        app.close()
    except Exception as error:  # the one that matters is on its way already
        print(f"closing failed too: {error}")


def default_settings_of(topics: Topics, directory: Path, **more: Any) -> dict[str, Any]:
    """Settings of a new application that says nothing but what it has to."""
    return {
        "application.id": topics.name("app"),
        "bootstrap.servers": topics.bootstrap,
        "state.dir": str(directory / "state"),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def settings_of(topics: Topics, directory: Path, **more: Any) -> dict[str, Any]:
    """Settings of a new application: exactly-once, a commit after each batch, no caches.

    Further ones are given with underscores for dots.
    """
    return {
        "application.id": topics.name("app"),
        "bootstrap.servers": topics.bootstrap,
        "processing.guarantee": "exactly_once_v2",
        "state.dir": str(directory / "state"),
        "worker.id": "w",
        "commit.interval.ms": 0,
        "poll.ms": 10,
        "statestore.cache.max.bytes": 0,
        "task.timeout.ms": 30_000,
        "consumer.session.timeout.ms": 6_000,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
