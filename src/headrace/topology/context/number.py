"""Committed numbers that survive an operator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Number:
    """64-bit number that is committed in the offset metadata, such as a stream time."""

    value: int = -1
