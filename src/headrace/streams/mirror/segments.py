"""Which record of the source became which of the target: runs of offsets, without gaps in either.

source   10 11 12  .  . 15 16          . is a marker, or a record that was aborted
target    4  5  6        7  8
         (10, 4, 3)     (15, 7, 2)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Segment(NamedTuple):
    """So many records from an offset of the source on, and where they are at the target."""

    source: int
    target: int
    length: int

    @property
    def inverse(self) -> Segment:
        """The same, the other way round."""
        return Segment(self.target, self.source, self.length)


def runs_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Offsets in their order as runs: the first one, and how many follow each other.

    >>> runs_of([3, 4, 5, 9]), runs_of([])
    ([(3, 3), (9, 1)], [])
    """
    if not offsets:
        return []
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        return [(offsets[0], len(offsets))]
    found: list[tuple[int, int]] = []
    begin = last = offsets[0]
    for offset in offsets[1:]:
        if offset != last + 1:
            found.append((begin, last - begin + 1))
            begin = offset
        last = offset
    found.append((begin, last - begin + 1))
    return found


def joined(runs: Iterable[tuple[int, int]], target: int) -> list[Segment]:
    """The segments of runs that stand one behind the other in the target, from an offset on.

    >>> joined([(3, 2), (5, 1), (9, 1)], 20)
    [Segment(source=3, target=20, length=3), Segment(source=9, target=23, length=1)]
    """
    found: list[Segment] = []
    for begin, count in runs:
        if found and found[-1].source + found[-1].length == begin:
            found[-1] = found[-1]._replace(length=found[-1].length + count)
        else:
            found.append(Segment(begin, target, count))
        target += count
    return found


def translated(segments: Sequence[Segment], offset: int) -> int | None:
    """The offset at which the next record is the one that is next from `offset` on; None for none.

    Args:
        segments: in their order.
        offset: the next one to read where the segments come from.

    Returns:
        Of the record there, or of the first behind it; behind the last one where all are before it.

    Example:
        >>> there = [Segment(10, 4, 3), Segment(15, 7, 2)]
        >>> [translated(there, offset) for offset in (0, 10, 12, 13, 14, 16, 17, 40)]
        [4, 4, 6, 7, 7, 8, 9, 9]
    """
    if not segments:
        return None
    at = bisect_right(segments, offset, key=lambda one: one.source) - 1
    if at < 0:
        return segments[0].target
    here = segments[at]
    if offset < here.source + here.length:
        return here.target + offset - here.source
    if at + 1 < len(segments):
        return segments[at + 1].target
    return here.target + here.length
