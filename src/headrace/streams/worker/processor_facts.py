"""What the processors of a task are told of their application, live and in the test driver."""

from __future__ import annotations

from collections.abc import Callable

from headrace.streams.config.config import StreamsConfig, table
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.seams.clients import Clock
from headrace.topology.context.calls import Caller
from headrace.topology.context.task_facts import TaskFacts

MakeFacts = Callable[[TaskId], TaskFacts]


def facts_maker(
    config: StreamsConfig,
    clock: Clock,
    request_commit: Callable[[], None],
    count: Callable[[str, str, float], None],
    calls: Caller,
) -> MakeFacts:
    """Return what tells the processors of each task of a worker.

    Args:
        config: the settings; those of the clients, which may be secret, are not passed on.
        count: adds to a number of a node.
        calls: makes the calls of steps to the outside.
    """
    settings = {own.name: getattr(config, own.name.replace(".", "_")) for own in table()}

    def make(task_id: TaskId) -> TaskFacts:
        return TaskFacts(
            application_id=config.application_id,
            task_id=str(task_id),
            partition=task_id.partition,
            settings=settings,
            now_ms=clock.now_ms,
            request_commit=request_commit,
            count=count,
            calls=calls,
        )

    return make
