"""The seam to `headrace.streams.kafka.broker_contact`: what a worker asks about the brokers."""

from __future__ import annotations

from typing import Protocol


class Contact(Protocol):
    """What a worker asks about the brokers."""

    @property
    def is_lost(self) -> bool:
        """Whether none can be reached now."""

    def turn(self) -> None:
        """Raise what a person has to put right, if there is anything."""


class NoContact:
    """Where nobody listens to clients: the brokers are always there."""

    @property
    def is_lost(self) -> bool:
        """They are there."""
        return False

    def turn(self) -> None:
        """Nothing to raise."""
