"""Records of a foreign-key join's topics, and keys of its store, in Kafka Streams' format.

    subscription   version, hash is null (1 bit)   instruction (1)   hash (16)   primary key
                   partition of the primary key (4)
    response       version, hash is null (1 bit)   hash (16)   the other table's value, or nothing
    store's key    length of the foreign key (4)   foreign key   primary key

A null hash is omitted. It is the hash of the subscribing row, and a response contains it, too: it
identifies a response to a row that has changed meanwhile. The partition is omitted, with version 0,
by applications older than Kafka 3.4.

Kafka Streams writes the same response for an empty value, such as an empty string, and for no
value. Here the response for an empty value has version 1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, NoReturn

import mmh3

from headrace.topology.errors import SerdeError
from headrace.topology.serdes._serde import Compound, Serde

_SEED = 104729
"""The seed of Kafka's `Murmur3.hash128`."""
_HASH = struct.Struct(">QQ")
_LENGTH = struct.Struct(">I")
_PARTITION = struct.Struct(">i")
_NO_HASH = 0x80
_VERSION = 0x7F
_WITH_PARTITION = 1
_EMPTY_VALUE = 1


class Instruction(IntEnum):
    """Instruction of a subscription to the other side, with Kafka Streams' numbers."""

    UNSUBSCRIBE = 0
    UNSUBSCRIBE_AND_RESPOND = 1
    SUBSCRIBE = 2
    SUBSCRIBE_RESPOND_IF_PRESENT = 3

    @property
    def unsubscribes(self) -> bool:
        return self < Instruction.SUBSCRIBE


_INSTRUCTIONS = tuple(Instruction)


class ForeignKeySubscription(NamedTuple):
    """Subscription of a row to another table's row.

    Args:
        hash: hash of the subscribing row, see `digest`; None if the row was deleted.
        instruction: the instruction to the other side.
        key: the primary key's bytes.
        partition: partition of the subscribing row; None derives it from the key.
    """

    hash: bytes | None
    instruction: Instruction
    key: bytes
    partition: int | None


class Response(NamedTuple):
    """Response to a subscription, with the other table's row.

    Args:
        hash: hash of the subscription.
        value: the bytes of the other table's value; None if the row does not exist.
        partition: destination of the response, which is not in its bytes.
    """

    hash: bytes | None
    value: bytes | None
    partition: int | None = None


def digest(value: bytes) -> bytes:
    """Return the 128-bit hash of a row's value: Murmur3, as in Kafka Streams.

    >>> digest(b"abc").hex()
    '8cc66bdf24a3b65ee942bed9d38bee40'
    """
    return _HASH.pack(*mmh3.hash64(value, _SEED, x64arch=True, signed=False))


def prefix_of(foreign_key: bytes) -> bytes:
    """Return the prefix of the store's keys of all rows with a foreign key."""
    return _LENGTH.pack(len(foreign_key)) + foreign_key


def combined_key(foreign_key: bytes, key: bytes) -> bytes:
    r"""Return the store's key of a subscription.

    >>> combined_key(b"fk", b"pk")
    b'\x00\x00\x00\x02fkpk'
    """
    return prefix_of(foreign_key) + key


def primary_key(row_key: bytes) -> bytes:
    return row_key[_LENGTH.size + _LENGTH.unpack_from(row_key)[0] :]


@dataclass(frozen=True, slots=True)
class SubscriptionSerde:
    r"""Serde of subscriptions.

    >>> serde = SubscriptionSerde()
    >>> data = serde.serialize(ForeignKeySubscription(None, Instruction.UNSUBSCRIBE, b"pk", 3))
    >>> data
    b'\x81\x00pk\x00\x00\x00\x03'
    >>> serde.deserialize(data).partition
    3
    """

    exact: ClassVar[frozenset[type]] = frozenset({ForeignKeySubscription})

    name: str = "subscription"
    immutable: bool = True
    canonical: bool = True

    def serialize(self, value: ForeignKeySubscription, /) -> bytes:
        """Encode a subscription; without a partition it has version 0."""
        version = 0 if value.partition is None else _WITH_PARTITION
        end = b"" if value.partition is None else _PARTITION.pack(value.partition)
        flags = version | (_NO_HASH if value.hash is None else 0)
        return bytes((flags, value.instruction)) + (value.hash or b"") + value.key + end

    def deserialize(self, data: bytes, /) -> ForeignKeySubscription:
        if len(data) < 2 or data[0] & _VERSION > _WITH_PARTITION or data[1] > 3:
            _raise_unreadable(self.name, data)
        start = 2 if data[0] & _NO_HASH else 2 + _HASH.size
        end = len(data) - (_PARTITION.size if data[0] & _VERSION else 0)
        if end < start:
            _raise_unreadable(self.name, data)
        return ForeignKeySubscription(
            None if start == 2 else data[2:start],
            _INSTRUCTIONS[data[1]],
            data[start:end],
            None if end == len(data) else _PARTITION.unpack_from(data, end)[0],
        )


@dataclass(frozen=True, slots=True)
class ResponseSerde:
    r"""Serde of responses.

    >>> serde = ResponseSerde()
    >>> [serde.serialize(Response(None, value)) for value in (b"v", b"", None)]
    [b'\x80v', b'\x81', b'\x80']
    >>> serde.deserialize(b"\x81")
    Response(hash=None, value=b'', partition=None)
    """

    name: str = "subscription_response"
    immutable: bool = True
    canonical: bool = True

    def serialize(self, value: Response, /) -> bytes:
        version = _EMPTY_VALUE if value.value == b"" else 0
        flags = version | (_NO_HASH if value.hash is None else 0)
        return bytes((flags,)) + (value.hash or b"") + (value.value or b"")

    def deserialize(self, data: bytes, /) -> Response:
        start = 1 if data and data[0] & _NO_HASH else 1 + _HASH.size
        if len(data) < start or data[0] & _VERSION > _EMPTY_VALUE:
            _raise_unreadable(self.name, data)
        empty = b"" if data[0] & _VERSION else None
        return Response(None if start == 1 else data[1:start], data[start:] or empty)


@dataclass(frozen=True, slots=True)
class CombinedKeySerde(Compound):
    """Serde of the subscription store's keys, which are pairs of a foreign and a primary key.

    Args:
        foreign: the serde of foreign keys; None must be replaced before use.
    """

    inners: ClassVar[tuple[str, ...]] = ("foreign", "primary")

    foreign: Serde[Any] | None
    primary: Serde[Any] | None
    name: str = "subscription_key"
    immutable: bool = False
    canonical: bool = False

    def serialize(self, value: tuple[Any, Any], /) -> bytes:
        assert self.foreign is not None
        assert self.primary is not None
        return combined_key(self.foreign.serialize(value[0]), self.primary.serialize(value[1]))

    def deserialize(self, data: bytes, /) -> tuple[Any, Any]:
        assert self.foreign is not None
        assert self.primary is not None
        key = primary_key(data)
        foreign = data[_LENGTH.size : len(data) - len(key)]
        return self.foreign.deserialize(foreign), self.primary.deserialize(key)


def _raise_unreadable(name: str, data: bytes) -> NoReturn:
    raise SerdeError(
        f"serde {name!r} cannot decode {len(data)} bytes; a newer version, or another program, "
        "writes to an internal topic of this application: stop it, and reset the application"
    )
