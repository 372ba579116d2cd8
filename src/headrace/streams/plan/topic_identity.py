"""Which topic an offset was committed for: the topic's id, as two numbers beside the offset.

A topic that is deleted and made anew keeps its name and gets another id, and an offset of the old
one says nothing about the new one. The numbers' names hold a digest of the topic's name: Kafka
Streams gives all inputs of a task the numbers of each, and the largest under one name.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
import zlib
from collections.abc import Mapping

PREFIX = "headrace.topic."

_LONGS = struct.Struct(">qq")
_CHANGELOG = re.compile(re.escape(PREFIX) + "[0-9a-f]{8}")


def id_values(topic: str, topic_id: str) -> dict[str, int]:
    """The numbers to commit for a topic.

    Example:
        >>> values = id_values("orders", "mIZ3c7IdTReMqgcwdmKasA")
        >>> len(values), committed_id("orders", values)
        (2, 'mIZ3c7IdTReMqgcwdmKasA')
        >>> committed_id("customers", values) is None
        True
    """
    high, low = _LONGS.unpack(_bytes(topic_id))
    first, second = _names(topic)
    return {first: high, second: low}


def committed_id(topic: str, values: Mapping[str, int]) -> str | None:
    """The id that was committed for a topic, in Kafka's form; None where none was."""
    first, second = _names(topic)
    if first not in values or second not in values:
        return None
    return _text(_LONGS.pack(values[first], values[second]))


def without_ids(values: Mapping[str, int]) -> dict[str, int]:
    """The numbers that are no ids of topics, changelogs included."""
    return {name: value for name, value in values.items() if not name.startswith(PREFIX)}


def changelog_number(topic: str, topic_id: str) -> tuple[str, int]:
    """Name and number to commit for a changelog.

    See `headrace.streams.plan.changelog_identity`.
    """
    return _digest(topic), _LONGS.unpack(_bytes(topic_id))[0]


def without_changelogs(values: Mapping[str, int]) -> dict[str, int]:
    """The numbers that are not of changelogs.

    >>> values = id_values("orders", "mIZ3c7IdTReMqgcwdmKasA")
    >>> without_changelogs({**values, **dict([changelog_number("counts", "1")])}) == values
    True
    """
    return {name: value for name, value in values.items() if not _CHANGELOG.fullmatch(name)}


def same_topic(one: str, other: str) -> bool:
    """Whether two ids are one, however they are written."""
    return _bytes(one) == _bytes(other)


def shown(topic_id: str) -> str:
    """An id as Kafka's own tools write it.

    >>> shown("MW+GJMW8RceFURJXaStKCA")
    'MW-GJMW8RceFURJXaStKCA'
    """
    return _text(_bytes(topic_id))


def _names(topic: str) -> tuple[str, str]:
    digest = _digest(topic)
    return f"{digest}.0", f"{digest}.1"


def _digest(topic: str) -> str:
    return f"{PREFIX}{zlib.crc32(topic.encode()):08x}"


def _bytes(topic_id: str) -> bytes:
    try:
        data = base64.b64decode(topic_id.replace("-", "+").replace("_", "/") + "==", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) == _LONGS.size:
        return data
    return hashlib.sha256(topic_id.encode()).digest()[: _LONGS.size]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
