"""Numbers in the offset metadata of a task: of its operators, and of topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.state.codec import decode_timestamped
from headrace.state.store import CommittedStore
from headrace.streams.kafka.protocols import Log, ReceivedMessage, TopicPartition
from headrace.streams.plan.flow import Writers
from headrace.streams.plan.identity import (
    changelog_numbers,
    committed_id,
    id_values,
    numbers_that_fit,
    without_ids,
)
from headrace.streams.plan.plan import TaskId
from headrace.streams.plan.progress import (
    COMMIT_ID,
    HELD,
    INPUTS,
    SHIFT,
    OffsetMetadata,
    inputs_number,
    left_out,
    left_out_values,
    without_left_out,
)
from headrace.topology.context.context import Operator
from headrace.topology.context.environment import Headers, Send
from headrace.topology.context.number import Number
from headrace.topology.context.task_context import TaskContext
from headrace.topology.errors import TopologyError

# The committed rows of a store, decoded.


def committed_rows(
    store: CommittedStore,
    decode: Callable[[bytes], Any],
    start: bytes | None = None,
    end: bytes | None = None,
) -> Iterable[tuple[bytes, Any, int]]:
    """Yield ``(key bytes, value, timestamp)`` of committed rows in the order of the keys."""
    for key, row in store.scan(start, end):
        timestamp, data = decode_timestamped(row)
        yield key, decode(data), timestamp


# Records of a task that are marked to be skipped.
#
# Hot path: `of` is called with every batch, and returns immediately if no record is marked.


class MarkedRecords:
    """Records of a task that are marked to be skipped, by the command `headrace skip`."""

    def __init__(
        self, progress: Mapping[TopicPartition, OffsetMetadata], task_id: str, log: Log | None
    ) -> None:
        marked = {tp: frozenset(left_out(p.values)) for tp, p in progress.items()}
        self._offsets = {tp: offsets for tp, offsets in marked.items() if offsets}
        self._task_id = task_id
        self._log = log

    def of(
        self, tp: TopicPartition, records: Sequence[ReceivedMessage]
    ) -> Sequence[ReceivedMessage]:
        """Return a batch without the skipped records."""
        if not self._offsets:
            return records
        offsets = self._offsets.get(tp, frozenset())
        remaining = [record for record in records if record.offset() not in offsets]
        if len(remaining) == len(records):
            return records
        for record in records:
            if record.offset() in offsets and self._log is not None:
                self._log.warning(
                    "marked_record_skipped",
                    task=self._task_id,
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=record.offset(),
                    reason="headrace skip marked it",
                )
        return remaining

    def values(self, tp: TopicPartition, offset: int) -> dict[str, int]:
        if not self._offsets:
            return {}
        return left_out_values(o for o in self._offsets.get(tp, ()) if o >= offset)


# Lower bound of the timestamps of a task's results, for the readers of its repartition topics.
#
# Most operators give a result the time of its record. Two kinds differ: operators that delay
# results, such as windows that emit on close, and processors, which choose timestamps. Delayed
# results are known. For a processor, the distance of its results before their records is measured
# between commits; without results, the last measured distance is used.


@dataclass(slots=True)
class _Shift:
    """Distance of results before the time of their records; `seen` since the last commit."""

    number: Number
    seen: int | None = None


class TimesWritten:
    """Lower bound of the timestamps of a task's results, for tasks downstream.

    Args:
        written: the repartition topics whose readers use the event time of this task.
    """

    def __init__(self, written: Mapping[str, Writers], context: TaskContext) -> None:
        self._written = written
        self._context = context
        self._held: Sequence[tuple[Number, Sequence[Operator]]] = ()
        self._shifts: dict[str, _Shift] = {}

    def begin(
        self, sub: int, operators: Mapping[str, Operator], number: Callable[[str], Number]
    ) -> None:
        held: list[tuple[Number, Sequence[Operator]]] = []
        for topic, writers in self._written.items():
            nodes = writers.holders[sub]
            holding = [op for name, op in operators.items() if name in nodes and op.delays_results]
            if holding:
                held.append((number(f"{HELD}.{writers.name}"), holding))
            if nodes & writers.processors:
                self._shifts[topic] = _Shift(number(f"{SHIFT}.{writers.name}"))
        self._held = held

    def following(self, send: Send) -> Send:
        """Wrap a send function to track how early results are, if processors choose their times."""
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
        context = self._context
        if context.is_punctuating:
            time = context.stream_time
        elif context.record is not None:
            time = context.record.timestamp()[1]
        else:
            return  # a cached update: its row has the time of its record
        shift.seen = max(time - timestamp, shift.seen or 0)

    def note(self) -> None:
        """Set the numbers for a commit."""
        for number, operators in self._held:
            times = [time for op in operators if (time := op.earliest_waiting()) is not None]
            number.value = min(times, default=-1)
        for shift in self._shifts.values():
            if shift.seen is not None:
                shift.number.value, shift.seen = shift.seen or -1, None


class CommittedNumbers:
    """Numbers in the offset metadata of a task: of its operators and of its topics."""

    def __init__(
        self, progress: Mapping[TopicPartition, OffsetMetadata], topic_ids: Mapping[str, str]
    ) -> None:
        # Keep numbers that another writer of this group has committed.
        self._extra_values: dict[str, int] = {}
        for p in progress.values():
            for name, value in without_left_out(without_ids(p.values)).items():
                if name not in (COMMIT_ID, INPUTS):
                    self._extra_values[name] = max(value, self._extra_values.get(name, value))
        ids = {tp.topic: committed_id(tp.topic, p.values) for tp, p in progress.items()}
        ids |= topic_ids
        self._id_values = {name: id_values(name, i) if i else {} for name, i in ids.items()}
        self._numbers: dict[str, Number] = {}
        self._changelog_numbers: dict[str, int] = {}

    def number(self, name: str) -> Number:
        known = self._numbers.get(name)
        if known is None:
            known = self._numbers[name] = Number(self._extra_values.pop(name, -1))
        return known

    def discard(self, *prefixes: str) -> None:
        """Stop committing numbers with these prefixes, unless an operator uses them."""
        remaining = self._extra_values.items()
        self._extra_values = {n: value for n, value in remaining if not n.startswith(prefixes)}

    def require_room(
        self,
        task_id: TaskId,
        changelog_ids: Mapping[str, str],
        log: Log | None,
        *,
        of_inputs: Iterable[str] = (),
    ) -> None:
        """Raise before the first record if the numbers do not fit into the offset metadata.

        IDs of changelogs are committed only if they fit with all other numbers.
        """
        reserved = dict.fromkeys((*self._numbers, *of_inputs, INPUTS, COMMIT_ID), 0)
        values = {**self._extra_values, **reserved, **id_values("", "")}
        try:
            OffsetMetadata(0, values).encode()
        except ValueError as error:
            raise TopologyError(
                f"sub-topology {task_id.sub_topology} has {len(self._numbers)} times and other "
                f"numbers of its windows, joins and processors to commit: {error}, or give their "
                "steps and stores shorter names"
            ) from error
        fitting = numbers_that_fit(values, changelog_numbers(changelog_ids))
        left_out = [
            topic
            for topic, topic_id in changelog_ids.items()
            if not changelog_numbers({topic: topic_id}).keys() <= fitting.keys()
        ]
        # Log once per sub-topology: its other tasks have the same numbers.
        if left_out and log is not None and task_id.partition == 0:
            log.warning("changelog_ids_omitted", task=str(task_id), changelogs=sorted(left_out))
        self._changelog_numbers = fitting

    def values(self, inputs: Iterable[str], commit_id: int) -> dict[str, int]:
        numbers = {name: n.value for name, n in self._numbers.items() if n.value != -1}
        reserved = {INPUTS: inputs_number(inputs), COMMIT_ID: commit_id, **self._changelog_numbers}
        return {**self._extra_values, **numbers, **reserved}

    def progress(
        self, topic: str, partition_time: int, values: Mapping[str, int]
    ) -> OffsetMetadata:
        return OffsetMetadata(partition_time, {**values, **self._id_values.get(topic, {})})
