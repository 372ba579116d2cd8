"""Table of a mirror: its positions, and the translation of source offsets to target offsets.

It is the compacted topic ``mirror.<name>.offsets`` of the target, with a single partition and rows
of JSON:

| key | value |
|---|---|
| ``["owner"]`` | the id of the process that writes |
| ``["topic", T]`` | the source's topic T: its id, its cluster, its name at the target |
| ``["coming", T]`` | T will be created at the target: the clusters that its records came from |
| ``["offsets", T, P, N]`` | block N of partition P: the position, and segments |
| ``["group", G, T, P]`` | last known offset of the group G of the source |

Rows are written in the transaction of the records that they describe. The position of a partition
is the position of its last block. The mirror's group has the same offsets, but brokers delete
offsets of a group without members after some days, and a mirror without positions would copy
everything again.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.streams.kafka.protocols import NewTopic, TopicPartition
from headrace.streams.kafka.topic_reader import TopicReader

# Segments map source offsets to target offsets, without gaps on either side:
#
# source   10 11 12  .  . 15 16          . is a marker, or a record that was aborted
# target    4  5  6        7  8
#          (10, 4, 3)     (15, 7, 2)


class Segment(NamedTuple):
    """Range of consecutive records, by their offsets at the source and at the target."""

    source: int
    target: int
    length: int

    @property
    def inverse(self) -> Segment:
        return Segment(self.target, self.source, self.length)


def runs_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Group sorted offsets into runs of a first offset and a length.

    >>> runs_of([3, 4, 5, 9]), runs_of([])
    ([(3, 3), (9, 1)], [])
    """
    if not offsets:
        return []
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        return [(offsets[0], len(offsets))]
    runs: list[tuple[int, int]] = []
    begin = last = offsets[0]
    for offset in offsets[1:]:
        if offset != last + 1:
            runs.append((begin, last - begin + 1))
            begin = offset
        last = offset
    runs.append((begin, last - begin + 1))
    return runs


def joined(runs: Iterable[tuple[int, int]], target: int) -> list[Segment]:
    """Return the segments of runs that are consecutive at the target, from a target offset.

    >>> joined([(3, 2), (5, 1), (9, 1)], 20)
    [Segment(source=3, target=20, length=3), Segment(source=9, target=23, length=1)]
    """
    segments_joined: list[Segment] = []
    for begin, count in runs:
        if segments_joined and segments_joined[-1].source + segments_joined[-1].length == begin:
            segments_joined[-1] = segments_joined[-1]._replace(
                length=segments_joined[-1].length + count
            )
        else:
            segments_joined.append(Segment(begin, target, count))
        target += count
    return segments_joined


def translated(segments: Sequence[Segment], offset: int) -> int | None:
    """Translate the next offset to read; None without segments.

    The result is the target offset of that record, or of the next copied record, or the end.

    >>> there = [Segment(10, 4, 3), Segment(15, 7, 2)]
    >>> [translated(there, offset) for offset in (0, 10, 12, 13, 14, 16, 17, 40)]
    [4, 4, 6, 7, 7, 8, 9, 9]
    """
    if not segments:
        return None
    at = bisect_right(segments, offset, key=lambda one: one.source) - 1
    if at < 0:
        return segments[0].target
    here = segments[at]
    if offset < here.source + here.length:
        return here.target + offset - here.source
    if at + 1 < len(segments):
        return segments[at + 1].target
    return here.target + here.length


Row = tuple[bytes, "bytes | None"]

BLOCK_SEGMENTS = 32
"""Segments of a full block; each transaction rewrites the last block of its partitions."""
_ROW_SEGMENTS = 1000
"""Segments of a row at most, so that a transaction's rows stay far below the brokers' limit."""
_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),  # the last log segment is never compacted
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}


def new_table(name: str, replication_factor: int) -> NewTopic:
    return NewTopic(
        name, 1, replication_factor, _CONFIGS, "its rows are read in order", changelog=False
    )


@dataclass(frozen=True, slots=True)
class Mirrored:
    """Mirrored topic.

    Args:
        cluster: the id of the source cluster.
        source_id: the topic's id there.
        target: its name at the target.
        target_id: its id there.
        via: ids of further clusters that its records may have come from.
    """

    cluster: str
    source_id: str
    target: str
    target_id: str
    via: tuple[str, ...]

    def encoded(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "source": self.source_id,
            "as": self.target,
            "target": self.target_id,
            "via": list(self.via),
        }

    @classmethod
    def decoded(cls, row: Mapping[str, Any]) -> Mirrored:
        via = tuple(row["via"])
        return cls(row["cluster"], row["source"], row["as"], row["target"], via)


