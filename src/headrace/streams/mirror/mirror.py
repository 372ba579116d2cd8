"""Mirror: copies topics of a cluster to another cluster, each record exactly once.

A `MirrorSession` does the work. The mirror starts a session, and the next session after a temporary
error: lost brokers, or an expired transaction. A session does not end while a cluster is
unavailable.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from headrace.state.log import get_logger
from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.secrets import over
from headrace.streams.errors import (
    AbortableError,
    ConfigError,
    FatalClientError,
    OffsetLostError,
    OutcomeUnknownError,
    ProducerFencedError,
    StopRequestedError,
)
from headrace.streams.kafka.adaptive_batch_size import FIRST_RECORDS, AdaptiveBatchSize
from headrace.streams.kafka.clocks import SystemClock
from headrace.streams.kafka.connectivity import reach
from headrace.streams.kafka.protocols import Clock
from headrace.streams.mirror.cluster import MirrorCluster
from headrace.streams.mirror.move import GroupWatch
from headrace.streams.mirror.names import (
    SAME,
    NameClaim,
    Naming,
    RecordsLostError,
    Selection,
    require_name,
    table_of,
)
from headrace.streams.mirror.session import TRANSACTION_RECORDS, MirrorCounts, MirrorSession
from headrace.streams.mirror.table import new_table
from headrace.streams.mirror.topics import MirrorTopics, Side
from headrace.streams.mirror.writer import MirrorProducer

_ASK_S = 10.0
"""Seconds for which a request is retried; after that, the caller continues or starts again."""
_AGAIN_S = 0.5
_AGAIN_MAX_S = 10.0
_RECORD_MIN = 16 << 20
"""Minimum of the client's message.max.bytes, which limits records before compression."""
_PASSING = (
    AbortableError,
    OutcomeUnknownError,
    FatalClientError,
    OffsetLostError,
    ProducerFencedError,
)


