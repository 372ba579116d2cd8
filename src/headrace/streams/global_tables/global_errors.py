"""What becomes of records of a global topic that cannot be rows."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.streams.errors import RecordError
from headrace.streams.global_tables.global_rows import Row, row_of
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.records.failures import is_ours
from headrace.streams.records.handlers import Continue, Failure, HandlerFailedError, Handlers
from headrace.streams.records.letter_headers import user_error
from headrace.streams.seams.clients import Log, ReceivedMessage
from headrace.topology.compile.codegen import NullKeyPolicy
from headrace.topology.errors import NullKeyError, RegistryError, SerdeError

_HINT = (
    "no stream was read past it: correct the serde, or write another record under the key and "
    "delete this one, or set deserialization.exception.handler"
)


class RowErrors:
    """Makes rows, and asks the deserialization handler about records that cannot be one.

    Dead letters are not written: every process reads the topic, each time from its beginning where
    it has no local state, and none of that is in a transaction.
    """

    def __init__(self, handlers: Handlers, null_key_policy: NullKeyPolicy, log: Log) -> None:
        self._handlers = handlers
        self._null_key_policy = null_key_policy
        self._log = log
        self.dropped: dict[tuple[str, str], int] = {}
        """How many records were left out, by node and reason."""

    def rows(self, plan: GlobalPlan, records: Sequence[ReceivedMessage]) -> list[Row]:
        """Make rows of records, in their order.

        Raises:
            RecordError: a record cannot be one, and no handler lets it go.
        """
        rows = []
        for record in records:
            try:
                row = row_of(plan, record)
            except Exception as error:
                self._decide(plan, record, error)
                continue
            if row is None:
                self._keyless(plan, record)
            else:
                rows.append(row)
        return rows

    def _keyless(self, plan: GlobalPlan, record: ReceivedMessage) -> None:
        if self._null_key_policy != "drop":
            raise _refused(plan, record, NullKeyError(plan.table, plan.store.name))
        self._drop(plan.table, "null key")

    def _decide(self, plan: GlobalPlan, record: ReceivedMessage, error: Exception) -> None:
        if isinstance(error, RegistryError):
            raise _refused(plan, record, error) from error
        failure = Failure(
            error,
            stage="deserialization",
            node=plan.source,
            task_id="global",
            topic=record.topic(),
            partition=record.partition(),
            offset=record.offset(),
            timestamp=record.timestamp()[1],
            headers=tuple(record.headers() or ()),
            key=record.key(),
            value=record.value(),
        )
        try:
            answer = self._handlers.answer(failure)
        except HandlerFailedError as handler_error:
            raise _refused(plan, record, handler_error) from handler_error
        if not isinstance(answer, Continue):
            raise _refused(plan, record, error) from error
        count = self._drop(plan.source, "it cannot be decoded")
        if count & (count - 1):
            return
        self._log.warning(
            "record_skipped",
            topic=record.topic(),
            partition=record.partition(),
            offset=record.offset(),
            node=plan.source,
            stage="deserialization",
            error=type(user_error(error)).__name__,
            reason=str(error) if is_ours(error) else None,
            dead_letters_left_out=len(answer.dead_letters),
            count=count,
        )

    def _drop(self, node: str, reason: str) -> int:
        count = self.dropped[node, reason] = self.dropped.get((node, reason), 0) + 1
        # Powers of two: seen at once, and never a flood.
        if count & (count - 1) == 0:
            self._log.warning("records_dropped", node=node, reason=reason, count=count)
        return count


def _refused(plan: GlobalPlan, record: ReceivedMessage, error: Exception) -> RecordError:
    known = isinstance(error, (SerdeError, RegistryError, NullKeyError, HandlerFailedError))
    what = str(error) if known else f"a serde raised {type(error).__name__}"
    refused = RecordError(
        f"a record of a global table is no row: {what}",
        topic=str(record.topic()),
        partition=record.partition(),
        offset=record.offset(),
        timestamp=record.timestamp()[1],
        node=plan.source,
        store=plan.store.name,
        hint=_HINT,
    )
    if isinstance(error, HandlerFailedError):
        refused.functions = error.places
    return refused
