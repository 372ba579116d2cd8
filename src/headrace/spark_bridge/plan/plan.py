"""Plan of a backfill: offset ranges to read, and stages.

The ends are fixed once, as last stable offsets: the backfill reads, commits and in a second
attempt reads again exactly these records.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.streams.kafka.protocols import TopicPartition

FORMAT = 1
"""Version of the stored form of a plan."""

Ranges = Mapping[TopicPartition, tuple[int, int]]


class ArchivedRows(NamedTuple):
    """Number of records to read from an archive, and their bounds: offsets, or else timestamps."""

    rows: int
    low: int
    high: int


class PlanFormatError(ValueError):
    """The text is not a plan, or is a plan of another format version."""


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """Plan of a backfill: offset ranges to read, and stages.

    Args:
        id: of the backfill; a second attempt with the same id follows the same plan.
        now_ms: creation time in milliseconds since 1970, which processors see as the current time.
        stages: the sub-topologies that run together, in the order of the stages. A stage has
            several only if they write to each other in a cycle.
        partitions: the partition count of every topic that is read or written by its name.
        starts: the first offset to read of each input partition.
        ends: the offset to stop before, of the same partitions; these are committed.
        global_starts: as `starts`, of the topics of global tables.
        global_ends: as `ends`, of the topics of global tables; never committed.
        archived: the topics whose records before `starts` are in archives.
        archived_rows: statistics of these records by partition, which is -1 for an archive without
            partitions; None in plans of versions that did not store them.
        topic_ids: the ids of the topics that are read, and of the application's internal topics.
            Plans of earlier versions have neither these nor `topology`.
        topology: digest of the topology, by `headrace.spark_bridge.plan.plan_identity`.

    Example:
        >>> place = TopicPartition("lines", 0)
        >>> stages = ((0,), (1,))
        >>> plan = BackfillPlan("app", "bf-1", 0, stages, {"lines": 1}, {place: 0}, {place: 9})
        >>> BackfillPlan.from_text(plan.to_text()) == plan
        True
    """

    application_id: str
    id: str
    now_ms: int
    stages: tuple[tuple[int, ...], ...]
    partitions: Mapping[str, int]
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    global_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    global_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    archived: tuple[str, ...] = ()
    archived_rows: Mapping[TopicPartition, ArchivedRows] | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    topology: str = ""

    @property
    def inputs(self) -> tuple[TopicPartition, ...]:
        """Input partitions outside of the application, in the order that breaks ties."""
        return tuple(sorted(self.ends))

    @property
    def sub_topologies(self) -> tuple[int, ...]:
        return tuple(sub for stage in self.stages for sub in stage)

    @property
    def records(self) -> int:
        """Number of offsets to read, including transaction markers and aborted records."""
        return sum(end - self.starts[tp] for tp, end in self.ends.items())

    def to_json(self) -> dict[str, object]:
        return {
            "format": FORMAT,
            "application": self.application_id,
            "id": self.id,
            "now": self.now_ms,
            "stages": [list(stage) for stage in self.stages],
            "partitions": dict(self.partitions),
            "inputs": _ranges_to_json(self.starts, self.ends),
            "global": _ranges_to_json(self.global_starts, self.global_ends),
            **({"archived": list(self.archived)} if self.archived else {}),
            **_rows_to_json(self.archived_rows),
            **({"ids": dict(self.topic_ids)} if self.topic_ids else {}),
            **({"topology": self.topology} if self.topology else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> BackfillPlan:
        if data.get("format") != FORMAT:
            raise PlanFormatError(
                f"the plan of a backfill has format {data.get('format')!r} and this version reads "
                f"{FORMAT}; finish or drop it with the version that began it"
            )
        try:
            starts, ends = _ranges_from_json(data["inputs"])
            global_starts, global_ends = _ranges_from_json(data["global"])
            partitions = data["partitions"]
            stages = data["stages"]
            topic_ids = data.get("ids", {})
            assert isinstance(topic_ids, dict)
            assert isinstance(partitions, dict)
            assert isinstance(stages, list)
            return cls(
                str(data["application"]),
                str(data["id"]),
                int(str(data["now"])),
                tuple(tuple(map(int, stage)) for stage in stages),
                {str(name): int(count) for name, count in partitions.items()},
                starts,
                ends,
                global_starts,
                global_ends,
                _names(data.get("archived", [])),
                archived_rows=_rows_from_json(data.get("rows")),
                topic_ids={str(name): str(topic_id) for name, topic_id in topic_ids.items()},
                topology=str(data.get("topology", "")),
            )
        except (KeyError, TypeError, ValueError, AssertionError) as error:
            raise PlanFormatError("this is not the plan of a backfill") from error

    def to_text(self) -> str:
        """Return the plan as short ASCII text, fit for the metadata of a committed offset."""
        text = json.dumps(self.to_json(), separators=(",", ":"), sort_keys=True)
        return base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> BackfillPlan:
        try:
            data = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
        except (ValueError, zlib.error) as error:
            raise PlanFormatError("this is not the plan of a backfill") from error
        if not isinstance(data, dict):
            raise PlanFormatError("this is not the plan of a backfill")
        return cls.from_json(data)


def _ranges_to_json(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[str, list[list[int]]]:
    ranges: dict[str, list[list[int]]] = {}
    for tp in sorted(ends):
        row = [tp.partition, starts[tp], ends[tp]]
        ranges.setdefault(tp.topic, []).append(row)
    return ranges


def _ranges_from_json(
    data: object,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    assert isinstance(data, dict)
    for topic, rows in data.items():
        for partition, start, end in _rows(rows):
            starts[TopicPartition(str(topic), partition)] = start
            ends[TopicPartition(str(topic), partition)] = end
    return starts, ends


def _rows_to_json(rows: Mapping[TopicPartition, ArchivedRows] | None) -> dict[str, object]:
    if rows is None:
        return {}
    found: dict[str, list[list[int]]] = {}
    for tp in sorted(rows):
        found.setdefault(tp.topic, []).append([tp.partition, *rows[tp]])
    return {"rows": found}


def _rows_from_json(data: object) -> dict[TopicPartition, ArchivedRows] | None:
    if data is None:
        return None
    assert isinstance(data, dict)
    return {
        TopicPartition(str(topic), int(partition)): ArchivedRows(int(rows), int(low), int(high))
        for topic, found in data.items()
        for partition, rows, low, high in found
    }


def _names(data: object) -> tuple[str, ...]:
    assert isinstance(data, list)
    return tuple(map(str, data))


def _rows(rows: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    return [(int(partition), int(start), int(end)) for partition, start, end in rows]
