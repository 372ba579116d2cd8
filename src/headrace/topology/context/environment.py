"""Services that a task provides to the generated code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Protocol

from headrace.state.buffer import Buffer
from headrace.state.codec import partition_for_key
from headrace.topology.context.context import TableView
from headrace.topology.context.number import Number
from headrace.topology.context.task_context import TaskContext

Headers = Sequence[tuple[str, bytes | None]]


class Message(Protocol):
    """Record from Kafka or from a replacement of it."""

    def key(self) -> bytes | None:
        """Return the key's bytes."""

    def value(self) -> bytes | None:
        """Return the value's bytes."""

    def timestamp(self) -> tuple[int, int]:
        """Return the timestamp's type, and its milliseconds since 1970."""

    def headers(self) -> Headers | None:
        """Return the headers in order."""


Send = Callable[[str, "bytes | None", "bytes | None", int, int, "Headers | None"], None]
"""Function that sends topic, value, key, partition (-1: by the key), timestamp in ms, headers."""

Part = Literal["key", "value", "record"]
"""Part of a record that a sink could not write."""

Failed = Callable[..., None]
"""Function that receives the node, the error, the record's key, value, timestamp in ms and headers,
and the part that could not be written, if a sink was writing the record.
"""

FailureReaction = Literal["skip", "dead_letter"]
"""Reaction of an operator to its failed records that overrides the handlers."""

LetGo = Callable[..., None]
"""Function that receives the node, the error, the record's key, value, timestamp in ms and headers,
and the operator's reaction.
"""


def raise_again(node: str, error: Exception, *record: Any) -> NoReturn:  # noqa: ARG001
    raise error


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    """Services that a task provides to the generated code."""

    send: Send
    buffers: Mapping[str, Buffer]
    dropped: Callable[[str, str], None]
    """Called with the node and the reason for each record that a policy drops."""
    write_line: Callable[[str], None] = print
    number: Callable[[str], Number] = field(
        default_factory=lambda: defaultdict[str, Number](Number).__getitem__
    )
    """Returns a number that is committed in the offset metadata, by its name."""
    partitions_of: Callable[[str], int] = lambda topic: 1  # noqa: ARG005
    """Returns the partition count of an output topic."""
    partition_for_key: Callable[[bytes, int], int] = partition_for_key
    """Returns the default partition of a serialized key, from the partition count."""
    task: TaskContext = field(default_factory=TaskContext)
    global_views: Mapping[str, TableView] = field(default_factory=dict)
    """Rows of the global tables, by node name."""
    failed: Failed = raise_again
    """Called when a node fails on a record; returns if the record is skipped."""
    let_go: LetGo = raise_again
    """Called when a node with its own reaction to failures fails on a record."""
    undecodable: Callable[[str, Exception, Any], None] = raise_again
    """Called with the source, the error and the message; returns if the message is skipped."""
    now_ms: Callable[[], int] = lambda: 0
    """Returns the wall-clock time in milliseconds since 1970."""

    def partition_of(self, key: bytes, topic: str) -> int:
        """Return the default partition of a serialized key in an output topic."""
        return self.partition_for_key(key, self.partitions_of(topic))
