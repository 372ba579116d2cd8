"""Metadata of a committed input offset.

The bytes are those of Kafka Streams' `TopicPartitionMetadata`: a magic byte, the partition time,
and a map of names to numbers, all big-endian, in base64. Headrace stores its own numbers in the
map.

The Python client appends a zero byte, so Java's decoder rejects the text. Here the length of the
text follows from its bytes, and anything after its end is ignored (see
`headrace.streams.kafka.offset_texts`).
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.streams.errors import ChangelogUnfinishedError, ResetUnfinishedError
from headrace.streams.kafka.protocols import Offsets

# Records to skip: their offsets are in the metadata of their partition's offset.
#
# A batch with a failing record is rolled back as a whole, so the group's offset is before the good
# records. To skip only the failing record, its offset is committed in the metadata until the task
# has passed it.


_PREFIX = "headrace.skip."
AT_ONCE_MAX = 16
"""Maximum number of records to skip at a time; more offsets would not fit into the metadata."""


def left_out(values: Mapping[str, int]) -> list[int]:
    """Return the offsets of records to skip, from the numbers in an offset's metadata.

    >>> left_out({**left_out_values([17, 12]), "headrace.commit.id": 7})
    [12, 17]
    """
    return sorted(value for name, value in values.items() if name.startswith(_PREFIX))


def left_out_values(offsets: Iterable[int]) -> dict[str, int]:
    return {f"{_PREFIX}{number}": offset for number, offset in enumerate(sorted(offsets))}


def without_left_out(values: Mapping[str, int]) -> dict[str, int]:
    """Remove the offsets of records to skip from the numbers in an offset's metadata.

    >>> without_left_out({**left_out_values([17]), "headrace.commit.id": 7})
    {'headrace.commit.id': 7}
    """
    return {name: value for name, value in values.items() if not name.startswith(_PREFIX)}


MAGIC = 2
MAX_BYTES = 4095
"""Kafka's default limit on an offset's metadata (offset.metadata.max.bytes), minus the zero byte
that the client appends."""

COMMIT_ID = "headrace.commit.id"
COMMIT_COUNT_BITS = 32
"""Lower bits of a commit ID, which count the commits of a worker; the upper bits are random."""

WATERMARK = "headrace.watermark"
"""The time up to which all records of a repartition topic's partition had been read (see
`headrace.streams.tasks.upstream_times`)."""

HELD = "headrace.held"
"""Prefix of a name: the earliest time of the results for a repartition topic that a task has not
emitted yet, such as results of open windows. The topic's name follows."""

SHIFT = "headrace.shift"
"""Prefix of a name: how much earlier the results for a repartition topic are than their input
records, if a processor sets their timestamps. The topic's name follows."""

INPUTS = "headrace.inputs"
"""Identifies the topics whose offsets are committed together (see `inputs_number`)."""

RESET_MARK = "headrace.reset"
"""Metadata of an offset during a reset (`admin.reset`)."""

_BASE64 = re.compile(r"([A-Za-z0-9+/]*)(={0,2})")
CHANGELOG_MARK = "headrace.changelog "
"""Prefix of metadata while changelogs are written from local rows (`admin.local_changelogs`)."""

