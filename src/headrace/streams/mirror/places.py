"""Where a mirror's partitions are begun: behind what was copied, and only if that is still so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.state.events.log import get_logger
from headrace.streams.errors import MisconfiguredTopicError
from headrace.streams.kafka.topic_reader import TopicReader
from headrace.streams.mirror.errors import RecordsLostError
from headrace.streams.mirror.table import Blocks
from headrace.streams.mirror.topics import Side
from headrace.streams.seams.clients import TopicPartition

Places = Mapping[TopicPartition, TopicPartition]
"""Partitions of the source, and what they are at the target."""


def begins_of(
    side: Side, blocks: Mapping[TopicPartition, Blocks], *, skip_lost: bool
) -> dict[TopicPartition, int]:
    """The offsets of the source at which to go on.

    Args:
        blocks: what was copied of each partition that is begun.
        skip_lost: whether records that were deleted meanwhile are left out.

    Raises:
        RecordsLostError: records were deleted before they were copied.
    """
    starts, ends = side.cluster.start_offsets(blocks), side.cluster.end_offsets(blocks)
    found = {}
    for place, copied in blocks.items():
        begin, end, position = starts[place], ends[place], copied.position
        is_new = not (copied.position or copied.last or copied.ends)
        if position > end or (position < begin and not is_new and not skip_lost):
            raise RecordsLostError(place, side.name, position, begin=begin, end=end)
        if position < begin and not is_new:
            get_logger().warning(
                "records_lost", place=str(place), first=position, last=begin - 1, cluster=side.name
            )
        found[place] = max(position, begin)
    return found


def ends_of(
    side: Side, places: Places, blocks: Mapping[TopicPartition, Blocks], *, mirror: str
) -> dict[TopicPartition, int]:
    """The offsets at which the next records are going to stand at the target.

    Raises:
        MisconfiguredTopicError: others have written there, or what was copied is gone.
    """
    ends = side.cluster.end_offsets(places.values())
    starts = side.cluster.start_offsets(places.values())
    begins = {}
    for source, target in places.items():
        copied = blocks[source].target_end
        if ends[target] < copied:
            raise MisconfiguredTopicError(
                f"{target} of {side.name} ends at offset {ends[target]}, and mirror {mirror} has "
                f"written up to {copied}: the target has lost records; delete the topic and give "
                "the mirror another --name, to copy it from its beginning"
            )
        begins[target] = max(copied, starts[target])
    _refuse_others(side.name, side.reading, begins, ends, mirror)
    return ends


def _refuse_others(
    where: str,
    reading: Mapping[str, Any],
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    mirror: str,
) -> None:
    """Behind what was copied there are markers and aborted records, and none that others wrote."""
    # One offset is the marker of the last transaction.
    unknown = {place: begin for place, begin in begins.items() if begin + 1 < ends[place]}
    if not unknown:
        return
    reader = TopicReader(reading)
    try:
        for message in reader.read(unknown, ends):
            place = TopicPartition(str(message.topic()), message.partition() or 0)
            raise MisconfiguredTopicError(
                f"{place} of {where} has a record at or near offset {message.offset()} that mirror "
                f"{mirror} did not write: a copy has one writer; find out who writes there, delete "
                "the topic, and give the mirror another --name, or a --rename such as "
                "'{cluster}.{topic}'"
            )
    finally:
        reader.close()