class Mirror:
    """Mirror that copies topics of a cluster to another cluster.

    Args:
        name: stable name of the mirror; it names the group ``mirror.<name>`` and the table topic
            ``mirror.<name>.offsets`` at the target.
        source: ``bootstrap.servers`` and other settings of the source cluster.
        target: settings of the target cluster.
        topics: names, and patterns such as ``orders-*``.
        rename: template of topic names at the target, of ``{cluster}`` and ``{topic}``.
        source_name: display name of the source, and value of ``{cluster}``.
        target_name: display name of the target.
        replication_factor: replication factor of topics created at the target; -1 uses its default.
        skip_lost: whether to continue after records that the source deleted before they were
            copied.
        groups: groups of the source whose offsets are regularly stored at the target.

    Raises:
        ConfigError: an argument is invalid.
    """

    def __init__(
        self,
        *,
        name: str,
        source: Mapping[str, Any],
        target: Mapping[str, Any],
        topics: Iterable[str],
        rename: str = SAME,
        source_name: str = "source",
        target_name: str = "target",
        replication_factor: int = -1,
        skip_lost: bool = False,
        groups: Iterable[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._name = name
        self._source = config_of(name, source)
        self._target = config_of(name, target)
        self._names = source_name, target_name
        self._selection = Selection.of(topics)
        self._naming = Naming(rename, source_name)
        self._replication_factor = replication_factor
        self._skip_lost = skip_lost
        self._group_names = tuple(groups)
        self._clock = clock or SystemClock()
        self._owner = NameClaim(name)
        self._log = get_logger().bind(mirror=name)
        self.counts = MirrorCounts()
        self._batch = AdaptiveBatchSize(
            target_s=min(_ASK_S, self._target.transaction_timeout_ms / 1000) / 3,
            size=FIRST_RECORDS,
            max_size=TRANSACTION_RECORDS,
            log=self._log,
            fields={"batch": "transaction", "unit": "records"},
        )

    def run(self, *, once: bool = False, stop: threading.Event | None = None) -> int:
        """Copy records until `stop` is set, or with `once` to the current ends; return how many."""
        stop = stop or threading.Event()
        try:
            configs = self._source, self._target
            for config in configs:
                reach(config.admin_config())
            source, target = sides(configs, self._names, stopping=stop.is_set, timeout_s=_ASK_S)
            self._make_table(target)
            groups = GroupWatch(self._source.restore_config(), self._group_names)
            try:
                self._mirror(source, target, groups, stop, once=once)
            finally:
                groups.close()
        except StopRequestedError:
            self._log.info("mirror_stopped", reason="stop requested while waiting for brokers")
        return self.counts.records

    def _mirror(
        self, source: Side, target: Side, groups: GroupWatch, stop: threading.Event, *, once: bool
    ) -> None:
        topics = MirrorTopics(
            self._name,
            source,
            target,
            self._selection,
            self._naming,
            replication_factor=self._replication_factor,
        )
        failed_s = 0.0
        while True:
            session = MirrorSession(
                self._name,
                source,
                target,
                topics,
                partial(self._make_producer, stop),
                owner=self._owner,
                skip_lost=self._skip_lost,
                groups=groups,
                counts=self.counts,
                batch=self._batch,
                clock=self._clock,
            )
            begun_s, before = self._clock.monotonic_s(), self.counts.transactions
            try:
                session.run(stop, once=once)
                return
            except RecordsLostError:
                raise
            except _PASSING as error:
                if stop.is_set():
                    self._log.info("mirror_stopped", reason=str(error))
                    return
                failure = error
            finally:
                session.close()
            lasted_s = self._clock.monotonic_s() - begun_s
            failed_s = 0.0 if self.counts.transactions > before else failed_s + lasted_s
            self._log.warning("mirror_restarted", reason=str(failure))
            if self._await_brokers(stop):
                failed_s = 0.0  # the brokers were unavailable
            elif failed_s > self._target.task_timeout_ms / 1000:
                raise failure
            stop.wait(_AGAIN_S)

    def _await_brokers(self, stop: threading.Event) -> bool:
        """Wait until both clusters answer; return whether any of them was unavailable."""
        waited, wait_s = False, _AGAIN_S
        while True:
            try:
                for config in (self._source, self._target):
                    reach(config.admin_config(), within_s=1.0)
                return waited
            except FatalClientError as error:
                waited = True
                self._log.warning("brokers_not_reached", reason=str(error))
            if stop.wait(wait_s):
                raise StopRequestedError("stopped while waiting for the brokers")
            wait_s = min(2 * wait_s, _AGAIN_MAX_S)

    def _make_table(self, target: Side) -> None:
        topic = table_of(self._name)
        if topic not in target.cluster.describe([topic]):
            target.cluster.create([new_table(topic, self._replication_factor)])
        table_topic = target.cluster.describe([topic]).get(topic)
        if table_topic is not None and table_topic.cleanup_policy not in (None, {"compact"}):
            raise ConfigError(
                f"cleanup.policy of topic {topic} of {target.name} would delete the positions of "
                f"mirror {self._name}. Set it to compact, or use another --name."
            )

    def _make_producer(self, stop: threading.Event, limits: Mapping[str, int]) -> MirrorProducer:
        largest = max((*limits.values(), _RECORD_MIN // 4))
        config = {
            **self._target.producer_config(
                f"{self._target.application_id}-0",
                message_max_bytes=4 * largest,
                batch_max_bytes=min(limits.values(), default=None),
            ),
            "delivery.report.only.error": False,
        }
        return MirrorProducer(
            config,
            limits=limits,
            timeout_s=_ASK_S,
            stopping=stop.is_set,
            group=self._target.application_id,
        )


def config_of(name: str, settings: Mapping[str, Any]) -> StreamsConfig:
    require_name(name)
    return StreamsConfig.parse(over(settings, {"application.id": f"mirror.{name}"}))


def side_of(config: StreamsConfig, name: str, **limits: Any) -> Side:
    """Return a cluster with its name and id; `limits` are keyword arguments of `MirrorCluster`."""
    cluster = MirrorCluster(config.admin_config(), **limits)
    return Side(name, cluster.cluster_id(), cluster, config.restore_config())


def sides(
    configs: tuple[StreamsConfig, StreamsConfig], names: tuple[str, str], **limits: Any
) -> tuple[Side, Side]:
    """Return source and target; raise ConfigError if both are the same cluster."""
    source, target = (side_of(c, n, **limits) for c, n in zip(configs, names, strict=True))
    if source.id == target.id:
        raise ConfigError(
            f"{names[0]} ({configs[0].bootstrap_servers}) and {names[1]} "
            f"({configs[1].bootstrap_servers}) are the same cluster, {source.id}. Correct "
            "bootstrap.servers of either side."
        )
    return source, target
