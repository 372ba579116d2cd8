"""What is said of times that brokers refuse: other units than milliseconds, mostly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

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


def _year(time_ms: int) -> int:
    """Return the year, also of times after the year 9999: the calendar repeats after 400 years."""
    periods, rest_ms = divmod(time_ms, _400_YEARS_MS)
    return 400 * periods + (_1970 + timedelta(milliseconds=rest_ms)).year
