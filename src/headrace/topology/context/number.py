"""Committed numbers that survive an operator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Number:
    """64-bit number that is committed in the offset metadata, such as a stream time."""

    value: int = -1


class NewNumbers:
    """Initial numbers of a task without committed numbers."""

    def __init__(self) -> None:
        self._numbers: dict[str, Number] = {}

    def get(self, name: str) -> Number:
        return self._numbers.setdefault(name, Number())
