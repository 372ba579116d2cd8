"""Times that brokers refuse, mostly of other units than milliseconds: limits and descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from headrace.streams.seams.topic_facts import TopicFacts
from headrace.topology.errors import LAST_TIME_MS, RefusedTimestampError
from headrace.topology.payload_time import span

FAR_MS = 253_402_300_800_000
"""The year 10000: no milliseconds of anything that has happened."""
_400_YEARS_MS = 146_097 * 86_400_000
_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ((1_000, "microseconds"), (1_000_000, "nanoseconds"))
_PLAUSIBLE = range(1990, 2100)
REFUSED = (
    "refuses a record as its timestamp is too far from the broker's clock: ahead of it by more "
    "than message.timestamp.after.max.ms (an hour by default), or behind it by more than "
    "message.timestamp.before.max.ms"
)


def told(time_ms: int) -> str:
    """A time as people read it, and what it looks like.

    >>> told(1_700_000_000_000_000)
    '1700000000000000 (in the year 55840; it looks like microseconds of 2023-11-14)'
    >>> told(2_000_000_000_000)
    '2000000000000 (in the year 2033)'
    >>> told(2_082_758_400_000)
    '2082758400000 (in the year 2036)'
    """
    for factor, unit in _UNITS:
        if _year(time_ms // factor) in _PLAUSIBLE:
            day = datetime.fromtimestamp(time_ms / factor / 1000, UTC).date()
            return f"{time_ms} (in the year {_year(time_ms)}; it looks like {unit} of {day})"
    return f"{time_ms} (in the year {_year(time_ms)})"


def advice(topic: str | None) -> str:
    """What to do about it."""
    return (
        "give milliseconds since 1970, such as by the timestamps= extractor of the source. Raise "
        f"message.timestamp.after.max.ms of {topic or 'the topic'}, and of each that is written "
        "behind it, only where such times are meant: they close all windows before them, and the "
        "records of now are late then"
    )


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The times that topics accept, as far as their configs are known.

    Args:
        ahead_ms: message.timestamp.after.max.ms of those topics that have a limit.
        behind_ms: message.timestamp.before.max.ms of those topics that have a limit.
    """

    ahead_ms: Mapping[str, int] = field(default_factory=dict)
    behind_ms: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, topics: Mapping[str, TopicFacts]) -> TimeLimits:
        """Return the limits of topics."""
        ahead = {name: facts.max_ahead_ms for name, facts in topics.items()}
        behind = {name: facts.max_behind_ms for name, facts in topics.items()}
        return cls(
            {name: ms for name, ms in ahead.items() if ms is not None},
            {name: ms for name, ms in behind.items() if ms is not None},
        )

    @property
    def max_ahead_ms(self) -> int:
        """How far ahead of the clock a time may be that all topics accept."""
        return min(self.ahead_ms.values(), default=LAST_TIME_MS)

    def highest_ms(self, now_ms: int) -> int:
        """Return the largest time that needs no check: the clock only moves it up.

        Where a topic has a limit for times of the past, each time needs one.
        """
        if self.behind_ms:
            return -1
        return now_ms + self.max_ahead_ms

    def require(self, topic: str, time_ms: int, now_ms: int) -> int:
        """Check a time by the clock of this worker; returns `highest_ms`.

        Raises:
            RefusedTimestampError: the topic does not accept it.

        >>> TimeLimits({"out": 3_600_000}).require("out", 2_082_758_400_000, 1_700_000_000_000)
        Traceback (most recent call last):
        headrace.topology.errors.RefusedTimestampError: a record for out has the timestamp \
2082758400000 (in the year 2036), which is 4430 days ahead of the clock, and \
message.timestamp.after.max.ms of out is 3600000; give milliseconds since 1970, such as by the \
timestamps= extractor of the source. Raise message.timestamp.after.max.ms of out, and of each that \
is written behind it, only where such times are meant: they close all windows before them, and the \
records of now are late then
        """
        ahead_ms = self.ahead_ms.get(topic, LAST_TIME_MS)
        behind_ms = self.behind_ms.get(topic, LAST_TIME_MS)
        is_ahead = time_ms - now_ms > ahead_ms
        if not is_ahead and now_ms - time_ms <= behind_ms:
            return self.highest_ms(now_ms)
        name, limit_ms = ("after", ahead_ms) if is_ahead else ("before", behind_ms)
        distance = f"{span(abs(time_ms - now_ms))} {'ahead of' if is_ahead else 'behind'} the clock"
        setting = f"message.timestamp.{name}.max.ms"
        fix = advice(topic) if is_ahead else f"raise {setting} where such old times are meant"
        raise RefusedTimestampError(
            topic,
            time_ms,
            f"a record for {topic} has the timestamp {told(time_ms)}, which is {distance}, and "
            f"{setting} of {topic} is {limit_ms}; {fix}",
        )


def _year(time_ms: int) -> int:
    """Return the year, also of times after the year 9999: the calendar repeats after 400 years."""
    periods, rest_ms = divmod(time_ms, _400_YEARS_MS)
    return 400 * periods + (_1970 + timedelta(milliseconds=rest_ms)).year
