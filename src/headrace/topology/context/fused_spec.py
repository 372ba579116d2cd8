"""Stateless operators that generate their own lines of the compiled code."""

from __future__ import annotations

from typing import Protocol, Self

from headrace.topology.context.operator_spec import Bind
from headrace.topology.errors import Arguments
from headrace.topology.serdes import Serde


class FusedRecord(Protocol):
    """Record at a position in the generated code, as Python expressions."""

    @property
    def key(self) -> str:
        """Expression of the decoded key; available if `FusedSpec.reads_key` is true."""

    @property
    def value(self) -> str:
        """Expression of the decoded value; available if `FusedSpec.reads_value` is true."""

    def key_bytes(self, serde: Serde[object] | None) -> str:
        """Return the expression of the key's bytes, or of None; reuses available bytes."""

    def value_bytes(self, serde: Serde[object] | None) -> str:
        """Return the expression of the value's bytes, or of None; reuses available bytes."""

    def constant(self, name: str, value: object) -> str:
        """Return the name of an object in the code; `name` is unique within the operator."""


class FusedSpec:
    """Operator that forwards a record unchanged or drops it; frozen and compared by value.

    It has no state and no time, so it decides the same for the same record in each run.
    """

    __slots__ = ()

    def condition(self, record: FusedRecord, /) -> str:
        """Return the expression that is true if the record is forwarded."""
        raise NotImplementedError(
            f"{type(self).__name__} must say what goes on: def condition(record)"
        )

    def bound(self, bind: Bind, /) -> Self:  # noqa: ARG002
        """Return a copy that has all of its serdes."""
        return self

    @property
    def serde_arguments(self) -> Arguments:
        """Names of the call's arguments that contain serdes, if not ``key`` and ``value``."""
        return {}

    @property
    def reads_key(self) -> bool:
        return False

    @property
    def reads_value(self) -> bool:
        return False
