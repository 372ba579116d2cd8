"""The slow interpreter that compiled topologies are compared with: what it works on.

It has the DSL's own methods, so one program writes both: the topology under test and this one. It
knows no store, cache, commit or bytes: rows are dictionaries, a record goes depth first through
everything behind it. A task is a number of a partition; what a task has read, and in which order,
it is told, as that is the runtime's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.state.codec import partition_for_key
from headrace.topology import serdes
from headrace.topology.serdes import Serde
from tests.reference.functions import FailedError

Task = int
Headers = tuple[tuple[str, "bytes | None"], ...]
Receive = Callable[[Task, Any, Any, int], None]
"""Takes task, key, value and timestamp."""
ReceiveChange = Callable[[Task, Any, Any, Any, int], None]
"""Takes task, key, new value, old value and timestamp."""


class Written(NamedTuple):
    """A record that a task wrote to a topic."""

    task: str
    partition: int
    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()


class Partial(NamedTuple):
    """What several records of a key came to before they were written to a repartition topic."""

    result: Any


@dataclass
class Engine:
    """What the parts of one interpreted topology share.

    Args:
        partitions: of every topic.
        default_key: the serde of keys where nobody names one.
    """

    partitions: int
    default_key: Serde[Any] = serdes.string
    inputs: dict[str, Receive] = field(default_factory=dict)
    outputs: dict[str, list[Written]] = field(default_factory=dict)
    stores: dict[str, Callable[[Task], dict[Any, tuple[Any, int]]]] = field(default_factory=dict)
    """By name: the rows that a task's store must hold now, with their timestamps."""
    may_be_gone: dict[str, Callable[[Task, Any], bool]] = field(default_factory=dict)
    """By name: tells of a row of a task whether it may have expired."""
    running: str = ""
    headers: Headers = ()
    """Of what is processed now: they go to all that follows."""
    finals: dict[str, Callable[[], dict[Any, Any]]] = field(default_factory=dict)
    """By topic: the last values that it must have, where nothing is said of the way there."""
    never_meet: list[str] = field(default_factory=list)
    """Where keys come together that are other bytes on each side: such a program is refused."""
    _tasks: dict[tuple[int, Any], Task] = field(default_factory=dict)

    def lies_by(self, key: Serde[Any] | None) -> frozenset[str]:
        """By what the records of a topic lie where they do: the bytes of their keys."""
        return frozenset({type(key or self.default_key).__name__})

    def meet(self, where: str, *lies_by: frozenset[str]) -> None:
        """Say that equal keys of these must be in one task."""
        if len(frozenset().union(*lies_by)) > 1:
            self.never_meet.append(where)

    def at(self, where: object, key: Any, task: Task) -> None:
        """Check that all that is done with one key at a place is done in one task."""
        key = getattr(key, "key", key)
        other = self._tasks.setdefault((id(where), key), task)
        assert other == task, f"key {key} of {where} is met in tasks {other} and {task}"

    @contextmanager
    def under(self, headers: Headers) -> Iterator[None]:
        """Let what follows from something else than the record at hand have these headers."""
        outer, self.headers = self.headers, headers
        yield
        self.headers = outer

    def read(
        self,
        topic: str,
        task: str,
        key: Any,
        value: Any,
        timestamp: int,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
    ) -> None:
        """Let a task process one record."""
        self.running, self.headers = task, tuple(headers or ())
        self.inputs[topic](int(task.split("_")[1]), key, value, timestamp)

    def write(
        self, topic: str, serde: Serde[Any] | None, key: Any, value: Any, timestamp: int
    ) -> None:
        """Write a record to the partition of its key; without a key to any."""
        serde = serde or self.default_key
        data = None if key is None else serde.serialize(key)
        inner = getattr(serde, "inner_bytes", None)
        if data is not None and inner is not None:
            data = inner(data)
        partition = -1 if data is None else partition_for_key(data, self.partitions)
        written = Written(self.running, partition, key, value, timestamp, self.headers)
        self.outputs.setdefault(topic, []).append(written)


def attempted(function: Callable[..., Any], *arguments: Any, instead: Any = None) -> Any:
    """What a function of the program returns, or what counts where it fails."""
    try:
        return function(*arguments)
    except FailedError:
        return instead


class PerTask(dict[Task, Any]):
    """Something that each task has for itself."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, task: Task) -> Any:
        self[task] = made = self._make()
        return made
