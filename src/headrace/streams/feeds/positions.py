"""How far somebody has been told of a store's changes, as text: ``0:1500,1:1498``.

For each partition the offset of the changelog that comes next: what is before was told. It is the
number that a `Place` of a query has, so that changes can be followed from an answer on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.streams.queries.errors import WrongQueryError

LENGTH_MAX = 20_000
_ONE = re.compile(r"(\d{1,6}):(\d{1,18})", re.ASCII)


def text_of(positions: Mapping[int, int]) -> str:
    """Positions as text.

    >>> text_of({1: 7, 0: 12})
    '0:12,1:7'
    """
    return ",".join(f"{partition}:{positions[partition]}" for partition in sorted(positions))


def positions_of(text: str) -> dict[int, int]:
    """Read positions.

    Raises:
        WrongQueryError: they are none.

    >>> positions_of("0:12,1:7")
    {0: 12, 1: 7}
    """
    found: dict[int, int] = {}
    for one in text[:LENGTH_MAX].split(","):
        match = _ONE.fullmatch(one.strip())
        if match is None:
            raise WrongQueryError(
                "a position is PARTITION:OFFSET,PARTITION:OFFSET…, as events have it as their id, "
                f"and not {text[:80]!r}"
            )
        found[int(match[1])] = int(match[2])
    return found
