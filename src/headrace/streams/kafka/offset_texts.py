"""Texts about offsets: offset metadata from clients, names of partitions, and timestamp limits.

librdkafka passes offset metadata on without a terminator (its issue 4649), unless the committing
client has added one, as this client does and Java's does not. Reads then continue into other
memory, up to the next zero byte. So only the part of such a text that its own format delimits may
be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from headrace.streams.kafka.protocols import (
    CommittedOffset,
    Offsets,
    TopicDescription,
    TopicPartition,
)
from headrace.topology.errors import LAST_TIME_MS, RefusedTimestampError
from headrace.topology.payload_time import span

# Short forms of many partitions and tasks, for messages.


def format_partitions(tps: Iterable[TopicPartition]) -> str:
    """Format partitions in a short form.

    Examples:
        >>> format_partitions(TopicPartition("a", p) for p in (0, 1, 2, 5))
        'a-0..2,5'
    """
    return ", ".join(f"{topic}-{_ranges(some)}" for topic, some in _by_topic(tps).items())


def format_tasks(sub_topology: int, partitions: Iterable[int]) -> str:
    """Format the tasks of a sub-topology in a short form.

    Examples:
        >>> format_tasks(1, [0, 1, 2]), format_tasks(1, [4])
        ('tasks 1_0..2', 'task 1_4')
    """
    chosen = sorted(set(partitions))
    return f"task{'s' if len(chosen) > 1 else ''} {sub_topology}_{_ranges(chosen)}"


def topic_options(tps: Iterable[TopicPartition], counts: Mapping[str, int]) -> str:
    """Format partitions as options of ``headrace offsets set``, without numbers for whole topics.

    Examples:
        >>> both = [TopicPartition("a", 0), TopicPartition("a", 1)]
        >>> topic_options([*both, TopicPartition("b", 1)], {"a": 2, "b": 2})
        '--topic a --topic b:1'
    """
    options = []
    for topic, partitions in _by_topic(tps).items():
        whole = len(partitions) > 1 and len(partitions) == counts.get(topic)
        chosen = "" if whole else ":" + ",".join(map(str, partitions))
        options.append(f"--topic {topic}{chosen}")
    return " ".join(options)


def _by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[int]]:
    partitions_found: dict[str, list[int]] = {}
    for tp in sorted(set(tps)):
        partitions_found.setdefault(tp.topic, []).append(tp.partition)
    return partitions_found


def _ranges(numbers: Iterable[int]) -> str:
    return ",".join(
        str(first) if first == last else f"{first}..{last}" for first, last in _runs(numbers)
    )


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = None
    for number in numbers:
        if first is not None and last is not None and number > last + 1:
            yield first, last
            first = None
        first, last = (number if first is None else first), number
    if first is not None and last is not None:
        yield first, last


# Timestamps that brokers reject, mostly because of a wrong unit: limits and descriptions.


FAR_MS = 253_402_300_800_000
"""The year 10000, after any plausible timestamp in milliseconds."""
_400_YEARS_MS = 146_097 * 86_400_000
_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ((1_000, "microseconds"), (1_000_000, "nanoseconds"))
_PLAUSIBLE = range(1990, 2100)
REFUSED = (
    "rejects a record because its timestamp differs too much from the broker's clock: it is ahead "
    "by more than message.timestamp.after.max.ms (an hour by default), or behind by more than "
    "message.timestamp.before.max.ms"
)


def format_time(time_ms: int) -> str:
    """Format a timestamp for people, with its likely unit.

    >>> format_time(1_700_000_000_000_000)
    '1700000000000000 (in the year 55840; it looks like microseconds of 2023-11-14)'
    >>> format_time(2_000_000_000_000)
    '2000000000000 (in the year 2033)'
    >>> format_time(2_082_758_400_000)
    '2082758400000 (in the year 2036)'
    """
    for factor, unit in _UNITS:
        if _year(time_ms // factor) in _PLAUSIBLE:
            day = datetime.fromtimestamp(time_ms / factor / 1000, UTC).date()
            return f"{time_ms} (in the year {_year(time_ms)}; it looks like {unit} of {day})"
    return f"{time_ms} (in the year {_year(time_ms)})"


def advice(topic: str | None) -> str:
    return (
        "use milliseconds since 1970, for example by a timestamps= extractor of the source. Raise "
        f"message.timestamp.after.max.ms of {topic or 'the topic'}, and of each topic downstream, "
        "only if such times are intended: they close all earlier windows, and current records are "
        "then late"
    )


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Limits of topics for timestamps, message.timestamp.{after,before}.max.ms, if known."""

    ahead_ms: Mapping[str, int] = field(default_factory=dict)
    behind_ms: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, topics: Mapping[str, TopicDescription]) -> TimeLimits:
        ahead = {name: topic.max_ahead_ms for name, topic in topics.items()}
        behind = {name: topic.max_behind_ms for name, topic in topics.items()}
        return cls(
            {name: ms for name, ms in ahead.items() if ms is not None},
            {name: ms for name, ms in behind.items() if ms is not None},
        )

    @property
    def max_ahead_ms(self) -> int:
        """Maximum time ahead of the clock that all topics accept."""
        return min(self.ahead_ms.values(), default=LAST_TIME_MS)

    def highest_ms(self, now_ms: int) -> int:
        """Return the largest timestamp without a check; -1 if a topic limits past timestamps."""
        if self.behind_ms:
            return -1
        return now_ms + self.max_ahead_ms

    def require(self, topic: str, time_ms: int, now_ms: int) -> int:
        """Check a timestamp by the clock of this worker; return `highest_ms`.

        >>> TimeLimits({"out": 3_600_000}).require("out", 2_082_758_400_000, 1_700_000_000_000)
        Traceback (most recent call last):
        headrace.topology.errors.RefusedTimestampError: a record for out has the timestamp \
2082758400000 (in the year 2036), which is 4430 days ahead of the clock, and \
message.timestamp.after.max.ms of out is 3600000; use milliseconds since 1970, for example by a \
timestamps= extractor of the source. Raise message.timestamp.after.max.ms of out, and of each \
topic downstream, only if such times are intended: they close all earlier windows, and current \
records are then late
        """
        ahead_ms = self.ahead_ms.get(topic, LAST_TIME_MS)
        behind_ms = self.behind_ms.get(topic, LAST_TIME_MS)
        is_ahead = time_ms - now_ms > ahead_ms
        if not is_ahead and now_ms - time_ms <= behind_ms:
            return self.highest_ms(now_ms)
        name, limit_ms = ("after", ahead_ms) if is_ahead else ("before", behind_ms)
        distance = f"{span(abs(time_ms - now_ms))} {'ahead of' if is_ahead else 'behind'} the clock"
        setting = f"message.timestamp.{name}.max.ms"
        fix = advice(topic) if is_ahead else f"raise {setting} if such old times are intended"
        raise RefusedTimestampError(
            topic,
            time_ms,
            f"a record for {topic} has the timestamp {format_time(time_ms)}, which is {distance}, "
            f"and {setting} of {topic} is {limit_ms}; {fix}",
        )


