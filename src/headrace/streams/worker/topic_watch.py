"""Periodic check of the topics while the application runs.

A source topic can be deleted, or get more partitions than the state downstream was created for. The
worker must detect this before it processes more records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from headrace.streams.errors import (
    GlobalTableLostError,
    MisconfiguredTopicError,
    MissingTopicError,
    StreamsError,
)
from headrace.streams.kafka.acls import AccessError
from headrace.streams.kafka.clocks import Background
from headrace.streams.kafka.protocols import Clock, Log, TopicDescription
from headrace.streams.plan.identity import TopicReplacedError
from headrace.streams.plan.plan import SubPlan

_FATAL = (
    AccessError,
    MissingTopicError,
    TopicReplacedError,
    MisconfiguredTopicError,
    GlobalTableLostError,
)
"""Errors that stop the worker."""


@dataclass(slots=True, kw_only=True, eq=False)
class TopicWatch:
    """Periodic check of the topics while the application runs.

    Args:
        check: checks the topics, given the previous facts
            (`headrace.streams.plan.topics.recheck_topics`).
        topics: the known topics, updated here.
        partitions: the partition counts that the tasks use, updated here.
        on_grown: called after a topic has got more partitions, to inform the group; returns whether
            it has succeeded, and is called again if not.
    """

    check: Callable[[Mapping[str, TopicDescription]], Mapping[str, TopicDescription]]
    plans: Sequence[SubPlan]
    topics: MutableMapping[str, TopicDescription]
    partitions: MutableMapping[str, int]
    on_grown: Callable[[], bool]
    interval_s: float
    background: Background
    clock: Clock
    log: Log
    _must_notify: bool = field(default=False, init=False)
    _next_s: float = field(init=False)
    _result: Mapping[str, TopicDescription] | None = field(default=None, init=False)
    _failure: StreamsError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._next_s = self.clock.monotonic_s() + self.interval_s

    @property
    def outputs(self) -> Sequence[str]:
        """The names of output topics outside of the application that are constant."""
        return sorted({name for plan in self.plans for name in plan.sinks})

    def check_soon(self) -> None:
        """Check in the next turn, because the topics may have caused a change or an error."""
        self._next_s = self.clock.monotonic_s()

    def check_within(self, seconds: float) -> None:
        self._next_s = min(self._next_s, self.clock.monotonic_s() + seconds)

    def turn(self) -> None:
        """Start a check if it is due, and apply the last result; raise its error if it is final."""
        if self._failure is not None:
            raise self._failure
        if self._result is not None:
            topics, self._result = self._result, None
            self._apply(topics)
        if self._must_notify and self.on_grown():
            self._must_notify = False
        if self.clock.monotonic_s() >= self._next_s and self.background(self._run_check):
            self._next_s = self.clock.monotonic_s() + self.interval_s

    def _run_check(self) -> None:
        try:
            self._result = self.check(dict(self.topics))
        except _FATAL as error:
            self._failure = error
        except StreamsError as error:
            # The check is inconclusive; the next check may succeed.
            self.log.warning(
                "topics_unknown",
                reason=str(error),
                advice="nothing is lost. They are checked again",
            )

    def _apply(self, topics: Mapping[str, TopicDescription]) -> None:
        counts = {name: facts.partitions for name, facts in topics.items()}
        for plan in self.plans:
            before, now = (
                plan.subscribed_topic(self.partitions),
                plan.subscribed_topic({**self.partitions, **counts}),
            )
            if before != now:
                raise MisconfiguredTopicError(
                    f"topic {now} now has more partitions than {before}, by which the tasks of "
                    f"sub-topology {plan.id} were assigned. Stop all workers, then start them again"
                )
        for name, count in counts.items():
            if count != self.partitions.get(name, count):
                self.log.info("topic_grown", topic=name, partitions=count)
                self._must_notify = True
        self.topics.update(topics)
        self.partitions.update(counts)
