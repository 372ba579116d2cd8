"""Records that a task is to leave out: their offsets stand beside the offset of their partition.

A batch with a record that fails is void as a whole, so the group stands before those that were
good. To leave out the one and none of these, its number goes along until the task is past it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_PREFIX = "headrace.skip."
AT_ONCE_MAX = 16
"""More would not find room beside an offset."""


def left_out(values: Mapping[str, int]) -> list[int]:
    """The offsets that are to be left out, of the numbers beside an offset.

    >>> left_out({**left_out_values([17, 12]), "headrace.commit.id": 7})
    [12, 17]
    """
    return sorted(value for name, value in values.items() if name.startswith(_PREFIX))


def left_out_values(offsets: Iterable[int]) -> dict[str, int]:
    """The numbers to commit for them."""
    return {f"{_PREFIX}{number}": offset for number, offset in enumerate(sorted(offsets))}


def without_left_out(values: Mapping[str, int]) -> dict[str, int]:
    """The numbers that are none of them.

    >>> without_left_out({**left_out_values([17]), "headrace.commit.id": 7})
    {'headrace.commit.id': 7}
    """
    return {name: value for name, value in values.items() if not name.startswith(_PREFIX)}