@dataclass(slots=True)
class Blocks:
    """Blocks of a partition.

    Args:
        position: the next source offset to read.
        number: number of the last block.
        last: segments of the last block.
        ends: number of each earlier block, and the target offset after it.
    """

    position: int = 0
    number: int = 0
    last: list[Segment] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)

    @property
    def target_end(self) -> int:
        if self.last:
            return _end(self.last)
        return self.ends[-1][1] if self.ends else 0

    def advance(self, tp: TopicPartition, position: int, more: Sequence[Segment]) -> list[Row]:
        """Move the position and add segments; return the changed rows."""
        self.position = position
        rows = []
        pieces = [more[at : at + _ROW_SEGMENTS] for at in range(0, len(more), _ROW_SEGMENTS)]
        for piece in pieces or [[]]:
            if len(self.last) >= BLOCK_SEGMENTS and piece:
                self.ends.append((self.number, _end(self.last)))
                self.number += 1
                self.last = []
            self.last.extend(piece)
            rows.append(self._row(tp))
        return rows

    def dropped(self, tp: TopicPartition, target_begin: int) -> list[Row]:
        """Return the rows that delete blocks of records that the target has deleted."""
        gone = [number for number, end in self.ends if end <= target_begin]
        self.ends = self.ends[len(gone) :]
        return [(_key("offsets", *tp, number), None) for number in gone]

    def _row(self, tp: TopicPartition) -> Row:
        value = {"to": self.position, "segments": [list(one) for one in self.last]}
        return _key("offsets", *tp, self.number), _json(value)


class Table:
    """Content of a mirror's table.

    Args:
        all_segments_of: topics whose segments are all kept, to translate offsets.
    """

    def __init__(self, all_segments_of: Iterable[str] = ()) -> None:
        self.owner: str | None = None
        self.topics: dict[str, Mirrored] = {}
        self.coming: dict[str, frozenset[str]] = {}
        self.blocks: dict[TopicPartition, Blocks] = {}
        self.groups: dict[str, dict[TopicPartition, int]] = {}
        self._all_segments_of = frozenset(all_segments_of)
        self._segments: dict[TopicPartition, dict[int, list[Segment]]] = {}
        self._ends: dict[TopicPartition, dict[int, int]] = {}

    @classmethod
    def of(cls, rows: Iterable[Row], *, all_segments_of: Iterable[str] = ()) -> Table:
        """Parse rows; the last row of a key counts."""
        table = cls(all_segments_of)
        for key, value in rows:
            table._take(json.loads(key), None if value is None else json.loads(value))
        for tp, ends in table._ends.items():
            there = table.blocks[tp]
            there.ends = sorted((n, end) for n, end in ends.items() if n != there.number)
        return table

    def segments(self, tp: TopicPartition) -> list[Segment]:
        blocks = self._segments.get(tp, {})
        return [one for number in sorted(blocks) for one in blocks[number]]

    def _take(self, key: Sequence[Any], value: Any) -> None:
        kind, *rest = key
        if kind == "owner":
            self.owner = value
        elif kind == "topic" and value is None:
            self.topics.pop(rest[0], None)
        elif kind == "topic":
            self.topics[rest[0]] = Mirrored.decoded(value)
        elif kind == "coming" and value is None:
            self.coming.pop(rest[0], None)
        elif kind == "coming":
            self.coming[rest[0]] = frozenset(value)
        elif kind == "group" and value is not None:
            self.groups.setdefault(rest[0], {})[TopicPartition(rest[1], rest[2])] = value
        elif kind == "offsets":
            self._take_block(TopicPartition(rest[0], rest[1]), rest[2], value)

    def _take_block(self, tp: TopicPartition, number: int, value: Any) -> None:
        ends = self._ends.setdefault(tp, {})
        if value is None:
            ends.pop(number, None)
            self._segments.get(tp, {}).pop(number, None)
            return
        segments = [Segment(*one) for one in value["segments"]]
        ends[number] = _end(segments)
        there = self.blocks.setdefault(tp, Blocks())
        if number >= there.number:
            there.position, there.number, there.last = value["to"], number, segments
        if tp.topic in self._all_segments_of:
            self._segments.setdefault(tp, {})[number] = segments


def owner_row(owner: str) -> Row:
    return _key("owner"), _json(owner)


def topic_row(topic: str, mirrored: Mirrored | None) -> Row:
    return _key("topic", topic), None if mirrored is None else _json(mirrored.encoded())


def coming_row(target: str, via: frozenset[str] | None) -> Row:
    """Return the row written before `topic_row`, in case an opposite mirror finds the topic."""
    return _key("coming", target), None if via is None else _json(sorted(via))


def group_row(group: str, tp: TopicPartition, offset: int) -> Row:
    return _key("group", group, *tp), _json(offset)


def rows_of(config: Mapping[str, Any], begins: Mapping[TopicPartition, int],
            ends: Mapping[TopicPartition, int]) -> Iterator[Row]:  # fmt: skip
    with closing(TopicReader(config)) as reader:
        for message in reader.read(begins, ends):
            yield message.key() or b"", message.value()


def _end(segments: Sequence[Segment]) -> int:
    return segments[-1].target + segments[-1].length if segments else 0


def _key(*parts: object) -> bytes:
    return _json(list(parts))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
