"""Foreign-key join of two tables: a left row has the key of a right row.

The joined rows are in different tasks, which communicate over two topics (KIP-213):

    left row changes ── Subscribe ──► subscriptions ── Receive ── SendRightRow ──┐
                                                          │                      ▼
    right row changes ───────────────────────────────── Notify ──────────► responses ── Resolve

`Receive` stores the subscriptions of each right row, `SendRightRow` sends the current right row to
a new subscriber, `Notify` sends a changed right row to all subscribers. A response has a hash of
the left row that subscribed. `Resolve` compares it with the current left row and drops responses to
former rows, because another response follows.

Results are eventually correct in any order of messages:

- Each left row with a foreign key subscribes and always gets a response, even if there is no right
  row: the last forwarded result may belong to a former left row, whose own responses are dropped.
- A left row that is deleted, or has no foreign key, is joined immediately without a subscription.
- Subscriptions and responses between two rows keep their order, because they use the same
  partitions. So a left row that returns to a former value may accept responses to that value: later
  responses follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from headrace.state.codec import prefix_end
from headrace.topology.context.context import Headers, OperatorContext, empty_row
from headrace.topology.context.operator_spec import Bind, OperatorSpec
from headrace.topology.errors import Arguments
from headrace.topology.operators.record_cache import Uncached
from headrace.topology.serdes import Serde
from headrace.topology.serdes.subscriptions import (
    ForeignKeySubscription,
    Instruction,
    Response,
    combined_key,
    digest,
    prefix_of,
    primary_key,
)

AnySerde = Serde[Any]
_OUTDATED_RESPONSE = "response to a former row; another response follows"


@dataclass(frozen=True, slots=True)
class _Spec(OperatorSpec):
    """Base of the specs; `topic` is the topic of subscriptions.

    Serdes that depend on a topic get the names that Kafka Streams uses, such as with suffix
    ``-pk``, because these bytes are parts of other bytes.
    """

    is_timed: ClassVar[bool] = False
    repartition_advice: ClassVar[str] = 'join(name="...")'

    topic: str
    key: AnySerde | None
    """Serde of the left table's keys."""
    foreign: AnySerde | None
    """Serde of the right table's keys."""

    def bound(self, bind: Bind) -> Self:
        return replace(
            self,
            key=bind(self.key, f"{self.topic}-pk", is_key=True),
            foreign=bind(self.foreign, f"{self.topic}-fk", is_key=True),
        )

    store_call: ClassVar[str] = repartition_advice


def _require_serde(serde: AnySerde | None) -> AnySerde:
    assert serde is not None, "the plan sets the serdes of a foreign-key join"
    return serde


@dataclass(frozen=True, slots=True)
class Subscribe(_Spec):
    """Spec of the operator that sends subscriptions for changes of the left table.

    Args:
        value: the serde of the left table's values.
        foreign_key: called as ``foreign_key(key, value)``.
    """

    value: AnySerde | None
    foreign_key: Callable[[Any, Any], Any]

    needs_old: ClassVar[bool] = True

    @property
    def serde_arguments(self) -> Arguments:
        """Names of the serdes; the arguments of the join itself are for its results."""
        return {"value": "this table's value", "key": "the other table's key"}

    def bound(self, bind: Bind) -> Self:
        # Without super(): a dataclass with slots is re-created, and super() uses the first class.
        spec = _Spec.bound(self, bind)
        return replace(spec, value=bind(self.value, f"{self.topic}-vh", is_key=False))

    def make(self, context: OperatorContext, /) -> _Subscribe:
        return _Subscribe(self, context)


