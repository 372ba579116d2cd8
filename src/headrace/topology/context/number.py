"""Numbers that outlast an operator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Number:
    """A number of 64 bits that is committed beside the input offsets, like a stream time."""

    value: int = -1


class NewNumbers:
    """Numbers that are kept nowhere: what a task begins with that has committed none."""

    def __init__(self) -> None:
        self._numbers: dict[str, Number] = {}

    def get(self, name: str) -> Number:
        """The number of that name."""
        return self._numbers.setdefault(name, Number())
