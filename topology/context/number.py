"""Numbers that outlast an operator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Number:
    """A number of 64 bits that is committed beside the input offsets, like a stream time."""

    value: int = -1
