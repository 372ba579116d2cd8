"""How early the results of a task may be, for those that read them after a repartition topic.

Most steps give a result the time of its record. Two kinds do not: steps that hold results back, as
windows do until they close, and processors, which choose. Of the first kind it is known what they
hold. Of a processor it is seen, from commit to commit, how much earlier its results are than their
records; as long as it writes nothing, what was seen last is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.streams.plan.progress import HELD, SHIFT
from headrace.streams.plan.upstream import Writers
from headrace.topology.context.context import Number, Operator
from headrace.topology.context.environment import Headers, Send
from headrace.topology.context.task_facts import TaskFacts
from headrace.topology.operators.closing import held_from, holds_results


@dataclass(slots=True)
class _Shift:
    """How much earlier results are than their records; `seen` since the last commit."""

    number: Number
    seen: int | None = None


class TimesWritten:
    """See the module.

    Args:
        written: the repartition topics whose readers follow the task's times.
    """

    def __init__(self, written: Mapping[str, Writers], facts: TaskFacts) -> None:
        self._written = written
        self._facts = facts
        self._held: Sequence[tuple[Number, Sequence[Operator]]] = ()
        self._shifts: dict[str, _Shift] = {}

    def begin(
        self, sub: int, operators: Mapping[str, Operator], number: Callable[[str], Number]
    ) -> None:
        """Take the operators of the task, and the numbers that it commits."""
        held: list[tuple[Number, Sequence[Operator]]] = []
        for topic, writers in self._written.items():
            nodes = writers.holders[sub]
            holding = [op for name, op in operators.items() if name in nodes and holds_results(op)]
            if holding:
                held.append((number(f"{HELD}.{writers.name}"), holding))
            if nodes & writers.processors:
                self._shifts[topic] = _Shift(number(f"{SHIFT}.{writers.name}"))
        self._held = held

    def following(self, send: Send) -> Send:
        """Return what sends and sees how early results are, where that is not known."""
        if not any(writers.processors for writers in self._written.values()):
            return send

        def following(
            topic: str,
            value: bytes | None,
            key: bytes | None,
            partition: int,
            timestamp: int,
            headers: Headers | None,
        ) -> None:
            shift = self._shifts.get(topic)
            if shift is not None:
                self._see(shift, timestamp)
            send(topic, value, key, partition, timestamp, headers)

        return following

    def _see(self, shift: _Shift, timestamp: int) -> None:
        facts = self._facts
        if facts.is_punctuating:
            own = facts.stream_time
        elif facts.record is not None:
            own = facts.record.timestamp()[1]
        else:
            return  # of a cache: its row has the time of its record
        shift.seen = max(own - timestamp, shift.seen or 0)

    def note(self) -> None:
        """Set the numbers for a commit."""
        for number, operators in self._held:
            times = [time for time in map(held_from, operators) if time is not None]
            number.value = min(times, default=-1)
        for shift in self._shifts.values():
            if shift.seen is not None:
                shift.number.value, shift.seen = shift.seen or -1, None
