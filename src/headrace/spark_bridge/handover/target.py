"""Target application of a backfill: preconditions of a handover, and changes to the application.

Kafka accepts offsets from outside even for a group with members. Members are therefore checked
here: before anything is written, and again right before the offsets are committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.spark_bridge.errors import CannotBackfillError
from headrace.spark_bridge.handover.notes import HandoverNotes, note_partitions
from headrace.spark_bridge.handover.rows import OldKeys, read_old_keys
from headrace.spark_bridge.history.planning import refuse_other_topics
from headrace.spark_bridge.plan.job import CompiledApplication
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.read import OpenConsumer, consumer_opener
from headrace.state.log import get_logger
from headrace.streams.admin.backfill_gate import backfill_group
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import StreamsError
from headrace.streams.kafka.acls import GroupDeniedError
from headrace.streams.kafka.protocols import (
    GroupAdminClient,
    Log,
    OffsetClient,
    Offsets,
    TopicDescription,
    TopicPartition,
)
from headrace.streams.metrics.snapshots import format_duration
from headrace.streams.plan.deployed import delete_description, deletion_offsets
from headrace.streams.plan.topic_plan import topic_names
from headrace.streams.plan.topics import describe_as
from headrace.streams.worker.retention import FOR_EVER, window_topics

_NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class HandoverTarget:
    """Application that receives a backfill, with the preconditions of the handover."""

    application: CompiledApplication
    admin: GroupAdminClient
    groups: OffsetClient
    open_consumer: OpenConsumer
    log: Log
    now_ms: Callable[[], int]

    @classmethod
    def live(cls, application: CompiledApplication) -> HandoverTarget:
        from headrace.streams.kafka.connectivity import reach
        from headrace.streams.kafka.group_admin import GroupAdmin
        from headrace.streams.kafka.group_offsets import MemberlessGroup

        config = application.config
        timeout_s = config.task_timeout_ms / 1000
        settings = config.admin_config()
        reach(settings)
        return cls(
            application,
            GroupAdmin(settings, timeout_s=timeout_s),
            MemberlessGroup(settings, timeout_s=timeout_s, stopping=lambda: False),
            consumer_opener(config),
            get_logger().bind(application=config.application_id),
            lambda: int(time.time() * 1000),
        )

    @property
    def config(self) -> StreamsConfig:
        return self.application.config

    @property
    def group(self) -> str:
        return self.config.application_id

    # -- topics ------------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicDescription]:
        """Describe the existing topics that the application reads or restores from."""
        plans = self.application.plans.values()
        sinks = {sink for plan in plans for sink in plan.sinks}
        names = topic_names([plan.topics for plan in plans])
        return describe_as(self.admin, names, written=sinks)

    def notes(self) -> HandoverNotes:
        plans = self.application.plans.values()
        sources = [t for plan in plans for t in plan.topics.sources]
        partitions = {name: found.partitions for name, found in self.topics().items()}
        internal = [name for name in partitions if name not in sources]
        tps = note_partitions(sources, internal, partitions)
        return HandoverNotes.of(self.groups.committed_at(backfill_group(self.group), tps), tps)

    def inputs(self, plan: BackfillPlan) -> tuple[TopicPartition, ...]:
        names = {t for sub in self.application.plans.values() for t in sub.topics.all_sources}
        return _partitions(plan, names)

    def changelogs(self, plan: BackfillPlan) -> tuple[TopicPartition, ...]:
        names = {t for sub in self.application.plans.values() for t in sub.changelogs.values()}
        return _partitions(plan, names)

    def ends(self, plan: BackfillPlan) -> dict[TopicPartition, int]:
        """Return the plan's ends, and current ends of repartition topics, to skip old records."""
        internal = [tp for tp in self.inputs(plan) if tp not in plan.ends]
        return {**plan.ends, **(self.admin.end_offsets(internal) if internal else {})}

    # -- checks ------------------------------------------------------------------------------

    def refuse_members(self) -> None:
        members = self.admin.members(self.group)
        if members:
            raise CannotBackfillError(
                f"the application {self.group} is running (members of its group: "
                f"{', '.join(map(str, members))}). Stop all its workers; a killed worker remains a "
                "member for consumer.session.timeout.ms"
            )

    def refuse_other_topics(self, plan: BackfillPlan) -> None:
        refuse_other_topics(plan, describe_as(self.admin, plan.topic_ids))

    def refuse_offsets(self, plan: BackfillPlan, *, reset: bool) -> None:
        """Raise if offsets may not be replaced, after open transactions are decided."""
        found = self.groups.committed_at(self.group, self._existing(self.inputs(plan)))
        if found and not reset:
            raise CannotBackfillError(
                f"the application {self.group} has already committed offsets ({_named(found)}). "
                "Pass reset=True (--reset) to replace its state and its offsets, or use another "
                "application.id"
            )

    def refuse_rows(self, plan: BackfillPlan, *, reset: bool) -> None:
        """Raise if changelogs have rows that may not or cannot be replaced."""
        versioned = self._versioned_changelogs()
        tps = [tp for tp in self.changelogs(plan) if not reset or tp.topic in versioned]
        found = self.old_keys(self._existing(tps))
        if not found:
            return
        if reset:
            raise CannotBackfillError(
                f"changelogs of versioned stores already have versions, which would remain between "
                f"the versions of the backfill ({_named(found)}). Delete them with headrace reset"
            )
        raise CannotBackfillError(
            f"the changelogs of application {self.group} have rows, although it has no offsets "
            f"({_named(found)}). Pass reset=True (--reset) to replace them, or run headrace reset"
        )

    def _existing(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the existing partitions; a plan may be made before its internal topics exist."""
        counts = {name: found.partitions for name, found in self.topics().items()}
        return [tp for tp in tps if tp.partition < counts.get(tp.topic, 0)]

    def _versioned_changelogs(self) -> set[str]:
        return {
            plan.changelogs[store.name]
            for plan in self.application.plans.values()
            for store in plan.program.sub_topology.stores
            if store.spec.layout == "versioned" and store.name in plan.changelogs
        }

    def old_keys(self, tps: Sequence[TopicPartition]) -> OldKeys:
        timeout_s = self.config.task_timeout_ms / 1000
        return read_old_keys(self.admin, self.open_consumer, tps, timeout_s)

    def old_rows(self, plan: BackfillPlan) -> int:
        """Return an upper bound for the rows in the changelogs, including obsolete records."""
        tps = self.changelogs(plan)
        starts, ends = self.admin.start_offsets(tps), self.admin.stable_offsets(tps)
        return sum(ends[tp] - starts[tp] for tp in tps)

    # -- retention ---------------------------------------------------------------------------

    def refuse_short_sinks(self, oldest_ms: Mapping[str, int]) -> None:
        """Raise if the retention of a sink would delete records of the backfill."""
        descriptions = describe_as(self.admin, oldest_ms, written=set(oldest_ms))
        missing = sorted(oldest_ms.keys() - descriptions.keys())
        if missing:
            raise CannotBackfillError(
                f"sink topics do not exist ({', '.join(missing)}). Create them with a retention "
                "that keeps the history's records, or pass outputs='skip'"
            )
        problems = []
        for name, at_ms in oldest_ms.items():
            policy, kept_ms = descriptions[name].cleanup_policy, descriptions[name].retention_ms
            if policy is None or "delete" not in policy or kept_ms is None or kept_ms < 0:
                continue
            age_ms = self.now_ms() - at_ms
            if age_ms >= kept_ms:
                problems.append(
                    f"{name} deletes records after {format_duration(kept_ms)}, and its oldest "
                    f"record is {format_duration(age_ms)} old: headrace topics set {name} "
                    "retention.ms=-1 keeps it"
                )
        if problems:
            raise CannotBackfillError(
                f"sinks would delete records of the backfill ({'; '.join(problems)}). Increase "
                "their retention.ms, or pass outputs='skip' (--outputs skip) to write only state"
            )

    def protect_windows(self, oldest_ms: Mapping[str, int]) -> None:
        """Set unlimited retention on window changelogs that would delete rows of the backfill.

        The live application restores the retention (see `headrace.streams.worker.retention`).
        """
        windows = window_topics(list(self.application.plans.values()))
        descriptions = describe_as(self.admin, [name for name in oldest_ms if name in windows])
        for name in descriptions:
            topic, kept_ms = windows[name], descriptions[name].retention_ms
            newest_lost_ms = self.now_ms() - topic.store_retention_ms - topic.slack_ms
            if kept_ms == int(FOR_EVER) or oldest_ms[name] >= newest_lost_ms:
                continue
            try:
                self.admin.alter_config(name, {"retention.ms": FOR_EVER})
            except StreamsError as error:
                raise CannotBackfillError(
                    f"{name} would delete windows before the live application reads them, and its "
                    f"retention.ms cannot be changed ({error}). Set it to -1, or grant AlterConfigs"
                ) from error
            self.log.warning("retention_suspended", topic=name, oldest_window_ms=oldest_ms[name])

    def clear_topology(self) -> None:
        """Clear the deployed topology, so that the next start is not compared with it."""
        with suppress(GroupDeniedError):  # without access to the group, nothing was stored in it
            delete_description(self.group, self.groups)

    def cleared_topology(self) -> Offsets:
        """Return the offsets that clear the deployed topology as part of a transaction."""
        with suppress(GroupDeniedError):
            return deletion_offsets(self.group, self.groups)
        return {}

    def delete_group(self, group: str) -> None:
        """Delete a group that is not needed any more; if this fails, the group expires."""
        try:
            self.admin.delete_groups([group])
        except StreamsError as error:
            self.log.info("group_not_deleted", group=group, reason=str(error))

    # -- clients -----------------------------------------------------------------------------

    def transaction_timeout_ms(self) -> int:
        """Return the maximum: the next attempt or a drop aborts an open transaction."""
        return max(self.admin.transaction_timeout_max_ms(), self.config.transaction_timeout_ms)

    def producer_settings(self, identity: str, timeout_ms: int) -> dict[str, Any]:
        """Return librdkafka's settings for a transactional producer, for any guarantee."""
        plans = list(self.application.plans.values())
        written = {t for plan in plans for t in (*plan.sinks, *plan.changelogs.values())}
        limits = [
            topic.max_message_bytes
            for topic in describe_as(self.admin, written, written=set(written)).values()
        ]
        known = [limit for limit in limits if limit is not None]
        settings = self.config.producer_config(
            identity,
            message_max_bytes=max(known, default=None),
            batch_max_bytes=min(known, default=None),
        )
        if not self.config.exactly_once:
            settings = {k: v for k, v in settings.items() if k not in _NOT_IN_TRANSACTIONS}
        return {
            **settings,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            "queue.buffering.max.kbytes": min(
                int(str(settings["queue.buffering.max.kbytes"])), _QUEUE_KBYTES
            ),
            "delivery.report.only.error": True,
            "transaction.timeout.ms": max(timeout_ms, self.config.transaction_timeout_ms),
        }


_QUEUE_KBYTES = 64 << 10
"""Maximum size of a producer's queue: a commit flushes all of it, in at most a minute."""

_NOT_IN_TRANSACTIONS = frozenset(
    {
        "request.required.acks",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "retries",
        "message.send.max.retries",
        "queuing.strategy",
    }
)
"""Settings of applications without transactions that transactions do not support."""


def _partitions(plan: BackfillPlan, topics: Iterable[str]) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(name, p) for name in sorted(topics) for p in range(plan.partitions[name])
    )


def _named(tps: Mapping[TopicPartition, object]) -> str:
    some = sorted(tps)[:_NAMED_MAX]
    more = len(tps) - len(some)
    return ", ".join(map(str, some)) + (f" and {more} more" if more else "")
