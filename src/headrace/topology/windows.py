"""Definitions of time windows.

Specs are frozen and contain no records. Times are milliseconds since 1970
internally, and `timedelta` in the public API. A window is closed when stream time has passed its
end plus the grace period: a record for a closed window is late, and dropped (Kafka Streams:
`TimeWindows`, `SlidingWindows`, `SessionWindows`, `JoinWindows`, and the processors that use them).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.topology.errors import LAST_TIME_MS, TopologyError
from headrace.topology.java_names import Hinting

K = TypeVar("K")

_MS = timedelta(milliseconds=1)
_NONE = timedelta(0)
_1970 = datetime(1970, 1, 1, tzinfo=UTC)


class Window(NamedTuple):
    """Time interval in milliseconds since 1970; its spec defines whether the end is inclusive.

    Examples:
        >>> window = Window(0, 90_000)
        >>> window.end
        datetime.datetime(1970, 1, 1, 0, 1, 30, tzinfo=datetime.timezone.utc)
        >>> str(window.end - window.start)
        '0:01:30'
    """

    start_ms: int
    end_ms: int

    @property
    def start(self) -> datetime:
        """Start in UTC."""
        return _1970 + self.start_ms * _MS

    @property
    def end(self) -> datetime:
        """End in UTC.

        Raises:
            OverflowError: The end is too large for a datetime, as in an unlimited window.
        """
        return _1970 + self.end_ms * _MS


class Windowed(NamedTuple, Generic[K]):
    """Key in a window: the key of a windowed table.

    Examples:
        >>> minute = Windowed("home", Window(0, 60_000))
        >>> minute.key, minute.window.end_ms
        ('home', 60000)
    """

    key: K
    window: Window


def duration_ms(name: str, value: Any, *, at_least: int) -> int:
    """Return a user's duration in milliseconds; raise if it is too short or not whole."""
    if not isinstance(value, timedelta):
        raise TopologyError(f"{name} must be a timedelta, not {type(value).__name__}")
    milliseconds, rest = divmod(value, _MS)
    if rest:
        raise TopologyError(f"{name} must be whole milliseconds, not {value}")
    if milliseconds < at_least:
        raise TopologyError(f"{name} must be at least {at_least} ms, not {milliseconds} ms")
    return milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindows(metaclass=Hinting):
    """Windows of a fixed size, aligned to 1970: tumbling, or hopping if they overlap.

    A window contains the records from its start, inclusive, to its end, exclusive. No window starts
    before 1970.

    Args:
        size: size of each window.
        advance: distance between two starts; None for the size, so that windows do not overlap.
        grace: how long after its end, in stream time, a window accepts records.

    Raises:
        TopologyError: a duration is not valid.

    Examples:
        >>> hopping = TimeWindows(size=timedelta(minutes=5), advance=timedelta(minutes=1))
        >>> hopping.advance_ms
        60000
        >>> hopping.size_ms, hopping.grace_ms
        (300000, 0)
    """

    size: timedelta
    advance: timedelta | None = None
    grace: timedelta = _NONE

    def __post_init__(self) -> None:
        if self.advance_ms > self.size_ms:
            raise TopologyError(
                f"windows of {self.size} that advance by {self.advance} leave gaps between them; "
                "advance by the size at most"
            )
        duration_ms("grace", self.grace, at_least=0)

    @property
    def size_ms(self) -> int:
        """Size in milliseconds."""
        return duration_ms("size", self.size, at_least=1)

    @property
    def advance_ms(self) -> int:
        """Distance between two starts, in milliseconds."""
        if self.advance is None:
            return self.size_ms
        return duration_ms("advance", self.advance, at_least=1)

    @property
    def grace_ms(self) -> int:
        """Grace period in milliseconds."""
        return duration_ms("grace", self.grace, at_least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlimitedWindows(metaclass=Hinting):
    """A single window without an end; records before its start are dropped.

    Args:
        start_ms: its start, in milliseconds since 1970.

    Examples:
        >>> UnlimitedWindows(start_ms=1_000).start_ms
        1000
    """

    start_ms: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.start_ms, int):
            raise TopologyError(f"start_ms must be an int, not {type(self.start_ms).__name__}")
        if self.start_ms < 0:
            raise TopologyError(f"start_ms must be at least 0, not {self.start_ms}")
        if self.start_ms > LAST_TIME_MS:
            raise TopologyError(f"start_ms must be {LAST_TIME_MS} at most, not {self.start_ms}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindows(metaclass=Hinting):
    """Windows defined by records: any two records within the time difference share a window.

    A window contains the records from its start to its end, both inclusive.

    Args:
        time_difference: maximum time difference of the records in a window.
        grace: how long after its end, in stream time, a window accepts records.

    Raises:
        TopologyError: a duration is not valid.

    Examples:
        >>> SlidingWindows(time_difference=timedelta(seconds=10)).time_difference_ms
        10000
    """

    time_difference: timedelta
    grace: timedelta = _NONE

    def __post_init__(self) -> None:
        duration_ms("time_difference", self.time_difference, at_least=0)
        duration_ms("grace", self.grace, at_least=0)

    @property
    def time_difference_ms(self) -> int:
        """Maximum time difference in milliseconds."""
        return duration_ms("time_difference", self.time_difference, at_least=0)

    @property
    def grace_ms(self) -> int:
        """Grace period in milliseconds."""
        return duration_ms("grace", self.grace, at_least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWindows(metaclass=Hinting):
    """Windows that grow while records arrive, and end after an inactivity gap without records.

    A session contains the records from its start to its end, both inclusive; two records exactly
    the gap apart are in the same session.

    Args:
        inactivity_gap: the longest pause within a session.
        grace: how late records may be, in stream time, and still be added.

    Raises:
        TopologyError: a duration is not valid.

    Examples:
        >>> SessionWindows(inactivity_gap=timedelta(minutes=30)).gap_ms
        1800000
    """

    inactivity_gap: timedelta
    grace: timedelta = _NONE

    def __post_init__(self) -> None:
        duration_ms("inactivity_gap", self.inactivity_gap, at_least=1)
        duration_ms("grace", self.grace, at_least=0)

    @property
    def gap_ms(self) -> int:
        """Inactivity gap in milliseconds."""
        return duration_ms("inactivity_gap", self.inactivity_gap, at_least=1)

    @property
    def grace_ms(self) -> int:
        """Grace period in milliseconds."""
        return duration_ms("grace", self.grace, at_least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinWindows(metaclass=Hinting):
    """Maximum time difference between matching records of two streams.

    Args:
        time_difference: maximum difference of the other record's time, before and after; optional
            if `before` or `after` is given, and 0 then.
        before: maximum difference before; None uses `time_difference`.
        after: maximum difference after; None uses `time_difference`.
        grace: how late records may be, in stream time, and still be joined.

    Raises:
        TopologyError: a duration is not valid, or none is given.

    Examples:
        >>> hour = JoinWindows(before=timedelta(hours=1))
        >>> hour.before_ms, hour.after_ms
        (3600000, 0)
    """

    time_difference: timedelta | None = None
    before: timedelta | None = None
    after: timedelta | None = None
    grace: timedelta = _NONE

    def __post_init__(self) -> None:
        if (self.time_difference, self.before, self.after) == (None, None, None):
            raise TopologyError("JoinWindows takes a time_difference, or before and after")
        if self.before_ms + self.after_ms < 0:
            raise TopologyError("the sum of before and after must be at least 0")
        if self.time_difference is not None:
            duration_ms("time_difference", self.time_difference, at_least=0)
        duration_ms("grace", self.grace, at_least=0)

    @property
    def before_ms(self) -> int:
        """Maximum difference before, in milliseconds; negative if only later records match."""
        return self._side("before", self.before)

    @property
    def after_ms(self) -> int:
        """Maximum difference after, in milliseconds; negative if only earlier records match."""
        return self._side("after", self.after)

    def _side(self, name: str, value: timedelta | None) -> int:
        if value is None:
            difference = _NONE if self.time_difference is None else self.time_difference
            return duration_ms("time_difference", difference, at_least=0)
        return duration_ms(name, value, at_least=-(2**62))

    @property
    def grace_ms(self) -> int:
        """Grace period in milliseconds."""
        return duration_ms("grace", self.grace, at_least=0)
