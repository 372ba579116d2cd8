"""Makes a worker's producers, which know how much the topics take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import MissingTopicError, StreamsError
from headrace.streams.kafka.consumer import LiveConsumer
from headrace.streams.kafka.plain_producer import PlainProducer
from headrace.streams.kafka.transactional_producer import TransactionalProducer
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.topic_plan import did_you_mean
from headrace.streams.plan.topics import TopicAdmin, describe_twice
from headrace.streams.seams.clients import Clock, Producer
from headrace.streams.seams.refused_times import TimeLimits
from headrace.streams.seams.topic_facts import TopicFacts
from headrace.streams.worker.connections import Connections, Stopping
from headrace.streams.worker.seams import Application


def producer_maker(
    application: Application,
    *,
    instance_id: str,
    admin: TopicAdmin,
    consumer: LiveConsumer,
    clock: Clock,
    connections: Connections,
    stopping: Stopping,
) -> Callable[[], Producer]:
    """Return what makes the producers of a worker, one after another, by its guarantee.

    Args:
        application: what the worker runs.
        instance_id: the worker's identity.
        admin: asks for the ends of changelogs where there are no transactions.
        consumer: of the group, whose offsets are committed where there are no transactions.
        stopping: whether the application was asked to stop.
    """
    config = application.config
    looked_up = {plan.topic for plan in application.global_plans}
    others = {name: facts for name, facts in application.topics.items() if name not in looked_up}
    sizes = _Sizes.of(application.plans, others)
    settings = config.producer_config(
        f"{config.application_id}-{instance_id}" if config.exactly_once else None,
        message_max_bytes=sizes.record,
        batch_max_bytes=sizes.batch,
    )
    shared: dict[str, Any] = {
        "timeout_s": config.task_timeout_ms / 1000,
        "topic_limits": sizes.limits,
        "time_limits": TimeLimits.of(others),
        "ask_limit": partial(_limit_of, admin),
        "clock": clock,
        "make_client": connections.producer_client,
        "stopping": stopping,
        "group": config.application_id,
        **connections.hearing(config),
    }

    def make() -> Producer:
        is_live = connections.producer_client is None
        own = connections.sent.hearing(settings) if is_live else settings
        if config.exactly_once:
            return TransactionalProducer(own, **shared)
        return PlainProducer(
            own, commit_offsets=consumer.commit, end_offsets=admin.end_offsets, **shared
        )

    return make


def _limit_of(admin: TopicAdmin, topic: str) -> int | None:
    with suppress(StreamsError):
        found = admin.describe([topic]).get(topic)
        return None if found is None else found.max_message_bytes
    return None


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What max.message.bytes of the topics means for the producer.

    Args:
        limits: of each topic, as far as they are known.
        record: the largest record that any of them takes.
        batch: the largest batch that all written ones take.
    """

    limits: Mapping[str, int]
    record: int | None
    batch: int | None

    @classmethod
    def of(cls, plans: Sequence[SubPlan], topics: Mapping[str, TopicFacts]) -> _Sizes:
        limits = {name: f.max_message_bytes for name, f in topics.items() if f.max_message_bytes}
        only_read = {name for plan in plans for name in plan.topics.sources}
        only_read -= {name for plan in plans for name in plan.sinks}
        written = [limit for name, limit in limits.items() if name not in only_read]
        return cls(limits, max(limits.values(), default=None), min(written, default=None))


def describe_dead_letters(admin: TopicAdmin, config: StreamsConfig) -> Mapping[str, TopicFacts]:
    """Look at the dead-letter topic before it is needed.

    Raises:
        MissingTopicError: it does not exist.
    """
    topic = config.handlers.dead_letter_topic
    if topic is None:
        return {}
    found = describe_twice(admin, [topic], {topic}, written={topic})
    if topic not in found:
        named = did_you_mean(topic, sorted(admin.names()))
        raise MissingTopicError(
            f"the dead-letter topic {named} does not exist; create it, or correct "
            "errors.dead.letter.queue.topic.name",
            topics=[topic],
        )
    return found
