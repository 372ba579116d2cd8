"""Times as whoever asks gives them: milliseconds since 1970, or datetimes."""

from __future__ import annotations

from datetime import UTC, datetime

from headrace.streams.queries.errors import WrongQueryError

Time = int | datetime
"""A datetime is in UTC unless it says otherwise, as over HTTP."""


def ms_of(time: Time | None, *, otherwise: int = 0) -> int:
    """A time in milliseconds since 1970.

    Args:
        otherwise: what None stands for.

    Raises:
        WrongQueryError: it is no time.

    >>> ms_of(datetime(1970, 1, 1, 0, 0, 1)), ms_of(1500), ms_of(None, otherwise=7)
    (1000, 1500, 7)
    """
    if time is None:
        return otherwise
    if isinstance(time, datetime):
        instant = time if time.tzinfo else time.replace(tzinfo=UTC)
        return max(0, round(instant.timestamp() * 1000))
    if isinstance(time, int) and not isinstance(time, bool):
        return time
    raise WrongQueryError(
        f"a time is a datetime or milliseconds since 1970, and no {type(time).__name__}"
    )
