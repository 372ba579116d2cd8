"""What a cluster says of a group's members and of partitions, and what offsets are set to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.streams.seams.clients import TopicPartition

TargetKind = Literal["earliest", "latest", "offset", "time"]


@dataclass(frozen=True, slots=True)
class Target:
    """Where the inputs are set to.

    Args:
        kind: "offset" and "time" need a number, the others none.
        number: an offset, or milliseconds since the epoch.
    """

    kind: TargetKind = "earliest"
    number: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group."""

    id: str
    client_id: str
    host: str

    def __str__(self) -> str:
        return f"{self.id} ({self.client_id} on {self.host.removeprefix('/')})"


@dataclass(frozen=True, slots=True)
class Layout:
    """Which brokers have a partition, by their numbers; a leader of -1 is none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as its coordinator has it.

    Args:
        state: Kafka's word, in small letters: "stable", "empty", "preparing rebalancing", ...
        members: what each member was given.
    """

    state: str
    members: Mapping[Member, tuple[TopicPartition, ...]]
