"""Whether the inputs of a commit are still the topics that were read, and its outputs there.

The client goes over to a new topic of the same name without a word, and reads on at its old
position there. So each commit asks which topics there are, once all of its records were read, and
hears the answer before it becomes final. Records for a topic that is gone would wait long in the
client for it to come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from headrace.streams.errors import AbortableError
from headrace.streams.kafka.protocols import Clock, Log
from headrace.streams.plan.topic_errors import require_same
from headrace.streams.plan.topic_identity import same_topic
from headrace.streams.tasks.task import Task

WAIT_S = 1.0
"""A broker answers in a millisecond; one that does not must not hold commits up."""
PAUSE_S = 10.0
"""How long nobody is asked after no answer came."""

Answer = Callable[[float], Mapping[str, str] | None]
"""Called with how long to wait, in seconds; None where there is no answer."""


class AskIds(Protocol):
    """Asks for the ids of those topics that exist, and does not wait for the answer."""

    def __call__(self, topics: Sequence[str]) -> Answer:
        """Ask."""


class InputIdentity:
    """Check that inputs and outputs of a commit are still the same topics.

    Args:
        missing: called when a topic is not there, so that somebody looks into that.
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

    def ask(self, tasks: Iterable[Task]) -> Callable[[], None]:
        """Ask about the inputs of tasks; returns what waits for the answer and looks at it.

        What is returned raises a `TopicReplacedError` where an input is another topic, and an
        `AbortableError` where an output is not there.
        """
        known = _ids_of(tasks)
        if not known or self._clock.monotonic_s() < self._next_s:
            return _do_nothing
        answer = self._ask(self._names(known))
        return lambda: self._compare(known, answer(WAIT_S))

    def cause(self, tasks: Iterable[Task]) -> str:
        """Ask what the topics have to do with an error of a client, which does not say it.

        Args:
            tasks: whose inputs may be concerned.

        Returns:
            A part of a sentence; empty where nothing is wrong with them, or nobody answers.
        """
        known = _ids_of(tasks)
        if self._clock.monotonic_s() < self._next_s or not (names := self._names(known)):
            return ""
        found = self._ask(names)(WAIT_S)
        if found is None:
            self._next_s = self._clock.monotonic_s() + PAUSE_S
            return ""
        for name in names:
            how = "read" if name in known else "written"
            if name not in found:
                return f"topic {name}, which is {how}, is not there"
            if name in known and not same_topic(known[name], found[name]):
                return f"topic {name}, which is {how}, was deleted and created anew"
        return ""

    def _names(self, known: Mapping[str, str]) -> list[str]:
        return [*known, *(name for name in self._outputs if name not in known)]

    def _compare(self, known: Mapping[str, str], found: Mapping[str, str] | None) -> None:
        if found is None:
            self._next_s = self._clock.monotonic_s() + PAUSE_S
            self._log.warning(
                "topics_unknown",
                reason="the brokers do not say which topics exist",
                advice="nothing is lost: they are asked again",
            )
            return
        require_same(known, found)
        gone = [name for name in self._outputs if name not in found]
        if gone or not known.keys() <= found.keys():
            self._missing()
        if gone:
            raise AbortableError(f"topic {gone[0]}, which is written, is not there")


def _ids_of(tasks: Iterable[Task]) -> dict[str, str]:
    return {topic: topic_id for task in tasks for topic, topic_id in task.topic_ids.items()}


def _do_nothing() -> None:
    """There is nothing to compare."""