def _year(time_ms: int) -> int:
    """Return the year, also after 9999: the calendar repeats every 400 years."""
    periods, rest_ms = divmod(time_ms, _400_YEARS_MS)
    return 400 * periods + (_1970 + timedelta(milliseconds=rest_ms)).year


class ClientPosition(Protocol):
    """An offset of a partition, of confluent-kafka."""

    @property
    def metadata(self) -> str | None:
        """The metadata of the offset."""


def text_of(position: ClientPosition) -> str:
    """Return the metadata, which is ASCII, possibly with trailing memory."""
    try:
        return position.metadata or ""
    except UnicodeDecodeError as error:
        # The error has all bytes, and the metadata comes first.
        return error.object[: error.start].decode()


def differing_offsets(
    marks: Offsets, committed: Mapping[TopicPartition, CommittedOffset]
) -> list[str]:
    """Return the partitions whose offset or metadata differs from a committed mark.

    Examples:
        >>> tp, mark = TopicPartition("orders", 0), CommittedOffset(7, "mark")
        >>> differing_offsets({tp: mark}, {tp: CommittedOffset(7, "mark, then other memory")})
        []
        >>> differing_offsets({tp: mark}, {tp: CommittedOffset(8, "mark")})
        ['orders-0']
    """
    return [
        str(tp)
        for tp, mark in marks.items()
        if tp not in committed
        or committed[tp].offset != mark.offset
        or not committed[tp].metadata.startswith(mark.metadata)
    ]
