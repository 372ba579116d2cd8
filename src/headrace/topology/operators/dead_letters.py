"""Operator that sends records of a stream to the dead-letter topic, with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.errors import DeadLetterRequested, NoReasonError, type_of
from headrace.topology.operators.record_cache import Uncached


@dataclass(frozen=True, slots=True)
class ToDeadLetters(OperatorSpec):
    """Spec of an operator that writes a dead letter for each record.

    Args:
        reason: the text, or a function that is called as ``reason(key, value)`` and returns it.
    """

    is_timed: ClassVar[bool] = False
    failure_reaction: ClassVar[Any] = "dead_letter"

    reason: str | Callable[[Any, Any], str]

    def make(self, context: OperatorContext, /) -> _ToDeadLetters:
        return _ToDeadLetters(self, context)


class _ToDeadLetters(Uncached):
    __slots__ = ("_reason", "_send_dead_letter")

    def __init__(self, spec: ToDeadLetters, context: OperatorContext) -> None:
        super().__init__(context.forward)
        self._reason = spec.reason
        self._send_dead_letter = context.send_dead_letter

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        reason = self._reason(key, value) if callable(self._reason) else self._reason
        if not isinstance(reason, str):
            raise NoReasonError(type_of(reason))
        self._send_dead_letter(DeadLetterRequested(reason), key, value, timestamp, headers)
