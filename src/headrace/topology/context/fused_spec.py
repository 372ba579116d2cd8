"""Steps without state that are lines of the generated code, and say themselves which lines."""

from __future__ import annotations

from typing import Protocol, Self

from headrace.topology.context.operator_spec import Bind
from headrace.topology.errors import Arguments
from headrace.topology.serdes import Serde


class FusedRecord(Protocol):
    """The record at one place of the generated code, as expressions of Python."""

    @property
    def key(self) -> str:
        """The decoded key; for a step that says `FusedSpec.reads_key`."""

    @property
    def value(self) -> str:
        """The decoded value; for a step that says `FusedSpec.reads_value`."""

    def key_bytes(self, serde: Serde[object] | None) -> str:
        """The key's bytes, or None for a null; known ones are not made again."""

    def value_bytes(self, serde: Serde[object] | None) -> str:
        """The value's bytes, or None for a null; known ones are not made again."""

    def constant(self, name: str, value: object) -> str:
        """The name by which the generated code knows an object; `name` need only be the step's."""


class FusedSpec:
    """A step that lets a record go on as it is, or not at all; frozen and compared by value.

    It has no state and sees no time, so the same record gets the same answer in each run.
    """

    __slots__ = ()

    def condition(self, record: FusedRecord, /) -> str:
        """The expression that is true where the record goes on."""
        raise NotImplementedError(
            f"{type(self).__name__} must say what goes on: def condition(record)"
        )

    def bound(self, bind: Bind, /) -> Self:  # noqa: ARG002
        """The same with the serdes that it uses itself filled in."""
        return self

    @property
    def serde_arguments(self) -> Arguments:
        """Which arguments of its call name its serdes, where not ``key`` and ``value``."""
        return {}

    @property
    def reads_key(self) -> bool:
        """Whether the condition has to do with the key."""
        return False

    @property
    def reads_value(self) -> bool:
        """Whether the condition has to do with the value."""
        return False
