"""Joining two streams: records of one key whose times are near enough to each other.

Each side has two steps. `KeepSide` hands a record on, then keeps it, so that a record of a stream
that is joined with itself is found once. `JoinSide` joins it with what the other side has kept. In
a left or outer join a record that matches nothing waits, and gets its null result as soon as stream
time says that nothing can match it in time any more: before anything else is done with the record
that says so (Kafka Streams: `KStreamKStreamJoin`, which waits for up to a second besides).

Stream time is kept beside the input offsets, and what waits is in a store of its own that nothing
expires in: so no null result is lost, however far stream time jumps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from headrace.topology.context.context import Headers, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec, RowKind
from headrace.topology.errors import Arguments
from headrace.topology.operators.joins.join_rows import SideRows
from headrace.topology.operators.joins.join_waiting import Join, Waiting
from headrace.topology.operators.last_changes import AtOnce
from headrace.topology.operators.windows.lateness import split_late

LateMatch = Literal["emit", "drop"]


@dataclass(frozen=True, slots=True)
class Waits:
    """How the records of a left or outer join wait.

    Args:
        store: where.
        left_ms: how long after its own time a left record can match, the grace period included.
        right_ms: the same of a right record; None where those do not wait.
        late_match: whether a record still matches after its null result.
    """

    store: str
    left_ms: int
    right_ms: int | None
    late_match: LateMatch


@dataclass(frozen=True, slots=True)
class KeepSide(OperatorSpec):
    """The step that keeps the records of one side."""

    store: str
    retention_ms: int
    is_left: bool = True

    repartition_advice: ClassVar[str] = 'join(name="...")'

    store_call: ClassVar[str] = 'join(store="...")'

    @property
    def serde_arguments(self) -> Arguments:
        """The values of the two sides have one each."""
        return {} if self.is_left else {"value": "other_value"}

    def make(self, context: OperatorContext, /) -> _Keep:
        """Make the operator of one task."""
        return _Keep(self, context)


@dataclass(frozen=True, slots=True)
class JoinSide(OperatorSpec):
    """The step that joins the records of one side with those of the other.

    Args:
        own: the store of this side.
        other: the store of the other side.
        before_ms: how far before a record its matches may lie.
        after_ms: how far after it.
        retention_ms: how long both sides keep their records.
        joiner: called as ``joiner(left value, right value)``.
        with_key: call ``joiner(key, left value, right value)`` instead.
        emits_null: whether a record of this side that matches nothing gets a null result.
        waits: how those wait, in a left or outer join.
    """

    is_left: bool
    own: str
    other: str
    before_ms: int
    after_ms: int
    retention_ms: int
    joiner: Callable[..., Any]
    with_key: bool
    emits_null: bool
    waits: Waits | None

    @property
    def row_kind(self) -> RowKind:
        """How near matches lie."""
        return RowKind("join of streams", {"before": self.before_ms, "after": self.after_ms})

    def fills(self, store: str, /) -> bool:
        """Of both sides, the one whose records are kept there."""
        return store == self.own

    store_call: ClassVar[str] = 'join(store="...")'

    def make(self, context: OperatorContext, /) -> _Join:
        """Make the operator of one task."""
        return _Join(self, context)


class _Keep(AtOnce):
    """Hot path: each record of a side is kept here."""

    __slots__ = ("_drop", "_late", "_rows")

    def __init__(self, spec: KeepSide, context: OperatorContext) -> None:
        forward, self._late = split_late(context.node, context.children)
        assert forward is not None, context.node
        super().__init__(forward)
        self._drop = context.dropped
        self._rows = SideRows.of(context, spec.store, spec.retention_ms)

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        """Let a record be joined, then keep it for those that come."""
        rows = self._rows
        self._forward(key, value, None, timestamp, headers)
        if key is None or value is None:
            return
        if rows.is_told:
            rows.is_told = False
            is_late = rows.is_past(timestamp)
        else:
            is_late = not rows.add(key, value, timestamp)
        if is_late:
            if self._late is None:
                self._drop("late")
            else:
                self._late(key, value, None, timestamp, headers)


class _Join(AtOnce):
    """Hot path: each record of a side is joined here."""

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_drop",
        "_emits_null",
        "_is_left",
        "_join",
        "_other",
        "_task",
        "_waiting",
    )

    def __init__(self, spec: JoinSide, context: OperatorContext) -> None:
        self._is_left = spec.is_left
        self._before_ms = spec.before_ms
        self._after_ms = spec.after_ms
        self._emits_null = spec.emits_null
        super().__init__(context.forward)
        self._drop = context.dropped
        self._join = _from_side(spec)
        self._other = SideRows.of(context, spec.other, spec.retention_ms)
        self._task = context.task
        self._waiting = _waiting(spec, context)

    def is_due(self, time: int, /) -> bool:
        """Return whether a record may get its null result when stream time reaches `time`."""
        return self._waiting is not None and self._waiting.is_due(time)

    def held_from(self) -> int | None:
        """Return the time of the earliest record that waits for its null result."""
        return None if self._waiting is None else self._waiting.held_from()

    def advance(self, time: int, /) -> None:
        """Advance stream time without a record."""
        if self._waiting is not None and time > self._waiting.time.value:
            self._waiting.advance(time, self._forward)

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        waiting, forward = self._waiting, self._forward
        if waiting is not None and timestamp > waiting.time.value < self._task.watermark:
            waiting.advance(min(timestamp, self._task.watermark), forward)
        if value is None:
            self._drop("null value")
            return
        if key is None:
            if self._emits_null:
                forward(None, self._join(None, value, None), None, timestamp, headers)
            else:
                self._drop("null key")
            return
        found = self._other.between(key, timestamp - self._before_ms, timestamp + self._after_ms)
        if not found:
            if self._emits_null:
                self._unmatched(key, value, timestamp, headers)
            return
        for other_timestamp, other in found:
            if waiting is not None:
                waiting.settle(not self._is_left, key, other_timestamp)
            later = max(timestamp, other_timestamp)
            forward(key, self._join(key, value, other), None, later, headers)

    def _unmatched(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        assert self._waiting is not None
        if not self._waiting.hold(self._is_left, key, value, timestamp):
            self._forward(key, self._join(key, value, None), None, timestamp, headers)


def _waiting(spec: JoinSide, context: OperatorContext) -> Waiting | None:
    """What waits of a join, the same object for both sides of a task."""
    waits = spec.waits
    if waits is None:
        return None
    known = ("waiting", waits.store)
    if known not in context.shared:
        left, right = (spec.own, spec.other) if spec.is_left else (spec.other, spec.own)
        context.shared[known] = Waiting(
            context,
            waits.store,
            _called(spec),
            left=SideRows.of(context, left, spec.retention_ms),
            right=SideRows.of(context, right, spec.retention_ms),
            left_ms=waits.left_ms,
            right_ms=waits.right_ms,
            drops_late_matches=waits.late_match == "drop",
        )
    return cast("Waiting", context.shared[known])


def _from_side(spec: JoinSide) -> Join:
    """The joiner, called with the key, the value of the side itself, and that of the other."""
    joiner = spec.joiner
    if spec.with_key:
        return joiner if spec.is_left else lambda key, right, left: joiner(key, left, right)
    if spec.is_left:
        return lambda _, left, right: joiner(left, right)
    return lambda _, right, left: joiner(left, right)


def _called(spec: JoinSide) -> Join:
    joiner = spec.joiner
    if spec.with_key:
        return joiner
    return lambda _, left, right: joiner(left, right)
