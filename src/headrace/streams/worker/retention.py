"""Extension of changelog retention, so that brokers do not delete open windows of old input.

A window's changelog is deleted by age: the record's own time compared with the wall clock. An
application that processes last year's input writes windows that are a year old. A broker would
delete them within minutes, although they are open by stream time. So the retention of the changelog
is disabled before the first such row is written. It is restored when the stream time of all tasks
is close enough to the present.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.streams.errors import StreamsError
from headrace.streams.kafka.clocks import Background
from headrace.streams.kafka.protocols import (
    AdminClient,
    Clock,
    CommittedOffset,
    Log,
    TopicPartition,
)
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.progress import OffsetMetadata
from headrace.streams.tasks.task import Task

# Repeated commits of unchanged offsets before they expire.
#
# The offset of an input that the group does not subscribe to expires `offsets.retention.minutes`
# after its commit, even while the application runs. The description of the deployed topology
# expires, too. Both are committed again after a quarter of that time.


_SETTING = "offsets.retention.minutes"
_AT_MOST_S = 12 * 60 * 60.0
_UNKNOWN_S = 10 * 60.0
"""Often enough for all but the shortest retention, and rare compared with other commits."""
_SHORT_MIN = 24 * 60


def recommit_interval_s(cluster: AdminClient, log: Log) -> float:
    """Return the interval for repeated commits of unchanged offsets, in seconds."""
    try:
        minutes = min(map(int, cluster.broker_configs(_SETTING)))
    except (StreamsError, ValueError) as error:
        log.warning(
            "offsets_retention_unknown", reason=str(error), committed_again_every_s=_UNKNOWN_S
        )
        return _UNKNOWN_S
    every_s = min(_AT_MOST_S, minutes * 60 / 4)
    if minutes < _SHORT_MIN:
        log.warning(
            "offsets_retention_short",
            minutes=minutes,
            committed_again_every_s=every_s,
            reason=f"an application that is stopped for longer loses its offsets and cannot "
            f"use its state. Raise {_SETTING} of the brokers",
        )
    return every_s


FOR_EVER = "-1"

_OFFSETS_TIMEOUT_S = 1.0

_SUSPENDED = (
    "nothing is lost. Old input creates windows older than the retention of the topic, which now "
    "keeps all records until the input is near the present. Act only if retention_restored never "
    "follows: then input may have wrong timestamps"
)
_NOT_SUSPENDED = (
    "old windows may be deleted from the topic while they are open, and be missing after a "
    "restore. Grant AlterConfigs on the topic, or set its retention.ms to -1"
)
_NOT_RESTORED = "nothing is lost. It is tried again. Act on the reason if it continues"

Committed = Callable[
    [Sequence[TopicPartition], float], "Mapping[TopicPartition, CommittedOffset | None] | None"
]
"""Returns committed offsets, or None while they are undecided; takes the maximum wait in seconds.
"""


@dataclass(frozen=True, slots=True)
class WindowTopic:
    """A changelog that is deleted by age.

    Args:
        sub_topology: the sub-topology whose tasks write it.
        retention_ms: the retention of its records.
        store_retention_ms: how long the store keeps a row, in stream time.
    """

    topic: str
    sub_topology: int
    retention_ms: int
    store_retention_ms: int

    @property
    def slack_ms(self) -> int:
        """Maximum delay of stream time; the same amount is left for differences between clocks."""
        return (self.retention_ms - self.store_retention_ms) // 2


def window_topics(plans: Sequence[SubPlan]) -> Mapping[str, WindowTopic]:
    topics = {}
    for plan in plans:
        configs = {changelog.name: changelog.config for changelog in plan.topics.changelogs}
        for store in plan.program.sub_topology.stores:
            topic, store_retention_ms = plan.changelogs.get(store.name), store.spec.retention_ms
            if topic is None or store_retention_ms is None or topic not in configs:
                continue
            config = configs[topic]
            retention = config.get("retention.ms", FOR_EVER)
            if "delete" in config.get("cleanup.policy", "") and retention != FOR_EVER:
                topics[topic] = WindowTopic(topic, plan.id, int(retention), store_retention_ms)
    return topics


@dataclass(slots=True, eq=False)
class RetentionGuard:
    """Extension of topic retention while restarts could need deleted records.

    Args:
        suspended: changelogs whose retention is disabled, for example by an earlier run.
        inputs: returns the input partitions of all tasks of a sub-topology.
        interval_s: the minimum time between two checks whether a retention can be restored.
    """

    admin: AdminClient
    topics: Mapping[str, WindowTopic]
    suspended: set[str]
    inputs: Callable[[int], Sequence[TopicPartition]]
    committed: Committed
    interval_s: float
    background: Background
    clock: Clock
    log: Log
    _next_s: float = field(default=0.0, init=False)
    _restoring: set[str] = field(default_factory=set, init=False)
    """Changelogs whose retention is being restored, unless old rows are written in the meantime."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Lock of `suspended` and `_restoring`, which background jobs change, too."""

    def protect(self, task: Task) -> None:
        """Disable the retention of changelogs to which a task is about to write old windows."""
        if not self.topics:
            return
        for store, oldest_ms in task.oldest_times().items():
            tp = task.spec.changelogs.get(store)
            if tp is None or tp.topic not in self.topics:
                continue
            topic = self.topics[tp.topic]
            is_old = oldest_ms < self.clock.now_ms() - topic.store_retention_ms - topic.slack_ms
            if is_old and not self._mark_suspended(tp.topic) and self._disable(tp.topic):
                self.log.warning(
                    "retention_suspended",
                    topic=tp.topic,
                    oldest_window_ms=oldest_ms,
                    advice=_SUSPENDED,
                )

    def _mark_suspended(self, topic: str) -> bool:
        """Return whether a changelog's retention is disabled; if not, mark it as disabled."""
        with self._lock:
            if topic in self.suspended and topic not in self._restoring:
                return True
            self.suspended.add(topic)
            self._restoring.discard(topic)
            return False

    def _disable(self, topic: str) -> bool:
        try:
            self.admin.alter_config(topic, {"retention.ms": FOR_EVER})
        except StreamsError as error:
            # The change may be forbidden. Then the broker deletes rows older than the retention.
            self.log.error(
                "retention_not_suspended", topic=topic, reason=str(error), advice=_NOT_SUSPENDED
            )
            return False
        return True

    def restore_retention(self, owned: Sequence[int]) -> None:
        """Restore retentions of `owned` sub-topologies, whose first task belongs to this worker."""
        now_s = self.clock.monotonic_s()
        if not self.suspended or now_s < self._next_s:
            return
        self._next_s = now_s + self.interval_s
        for name in sorted(self.suspended - self._restoring):
            topic = self.topics[name]
            if topic.sub_topology in owned and self._is_near_present(topic):
                self._restoring.add(name)
                if not self.background(lambda topic=topic: self._restore(topic)):  # type: ignore[misc]
                    self._restoring.discard(name)

    def _restore(self, topic: WindowTopic) -> None:
        try:
            self.admin.alter_config(topic.topic, {"retention.ms": str(topic.retention_ms)})
        except StreamsError as error:
            self.log.warning(
                "retention_not_restored",
                topic=topic.topic,
                reason=str(error),
                advice=_NOT_RESTORED,
            )
            with self._lock:
                self._restoring.discard(topic.topic)
            return
        with self._lock:
            is_restored = topic.topic in self._restoring
            self._restoring.discard(topic.topic)
            if is_restored:
                self.suspended.discard(topic.topic)
        if is_restored:
            self.log.info("retention_restored", topic=topic.topic)
        else:
            # Old rows were written meanwhile, and the restored retention may have won the race.
            self._disable(topic.topic)

    def _is_near_present(self, topic: WindowTopic) -> bool:
        needed_ms = self.clock.now_ms() - topic.slack_ms
        offsets = self.committed(self.inputs(topic.sub_topology), _OFFSETS_TIMEOUT_S)
        if offsets is None:
            return False
        times = [
            OffsetMetadata.decode(offset.metadata).event_time
            for offset in offsets.values()
            if offset is not None
        ]
        return all(time < 0 or time >= needed_ms for time in times)
