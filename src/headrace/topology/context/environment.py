"""What a task gives to the code that it runs, and the words that both use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Protocol

from headrace.state.buffer import Buffer
from headrace.topology.context.context import TableView
from headrace.topology.context.number import NewNumbers, Number
from headrace.topology.context.task_facts import TaskFacts

Headers = Sequence[tuple[str, bytes | None]]


class Message(Protocol):
    """A record as it comes from Kafka, or from whatever stands in for it."""

    def key(self) -> bytes | None:
        """The key's bytes."""

    def value(self) -> bytes | None:
        """The value's bytes."""

    def timestamp(self) -> tuple[int, int]:
        """The kind of the timestamp and its milliseconds since 1970."""

    def headers(self) -> Headers | None:
        """The headers, in order."""


Send = Callable[[str, "bytes | None", "bytes | None", int, int, "Headers | None"], None]
"""Takes topic, value, key, partition (-1: by the key), timestamp in ms and headers."""

Part = Literal["key", "value", "record"]
"""What of a record a sink could not write."""

Failed = Callable[[str, Exception, Any, Any, int, "Headers | None", "Part | None"], None]
"""Takes the node, the error, the record's key, value, timestamp in ms and headers, and what of it
could not be written; None where no sink was about to write it.
"""

Answered = Literal["skip", "dead_letter"]
"""What a step says of its records that fail, whatever the handlers would."""

LetGo = Callable[[str, Exception, Any, Any, int, "Headers | None", Answered], None]
"""Takes the node, the error, the record's key, value, timestamp in ms and headers, and the answer.
"""


def raise_again(node: str, error: Exception, *record: Any) -> NoReturn:  # noqa: ARG001
    """Let no record be passed over."""
    raise error


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    """What a task gives to the code that it runs."""

    send: Send
    buffers: Mapping[str, Buffer]
    dropped: Callable[[str, str], None]
    """Called with the node and the reason for each record that a policy leaves out."""
    write_line: Callable[[str], None] = print
    number: Callable[[str], Number] = field(default_factory=lambda: NewNumbers().get)
    """A number that is committed beside the input offsets, by its name."""
    partitions_of: Callable[[str], int] = lambda topic: 1  # noqa: ARG005
    """Tells the partition count of a topic that is written to."""
    task: TaskFacts = field(default_factory=TaskFacts)
    global_views: Mapping[str, TableView] = field(default_factory=dict)
    """The rows of the global tables, by their nodes."""
    failed: Failed = raise_again
    """Called where a node fails on a record; returns where the others are to go on."""
    let_go: LetGo = raise_again
    """Called where one does that says itself what becomes of such records."""
    undecodable: Callable[[str, Exception, Any], None] = raise_again
    """Called with the source, the error and the message; returns where it is to be passed over."""
    now_ms: Callable[[], int] = lambda: 0
    """Tells the wall-clock time in milliseconds since 1970."""
