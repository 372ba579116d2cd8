"""Where the tasks of external sinks begin: where the sink is, and not where the group is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.streams.kafka.protocols import CommittedOffset, Log, Offsets, TopicPartition
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.plan.progress import OffsetMetadata
from headrace.streams.tasks.sink_connections import SinkConnections, UnusableSinkError
from headrace.topology.external_sink import SinkBatching, SinkUnavailableError
from headrace.topology.graph.graph import Node


class Waiting(Protocol):
    """A task that is to begin."""

    id: TaskId
    plan: SubPlan
    inputs: list[TopicPartition]


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Position of an external sink in one partition.

    Args:
        source: what its positions are of.
        position: None where it has none.
        error: why it says nothing.
        batching: how long it wants rows to be collected.
        name: what its positions are kept under.
    """

    source: str
    position: int | None = None
    error: SinkUnavailableError | None = None
    batching: SinkBatching | None = None
    name: str = ""


def ask_sinks(
    connections: SinkConnections, tasks: Iterable[Waiting], topic_ids: Mapping[str, str]
) -> dict[TaskId, StartPosition]:
    """Ask the sinks of those tasks that have one; runs beside the worker."""
    by_plan: dict[int, list[Waiting]] = {}
    for task in tasks:
        if task.plan.outside is not None:
            by_plan.setdefault(task.plan.id, []).append(task)
    found: dict[TaskId, StartPosition] = {}
    for some in by_plan.values():
        found |= _ask_one(connections, some, topic_ids)
    return found


def _ask_one(
    connections: SinkConnections, tasks: Sequence[Waiting], topic_ids: Mapping[str, str]
) -> dict[TaskId, StartPosition]:
    node = tasks[0].plan.outside
    assert node is not None
    assert node.writes_outside is not None
    (topic,) = {place.topic for task in tasks for place in task.inputs}
    # A topic that is made anew has other records at the same offsets.
    source = f"{topic}@{topic_ids[topic]}" if topic in topic_ids else topic
    partitions = [task.id.partition for task in tasks]
    answer = connections.positions(node.name, node.writes_outside, source, partitions)
    if isinstance(answer, SinkUnavailableError):
        return {task.id: StartPosition(source, error=answer) for task in tasks}
    name, batching = connections.name_of(node.name), connections.batching(node.name)
    return {
        task.id: StartPosition(source, answer.get(task.id.partition), batching=batching, name=name)
        for task in tasks
    }


def begun_at(
    start: Offsets, beginning: StartPosition, node: Node, log: Log, *, told: bool
) -> Offsets:
    """Where a task begins, of which the group says `start`.

    The group's offset follows behind the sink's, and is past it by what holds no record, such as
    the marks of transactions. A sink that is before what was committed once has gone back, as one
    does that is restored from a backup: it is written again from there.

    Args:
        node: what writes to the sink.
        told: whether the group says it; else `start` is where the topic begins, or where it ends.

    Raises:
        UnusableSinkError: the sink has no position, and the group knows that it had one.
    """
    ((place, committed),) = start.items()
    written = OffsetMetadata.decode(committed.metadata).values.get(f"written.{node.name}", -1)
    position = beginning.position
    if position is None and written >= 0:
        raise UnusableSinkError(node.name, _gone(beginning, place, written))
    if position is None:
        return start
    if position >= written:
        # Records of a source that are gone are not to be passed over without a word.
        if told or not node.reads_directly:
            position = max(position, committed.offset)
    else:
        log.warning(
            "sink_went_back",
            sink=node.name,
            partition=str(place),
            position=position,
            committed=written,
            next="rows are written again from its position, as far as the topic still has them",
        )
    return {place: CommittedOffset(position, committed.metadata)}


def _gone(beginning: StartPosition, place: TopicPartition, written: int) -> str:
    """What to do where nobody can tell whether the rows are gone as well."""
    return (
        f"it has no position for {place}, and had {written}: its table was emptied, or is another "
        "one. Where the rows are there, or are not wanted, give the position back (in a database: "
        f"into headrace_positions, name '{beginning.name}', source '{beginning.source}', "
        f"partition {place.partition}, next {written}; so for each partition) or restore both from "
        "a backup; to have all rows written anew, empty the table and run headrace reset"
    )
