"""What is said of a record that is left out without an error: which it is, and why it is late."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from types import FrameType

from headrace.streams.seams.clients import TopicPartition
from headrace.topology.compile.compiler import Program
from headrace.topology.context.punctuation import NEVER_MS

_LATE = (
    "its window is closed: the time of its task is stream_time, and grace is over. Where that is "
    "ahead of the clock, a record in front of it has a wrong time: a timestamps= extractor of the "
    "source can refuse such; else raise grace="
)

_LATE_BY_FASTEST = (
    "its window is closed: with stream.time=fastest, a source partition that was read faster moves "
    "the time of the repartition topic past the records of the others; set stream.time=slowest"
)


def dropped_record(
    program: Program,
    frame: FrameType,
    reason: str,
    times: Mapping[TopicPartition, int],
    watermark: int = NEVER_MS,
    unfollowed: Collection[str] = (),
) -> dict[str, object]:
    """The fields of the event that tells of it; none where no record is being processed.

    Args:
        program: what processes it.
        frame: where it was left out, or what was called from there.
        reason: why.
        times: the largest time of each input before the batch that it is in, in milliseconds.
        watermark: what stream time is not later than.
        unfollowed: repartition topics whose stream time is the latest timestamp.
    """
    record = program.current(frame)
    if record is None:
        return {}
    said: dict[str, object] = {
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
        "record_time": moment(record.timestamp()[1]),
    }
    if reason.startswith("late"):
        stream_time = min(watermark, max([program.stream_time(frame), *times.values()]))
        said |= {
            "stream_time": moment(stream_time),
            "behind_by": _duration(stream_time - record.timestamp()[1]),
            "advice": _LATE_BY_FASTEST if record.topic() in unfollowed else _LATE,
        }
    return said


def _duration(duration_ms: int) -> str:
    try:
        return str(timedelta(milliseconds=duration_ms))
    except OverflowError:
        return f"{duration_ms} ms"


def moment(time_ms: int) -> str:
    """A time of a record as people read it.

    >>> moment(1_700_000_000_000), moment(-1), moment(1_700_000_000_000_000)
    ('2023-11-14T22:13:20.000Z', '-1 ms', '1700000000000000 ms')
    """
    try:
        time = datetime.fromtimestamp(time_ms / 1000, UTC) if time_ms >= 0 else None
    except (ValueError, OverflowError, OSError):
        time = None
    if time is None:
        return f"{time_ms} ms"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
