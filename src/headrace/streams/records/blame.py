"""Which input a record came from, where only a range of offsets is known.

A row is encoded at the commit, and a broker answers some time after a record was sent: by then
one of all records since the last commit has written it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.streams.errors import ProcessorFailedError, RecordError, StreamsError
from headrace.streams.seams.clients import TopicPartition
from headrace.streams.seams.refused_times import advice, told
from headrace.streams.worker_errors import RecordRefusedError
from headrace.topology.graph.graph import Sink

Ranges = Mapping[TopicPartition, range]


@dataclass(frozen=True, slots=True)
class Suspect:
    """What one task has processed since its last commit, and where it writes.

    Args:
        ranges: the offsets processed since the last commit, by input partition.
        changelogs: the changelog partition of each of its stores.
        begins: the committed offset of each input partition.
        times: the largest timestamp of each input partition.
        far: the first record of each input partition, since the last commit, with a time that its
            topics do not accept, as far as there is one.
    """

    task_id: str
    ranges: Ranges
    changelogs: Mapping[str, TopicPartition]
    sinks: Sequence[Sink] = ()
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)
    times: Mapping[TopicPartition, int] = field(default_factory=dict)
    far: Ranges = field(default_factory=dict)

    def for_its_time(self) -> Suspect:
        """Return the suspect of a time that was refused: records with such times, if there are."""
        return replace(self, ranges=self.far or self.ranges)

    def writers(self, error: RecordRefusedError) -> tuple[list[str], list[str]]:
        """The stores and the sinks that write to where the record was refused."""
        stores = [
            store
            for store, (topic, partition) in self.changelogs.items()
            if topic == error.topic and error.partition in (partition, None)
        ]
        return stores, [sink.name for sink in self.sinks if _writes(sink, error.topic)]


def _writes(sink: Sink, topic: str | None) -> bool:
    if callable(sink.topic) or topic is None:
        return True
    return topic.endswith(f"-{sink.topic}") if sink.internal else topic == sink.topic


def refused_record(
    suspects: Sequence[Suspect], error: RecordRefusedError, *, now_ms: int
) -> StreamsError:
    """Say which records may have written one that was refused after it was sent.

    Args:
        suspects: the tasks whose records were under way.
    """
    busy = [suspect for suspect in suspects if suspect.ranges] or list(suspects)
    guilty = [suspect for suspect in busy if any(suspect.writers(error))] or busy
    stores = {store for suspect in guilty for store in suspect.writers(error)[0]}
    sinks = {sink for suspect in guilty for sink in suspect.writers(error)[1]}
    ranges = {place: offsets for suspect in guilty for place, offsets in suspect.ranges.items()}
    message = str(error)
    if error.for_its_time:
        times = {p: ms for s in guilty for p, ms in s.times.items() if ms > now_ms and p in ranges}
        # Where inputs have times to come, the record is one of theirs.
        ranges = {place: ranges[place] for place in times} or ranges
        ranges = {p: r for suspect in guilty for p, r in suspect.far.items()} or ranges
        if times:
            message += f"; the latest time that was read is {told(max(times.values()))}"
        message += f"; {advice(error.topic)}"
    return error_in_ranges(
        ranges,
        message,
        node=sinks.pop() if len(sinks) == 1 and not stores else None,
        store=stores.pop() if len(stores) == 1 else None,
        task_id=", ".join(sorted({suspect.task_id for suspect in guilty})),
    )


def error_in_ranges(
    ranges: Ranges, message: str, *, node: str | None, store: str | None, task_id: str
) -> StreamsError:
    """An error of one of the records in these offsets, nobody knows of which.

    Without any input it is a processor's, which writes by the clock too.
    """
    if not ranges:
        return ProcessorFailedError(message, node=node, store=store, task_id=task_id)
    place = max(ranges, key=lambda p: len(ranges[p]))
    words = " or ".join(_records(p, offsets) for p, offsets in sorted(ranges.items()))
    return RecordError(
        f"{message}; it was written by {words}",
        topic=place.topic,
        partition=place.partition,
        offset=ranges[place][-1],
        first=ranges[place][0],
        node=node,
        store=store,
        task_id=task_id,
    )


def _records(place: TopicPartition, offsets: range) -> str:
    if len(offsets) == 1:
        return f"the record at offset {offsets[0]} of {place}"
    return f"a record between offsets {offsets[0]} and {offsets[-1]} of {place}"
