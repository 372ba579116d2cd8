"""Check that the inputs of a commit are still the same topics, and that its outputs exist.

The client silently switches to a new topic of the same name, and continues at its old position
there. So each commit requests the IDs of its topics after all of its records were read, and
evaluates the answer before the transaction is committed. Records for a deleted topic would wait in
the client for a long time until the topic exists again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from headrace.streams.errors import AbortableError
from headrace.streams.kafka.protocols import Clock, Log
from headrace.streams.plan.identity import require_same, same_topic
from headrace.streams.tasks.task import Task

WAIT_S = 1.0
"""Maximum wait for an answer; brokers usually answer within a millisecond."""
PAUSE_S = 10.0
"""Seconds without further requests after a missing answer."""

Answer = Callable[[float], Mapping[str, str] | None]
"""Waits for the answer for a number of seconds; returns None without an answer."""


class AskIds(Protocol):
    """Non-blocking request for the IDs of existing topics."""

    def __call__(self, topics: Sequence[str]) -> Answer:
        """Request the IDs of topics; return a function that waits for the answer."""


class InputIdentity:
    """Check that inputs and outputs of a commit are still the same topics.

    Args:
        missing: called if a topic does not exist, to trigger a check of the topics.
    """

    def __init__(
        self,
        ask: AskIds,
        *,
        outputs: Sequence[str],
        missing: Callable[[], None],
        clock: Clock,
        log: Log,
    ) -> None:
        self._ask = ask
        self._outputs = outputs
        self._missing = missing
        self._clock = clock
        self._log = log
        self._next_s = clock.monotonic_s()

    def begin_check(self, tasks: Iterable[Task]) -> Callable[[], None]:
        """Request the IDs of tasks' topics; return a function that awaits and checks the answer.

        It raises `TopicReplacedError` for a different input and `AbortableError` for a missing
        output.
        """
        known = _ids_of(tasks)
        if not known or self._clock.monotonic_s() < self._next_s:
            return lambda: None
        answer = self._ask(self._names(known))
        return lambda: self._compare(known, answer(WAIT_S))

    def cause(self, tasks: Iterable[Task]) -> str:
        """Return a clause for an error if topics were deleted or re-created, else an empty text."""
        known = _ids_of(tasks)
        if self._clock.monotonic_s() < self._next_s or not (names := self._names(known)):
            return ""
        current = self._ask(names)(WAIT_S)
        if current is None:
            self._next_s = self._clock.monotonic_s() + PAUSE_S
            return ""
        for name in names:
            how = "read" if name in known else "written"
            if name not in current:
                return f"topic {name}, which is {how}, does not exist"
            if name in known and not same_topic(known[name], current[name]):
                return f"topic {name}, which is {how}, was deleted and re-created"
        return ""

    def _names(self, known: Mapping[str, str]) -> list[str]:
        return [*known, *(name for name in self._outputs if name not in known)]

    def _compare(self, known: Mapping[str, str], found: Mapping[str, str] | None) -> None:
        if found is None:
            self._next_s = self._clock.monotonic_s() + PAUSE_S
            self._log.warning(
                "topics_unknown",
                reason="the brokers do not return the topics",
                advice="nothing is lost: the request is repeated",
            )
            return
        require_same(known, found)
        gone = [name for name in self._outputs if name not in found]
        if gone or not known.keys() <= found.keys():
            self._missing()
        if gone:
            raise AbortableError(f"topic {gone[0]}, which is written, does not exist")


def _ids_of(tasks: Iterable[Task]) -> dict[str, str]:
    return {topic: topic_id for task in tasks for topic, topic_id in task.topic_ids.items()}
