"""What a cluster says of a group's members and of partitions, and what offsets are set to."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.streams.seams.clients import TopicPartition

_HEAD, _LENGTH, _NUMBER = struct.Struct(">hi"), struct.Struct(">h"), struct.Struct(">i")

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


def places_in(assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions that a member was given, as consumers write it down for each other.

    >>> places_in(bytes.fromhex("0001 00000001 0001 74 00000002 00000000 00000003 00000000"))
    (TopicPartition(topic='t', partition=0), TopicPartition(topic='t', partition=3))
    """
    if not assignment:
        return ()
    found, at = [], _HEAD.size
    _, topics = _HEAD.unpack_from(assignment)
    for _ in range(topics):
        (length,) = _LENGTH.unpack_from(assignment, at)
        at += _LENGTH.size
        topic = assignment[at : at + length].decode()
        at += length
        (count,) = _NUMBER.unpack_from(assignment, at)
        at += _NUMBER.size
        for _ in range(count):
            found.append(TopicPartition(topic, *_NUMBER.unpack_from(assignment, at)))
            at += _NUMBER.size
    return tuple(sorted(found))
