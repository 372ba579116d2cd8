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
from typing import Any, NamedTuple

import msgspec

from headrace.streams.kafka.protocols import TopicPartition

FORMAT = 1
"""Version of the stored form of a plan."""


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
        topology: digest of the topology, see `headrace.spark_bridge.history.planning`.

    Examples:
        >>> tp = TopicPartition("lines", 0)
        >>> stages = ((0,), (1,))
        >>> plan = BackfillPlan("app", "bf-1", 0, stages, {"lines": 1}, {tp: 0}, {tp: 9})
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

    def to_json(self) -> dict[str, Any]:
        stored = _StoredPlan(
            format=FORMAT,
            application=self.application_id,
            id=self.id,
            now_ms=self.now_ms,
            stages=self.stages,
            partitions=dict(self.partitions),
            inputs=_by_topic({tp: (self.starts[tp], end) for tp, end in self.ends.items()}),
            global_=_by_topic(
                {tp: (self.global_starts[tp], end) for tp, end in self.global_ends.items()}
            ),
            archived=self.archived,
            archived_rows=None if self.archived_rows is None else _by_topic(self.archived_rows),
            topic_ids=dict(self.topic_ids),
            topology=self.topology,
        )
        found: dict[str, Any] = msgspec.to_builtins(stored)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> BackfillPlan:
        if data.get("format") != FORMAT:
            raise PlanFormatError(
                f"the plan of a backfill has format {data.get('format')!r}, not {FORMAT}. Finish "
                "or drop the backfill with the version that started it"
            )
        try:
            stored = msgspec.convert(data, _StoredPlan)
        except msgspec.ValidationError as error:
            raise PlanFormatError("this is not the plan of a backfill") from error
        inputs, global_topics = _by_partition(stored.inputs), _by_partition(stored.global_)
        rows = None
        if stored.archived_rows is not None:
            rows = {
                tp: ArchivedRows(*found)
                for tp, found in _by_partition(stored.archived_rows).items()
            }
        return cls(
            stored.application,
            stored.id,
            stored.now_ms,
            stored.stages,
            stored.partitions,
            starts={tp: start for tp, (start, _) in inputs.items()},
            ends={tp: end for tp, (_, end) in inputs.items()},
            global_starts={tp: start for tp, (start, _) in global_topics.items()},
            global_ends={tp: end for tp, (_, end) in global_topics.items()},
            archived=stored.archived,
            archived_rows=rows,
            topic_ids=stored.topic_ids,
            topology=stored.topology,
        )

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


class _StoredPlan(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Stored form of a plan. Each tuple begins with the partition, then start and end."""

    format: int
    application: str
    id: str
    now_ms: int = msgspec.field(name="now")
    stages: tuple[tuple[int, ...], ...]
    partitions: dict[str, int]
    inputs: dict[str, list[tuple[int, int, int]]]
    global_: dict[str, list[tuple[int, int, int]]] = msgspec.field(name="global")
    archived: tuple[str, ...] = ()
    archived_rows: dict[str, list[tuple[int, int, int, int]]] | None = msgspec.field(
        default=None, name="rows"
    )
    topic_ids: dict[str, str] = msgspec.field(default_factory=dict, name="ids")
    topology: str = ""


def _by_topic(rows: Mapping[TopicPartition, tuple[int, ...]]) -> dict[str, Any]:
    found: dict[str, list[tuple[int, ...]]] = {}
    for tp in sorted(rows):
        found.setdefault(tp.topic, []).append((tp.partition, *rows[tp]))
    return found


def _by_partition(
    rows: Mapping[str, Sequence[tuple[int, ...]]],
) -> dict[TopicPartition, tuple[int, ...]]:
    return {
        TopicPartition(topic, partition): tuple(values)
        for topic, found in rows.items()
        for partition, *values in found
    }