class _Subscribe(Uncached):
    __slots__ = (
        "_encode_foreign", "_encode_key", "_encode_value", "_failed", "_foreign_key",
        "_partition", "_shared", "_topic",
    )  # fmt: skip

    def __init__(self, spec: Subscribe, context: OperatorContext) -> None:
        super().__init__(context.forward)
        self._failed = context.failed
        self._foreign_key = spec.foreign_key
        self._encode_key = _require_serde(spec.key).serialize
        self._encode_foreign = _require_serde(spec.foreign).serialize
        self._encode_value = _require_serde(spec.value).serialize
        self._partition: int | None = getattr(context.task, "partition", None)
        self._shared = context.shared
        self._topic = spec.topic

    def process(self, key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        try:
            foreign_key = None if value is None else self._foreign_key(key, value)
            row = None if foreign_key is None else self._encode_foreign(foreign_key)
            row_hash = None if value is None else digest(self._encode_value(value))
        except Exception as error:
            self._failed(error, key, value, timestamp, headers)
            # The row is treated as deleted: its former subscription and its result are removed.
            foreign_key = row = row_hash = value = None
        previous, previous_row = (None, None) if old is None else self._previous_key(key, old)
        if previous_row is not None and previous_row != row:
            self._send(previous, key, row_hash, Instruction.UNSUBSCRIBE, timestamp, headers)
        if row is not None:
            self._send(foreign_key, key, row_hash, Instruction.SUBSCRIBE, timestamp, headers)
            return
        resolve: _Resolve = self._shared[Resolve, self._topic]
        resolve.join(key, value, None, timestamp, headers)

    def _previous_key(self, key: Any, old: Any) -> tuple[Any, bytes | None]:
        try:
            foreign_key = self._foreign_key(key, old)
            return foreign_key, None if foreign_key is None else self._encode_foreign(foreign_key)
        except Exception as error:
            # It also failed when the row was added, so there is no subscription.
            empty_row(error, -1)
            return None, None

    def _send(
        self,
        foreign_key: Any,
        key: Any,
        row_hash: bytes | None,
        instruction: Instruction,
        timestamp: int,
        headers: Headers,
    ) -> None:
        subscription = ForeignKeySubscription(
            row_hash, instruction, self._encode_key(key), self._partition
        )
        self._forward(foreign_key, subscription, None, timestamp, headers)


@dataclass(frozen=True, slots=True)
class Receive(_Spec):
    """Spec of the operator that stores subscriptions."""

    store: str

    def make(self, context: OperatorContext, /) -> _Receive:
        return _Receive(self, context)


class _Receive(Uncached):
    __slots__ = ("_dropped", "_encode_foreign", "_put")

    def __init__(self, spec: Receive, context: OperatorContext) -> None:
        super().__init__(context.forward)
        self._encode_foreign = _require_serde(spec.foreign).serialize
        self._put = context.buffers[spec.store].put
        self._dropped = context.dropped

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        if value is None:
            self._dropped("no subscription")
            return
        if key is None:
            # Kafka Streams subscribes so for a left row without a foreign key; nothing is stored.
            if value.instruction is not Instruction.SUBSCRIBE:
                self._dropped("null key")
                return
        else:
            row_key = combined_key(self._encode_foreign(key), value.key)
            self._put(row_key, None if value.instruction.unsubscribes else value, timestamp)
        self._forward(key, value, None, timestamp, headers)


@dataclass(frozen=True, slots=True)
class SendRightRow(_Spec):
    """Spec of the operator that sends the current right row to a new subscriber.

    Args:
        value: the serde of the right table's values.
        responses: the topic of the responses.
        table: the right table's node.
    """

    value: AnySerde | None
    responses: str
    table: str

    def bound(self, bind: Bind) -> Self:
        spec = _Spec.bound(self, bind)
        return replace(spec, value=bind(self.value, self.responses, is_key=False))

    def make(self, context: OperatorContext, /) -> _SendRightRow:
        return _SendRightRow(self, context)


class _SendRightRow(Uncached):
    __slots__ = ("_decode_key", "_encode_value", "_row_error", "_rows")

    def __init__(self, spec: SendRightRow, context: OperatorContext) -> None:
        super().__init__(context.forward)
        self._decode_key = _require_serde(spec.key).deserialize
        self._encode_value = _require_serde(spec.value).serialize
        self._rows = context.view(spec.table)
        self._row_error = context.row_error

    def process(
        self, key: Any, value: ForeignKeySubscription, _: Any, timestamp: int, headers: Headers, /
    ) -> None:
        if value.instruction is Instruction.UNSUBSCRIBE:
            return
        row, since = None, -1
        if key is not None and not value.instruction.unsubscribes:
            row, since = self._rows.get(key)
        if row is None:
            if value.instruction is Instruction.SUBSCRIBE_RESPOND_IF_PRESENT:
                return
            data = None
        else:
            try:
                data = self._encode_value(row)
                timestamp = max(timestamp, since)
            except Exception as error:
                data, _ = self._row_error(error, since)
        response = Response(value.hash, data, value.partition)
        self._forward(self._decode_key(value.key), response, None, timestamp, headers)


@dataclass(frozen=True, slots=True)
class Notify(_Spec):
    """Spec of the operator that sends a changed right row to all subscribers.

    Args:
        value: the serde of the right table's values.
        responses: the topic of the responses.
        store: the store of the subscriptions.
    """

    value: AnySerde | None
    responses: str
    store: str

    def bound(self, bind: Bind) -> Self:
        spec = _Spec.bound(self, bind)
        return replace(spec, value=bind(self.value, self.responses, is_key=False))

    def make(self, context: OperatorContext, /) -> _Notify:
        return _Notify(self, context)


class _Notify(Uncached):
    __slots__ = ("_decode_key", "_encode_foreign", "_encode_value", "_failed", "_scan")

    def __init__(self, spec: Notify, context: OperatorContext) -> None:
        super().__init__(context.forward)
        self._decode_key = _require_serde(spec.key).deserialize
        self._encode_foreign = _require_serde(spec.foreign).serialize
        self._encode_value = _require_serde(spec.value).serialize
        self._failed = context.failed
        self._scan = context.buffers[spec.store].scan

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        try:
            data = None if value is None else self._encode_value(value)
        except Exception as error:
            self._failed(error, key, value, timestamp, headers)
            # The row is treated as deleted for all rows that are joined with it.
            data = None
        prefix = prefix_of(self._encode_foreign(key))
        for row_key, subscription, since in self._scan(prefix, prefix_end(prefix)):
            response = Response(subscription.hash, data, subscription.partition)
            subscriber = self._decode_key(primary_key(row_key))
            self._forward(subscriber, response, None, max(timestamp, since), headers)


@dataclass(frozen=True, slots=True)
class Resolve(_Spec):
    """Spec of the operator that joins a left row with responses.

    Args:
        value: the serde of the left table's values.
        other: the serde of the right table's values.
        responses: the topic of the responses.
        table: the left table's node.
        joiner: called as ``joiner(key, left, right)``.
        left: whether a left row without a right row is joined, too, with None.
    """

    value: AnySerde | None
    other: AnySerde | None
    responses: str
    table: str
    joiner: Callable[[Any, Any, Any], Any]
    left: bool

    def bound(self, bind: Bind) -> Self:
        spec = _Spec.bound(self, bind)
        value = bind(self.value, f"{self.topic}-vh", is_key=False)
        return replace(spec, value=value, other=bind(self.other, self.responses, is_key=False))

    @property
    def partitioned_like(self) -> str:
        return self.table

    def make(self, context: OperatorContext, /) -> _Resolve:
        return _Resolve(self, context)


class _Resolve(Uncached):
    __slots__ = (
        "_decode_other",
        "_dropped",
        "_encode_value",
        "_failed",
        "_joiner",
        "_left",
        "_row_error",
        "_rows",
    )  # fmt: skip

    def __init__(self, spec: Resolve, context: OperatorContext) -> None:
        super().__init__(context.forward)
        self._encode_value = _require_serde(spec.value).serialize
        self._decode_other = _require_serde(spec.other).deserialize
        self._dropped = context.dropped
        self._failed = context.failed
        self._joiner = spec.joiner
        self._left = spec.left
        self._rows = context.view(spec.table)
        self._row_error = context.row_error
        context.shared[Resolve, spec.topic] = self

    def process(
        self, key: Any, value: Response, _: Any, timestamp: int, headers: Headers, /
    ) -> None:
        row, since = self._rows.get(key)
        try:
            row_hash = None if row is None else digest(self._encode_value(row))
        except Exception as error:
            row, since = self._row_error(error, since)
            row_hash = None
        if value.hash == row_hash:
            other = None if value.value is None else self._decode_other(value.value)
            self.join(key, row, other, timestamp, headers)
        else:
            # Many drops indicate a serde that encodes the same row to different bytes.
            self._dropped(_OUTDATED_RESPONSE)

    def join(self, key: Any, row: Any, other: Any, timestamp: int, headers: Headers) -> None:
        """Forward the result of two rows; None for a missing row."""
        joined = row is not None and (self._left or other is not None)
        try:
            result = self._joiner(key, row, other) if joined else None
        except Exception as error:
            self._failed(error, key, (row, other), timestamp, headers)
            result = None
        self._forward(key, result, None, timestamp, headers)
