"""Start positions of tasks with external sinks: the position of the sink, not of the group."""

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
    """A task that is about to start."""

    id: TaskId
    plan: SubPlan
    inputs: list[TopicPartition]


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Position of an external sink in a partition.

    Args:
        source: the name and the ID of the topic that positions refer to.
        position: None if the sink has no position.
        error: the error if the sink does not answer.
        batching: the batching that the sink requests.
        name: the name under which the sink stores its positions.
    """

    source: str
    position: int | None = None
    error: SinkUnavailableError | None = None
    batching: SinkBatching | None = None
    name: str = ""


def ask_sinks(
    connections: SinkConnections, tasks: Iterable[Waiting], topic_ids: Mapping[str, str]
) -> dict[TaskId, StartPosition]:
    """Request the start positions of tasks with an external sink; runs in the background."""
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
    (topic,) = {tp.topic for task in tasks for tp in task.inputs}
    # A re-created topic has different records at the same offsets.
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
    """Return the offset at which a task with an external sink starts.

    The group's offset is committed after the sink's position, and may also be past control records.
    A sink whose position is before an offset that was committed earlier was reset, for example
    restored from a backup: its rows are written again from its position. `told` is whether `start`
    is a committed offset, not the begin or the end of the topic.
    """
    ((tp, committed),) = start.items()
    written = OffsetMetadata.decode(committed.metadata).values.get(f"written.{node.name}", -1)
    position = beginning.position
    if position is None and written >= 0:
        raise UnusableSinkError(node.name, _gone(beginning, tp, written))
    if position is None:
        return start
    if position >= written:
        # Do not silently skip records of a source that were deleted.
        if told or not node.reads_directly:
            position = max(position, committed.offset)
    else:
        log.warning(
            "sink_went_back",
            sink=node.name,
            partition=str(tp),
            position=position,
            committed=written,
            next="rows are written again from its position, as far as the topic still has them",
        )
    return {tp: CommittedOffset(position, committed.metadata)}


def _gone(beginning: StartPosition, tp: TopicPartition, written: int) -> str:
    return (
        f"it has no position for {tp}, and had {written}: its table was emptied, or is another "
        "one. Where the rows are there, or are not wanted, give the position back (in a database: "
        f"into headrace_positions, name '{beginning.name}', source '{beginning.source}', "
        f"partition {tp.partition}, next {written}; so for each partition) or restore both from "
        "a backup; to have all rows written anew, empty the table and run headrace reset"
    )
