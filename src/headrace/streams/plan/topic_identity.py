"""Identity of the topic that an offset was committed for, as two numbers in its metadata.

A topic that is deleted and re-created keeps its name and gets another id, and an offset of the old
topic has no meaning in the new topic. The names of the numbers contain a digest of the topic's
name, because Kafka Streams commits the numbers of all inputs of a task with each of them, and keeps
the largest number of each name.
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
    """Return the numbers to commit for a topic.

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
    first, second = _names(topic)
    if first not in values or second not in values:
        return None
    return _text(_LONGS.pack(values[first], values[second]))


def without_ids(values: Mapping[str, int]) -> dict[str, int]:
    """Remove the ids of topics and changelogs from the numbers in an offset's metadata."""
    return {name: value for name, value in values.items() if not name.startswith(PREFIX)}


def changelog_number(topic: str, topic_id: str) -> tuple[str, int]:
    """Return the name and the number to commit (see `changelog_identity`)."""
    return _digest(topic), _LONGS.unpack(_bytes(topic_id))[0]


def without_changelogs(values: Mapping[str, int]) -> dict[str, int]:
    """Remove the ids of changelogs from the numbers in an offset's metadata.

    >>> values = id_values("orders", "mIZ3c7IdTReMqgcwdmKasA")
    >>> without_changelogs({**values, **dict([changelog_number("counts", "1")])}) == values
    True
    """
    return {name: value for name, value in values.items() if not _CHANGELOG.fullmatch(name)}


def same_topic(one: str, other: str) -> bool:
    """Return whether two topic ids are equal, in any encoding."""
    return _bytes(one) == _bytes(other)


def shown(topic_id: str) -> str:
    """Return a topic id in the format of Kafka's tools.

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