_HEAD = struct.Struct(">bq")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class OffsetMetadata:
    """Metadata of a committed input offset: partition time and numbers.

    Args:
        partition_time: the largest timestamp of the partition so far, in milliseconds, or -1.
        values: 64-bit numbers by name.

    Examples:
        >>> OffsetMetadata.decode(OffsetMetadata(5, {"headrace.commit.id": 7}).encode())
        OffsetMetadata(partition_time=5, values={'headrace.commit.id': 7})
    """

    partition_time: int = -1
    values: Mapping[str, int] = field(default_factory=dict)

    @property
    def event_time(self) -> int:
        return self.values.get(WATERMARK, self.partition_time)

    def encode(self) -> str:
        """Raise ValueError if the text exceeds the broker's limit."""
        parts = [_HEAD.pack(MAGIC, self.partition_time)]
        if self.values:
            parts.append(_INT.pack(len(self.values)))
        for name, value in self.values.items():
            encoded = name.encode()
            parts += [_INT.pack(len(encoded)), encoded, _LONG.pack(value)]
        text = base64.b64encode(b"".join(parts)).decode("ascii")
        if len(text) > MAX_BYTES:
            raise ValueError(
                f"the progress of a partition takes {len(text)} bytes of offset metadata and "
                f"{MAX_BYTES} are allowed; use fewer stateful operators in one sub-topology"
            )
        return text

    @classmethod
    def decode(cls, text: str) -> OffsetMetadata:
        """Decode text of another format to empty metadata; raise the errors of `parse`."""
        return cls.parse(text) or cls()

    @classmethod
    def parse(cls, text: str) -> OffsetMetadata | None:
        """Decode committed metadata; return None for text of another format.

        Raise ResetUnfinishedError or ChangelogUnfinishedError if it has the mark of such a command.

        >>> OffsetMetadata.parse(OffsetMetadata(5).encode() + "\x7f?")
        OffsetMetadata(partition_time=5, values={})
        >>> OffsetMetadata.parse("") is None
        True
        """
        if text.startswith(RESET_MARK):
            raise ResetUnfinishedError(
                "a reset of this application was started and not finished, so its internal topics "
                "and its offsets may not match; run headrace reset again, which finishes it, and "
                "then start"
            )
        if text.startswith(CHANGELOG_MARK):
            raise ChangelogUnfinishedError(
                "the changelogs of this application are being written from local rows, and the "
                "changelogs of this task are not complete; run headrace changelog "
                "restore-from-local on the host that has its rows, again if it was interrupted, or "
                "headrace reset"
            )
        data = _bytes_of(text)
        if len(data) < _HEAD.size:
            return None
        # Magic 1, of older Kafka Streams versions, ends after the partition time.
        magic, partition_time = _HEAD.unpack_from(data)
        if magic not in (1, MAGIC):
            return None
        try:
            return cls(partition_time, _numbers(data[_HEAD.size :]) if magic == MAGIC else {})
        except (struct.error, ValueError):
            # No numbers follow, and the rest does not belong to the text.
            return cls(partition_time)


def _bytes_of(text: str) -> bytes:
    """Decode the longest prefix that is base64."""
    match = _BASE64.match(text)
    assert match is not None
    digits, padding = match[1], match[2]
    lacking = -len(digits) % 4
    if len(padding) < lacking:
        digits, lacking = digits[: len(digits) // 4 * 4], 0
    return base64.b64decode(digits + "=" * lacking)


def _numbers(data: bytes) -> dict[str, int]:
    values: dict[str, int] = {}
    if not data:
        return values
    (count,) = _INT.unpack_from(data)
    position = _INT.size
    for _ in range(count):
        (length,) = _INT.unpack_from(data, position)
        position += _INT.size
        if length < 0:
            raise ValueError("a name of less than no bytes")
        name = data[position : position + length].decode()
        position += length
        (values[name],) = _LONG.unpack_from(data, position)
        position += _LONG.size
    return values


def inputs_number(topics: Iterable[str]) -> int:
    """Return a number that identifies a set of topics.

    >>> inputs_number(["b", "a"]) == inputs_number(["a", "b"]) != inputs_number(["a"])
    True
    """
    named = "\n".join(sorted(set(topics))).encode()
    return int.from_bytes(hashlib.sha256(named).digest()[:8], signed=True)


_OWN = "headrace."


def is_of_kafka_streams(text: str) -> bool:
    """Return whether metadata was committed by Kafka Streams.

    >>> is_of_kafka_streams(OffsetMetadata(5).encode())
    True
    >>> is_of_kafka_streams(OffsetMetadata(5, {COMMIT_ID: 7}).encode()), is_of_kafka_streams("")
    (False, False)
    """
    if text.startswith((RESET_MARK, CHANGELOG_MARK)):
        return False
    metadata = OffsetMetadata.parse(text)
    return metadata is not None and not any(name.startswith(_OWN) for name in metadata.values)


def committed_commit_id(offsets: Offsets) -> int | None:
    ids = {OffsetMetadata.decode(c.metadata).values.get(COMMIT_ID) for c in offsets.values()}
    return max((i for i in ids if i is not None), default=None)
