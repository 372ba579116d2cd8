"""Origin of a store's changes: the topic, and the conversion of records to changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.state.codec import decode_timestamped
from headrace.state.layout import TIMES_BYTES
from headrace.streams.kafka.protocols import ReceivedMessage
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SourceRows, SubPlan
from headrace.streams.queries.descriptors import Kind, StoreDescriptor
from headrace.streams.queries.errors import NoChangelogError
from headrace.streams.tasks.global_state import row_of

Raw = tuple[bytes, bytes | None, int]
"""The key of a row, its value or None if the row was deleted, and its timestamp."""

_TIMES_BYTES: Mapping[Kind, int] = {
    "key-value": TIMES_BYTES["plain"],
    "versioned": TIMES_BYTES["versioned"],
    "window": TIMES_BYTES["window"],
    "session": TIMES_BYTES["session"],
}
"""Number of bytes at the end of a row's key that do not belong to the key itself."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Topic of a store's changes: the changelog, or the source topic that replaces it.

    `read` converts a record to a change, or to None, and raises the errors of serdes.
    """

    store: StoreDescriptor
    topic: str
    read: Callable[[ReceivedMessage], Raw | None]

    def bare_key(self, row_key: bytes) -> bytes:
        """Strip the window, version or session."""
        times = _TIMES_BYTES[self.store.kind]
        return row_key[: len(row_key) - times]


def origin_of(
    store: StoreDescriptor, plans: Sequence[SubPlan], global_plans: Sequence[GlobalPlan]
) -> Origin:
    for plan in plans:
        if plan.id != store.sub_topology:
            continue
        if store.name in plan.changelogs:
            return Origin(store, plan.changelogs[store.name], _unchanged)
        if store.name in plan.source_rows:
            rows = plan.source_rows[store.name]
            return Origin(store, rows.topic, partial(_of_source, rows))
    for table in global_plans:
        if store.is_global and table.store.name == store.name:
            return Origin(store, table.topic, partial(_of_table, table))
    raise NoChangelogError(
        f"store {store.name!r} has no changelog, so its changes cannot be followed. Create it "
        "without logged=False, or query its rows"
    )


def _unchanged(record: ReceivedMessage) -> Raw | None:
    key = record.key()
    return None if key is None else (key, record.value(), record.timestamp()[1])


def _of_source(rows: SourceRows, record: ReceivedMessage) -> Raw | None:
    return next(iter(rows.changes([record])), None)


def _of_table(table: GlobalPlan, record: ReceivedMessage) -> Raw | None:
    row = row_of(table, record)
    if row is None:
        return None
    key, stored = row
    if stored is None:
        return key, None, record.timestamp()[1]
    timestamp, value = decode_timestamped(stored)
    return key, value, timestamp
