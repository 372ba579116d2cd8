"""What joins a worker to a real cluster and a real disk, or to what stands in for them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from headrace.streams.calls.live import LiveCalls
from headrace.streams.config.config import StreamsConfig
from headrace.streams.external.connections import OpenSink, open_sink
from headrace.streams.facts.measures import NOTHING_MEASURED, Measures, SentRecords
from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.kafka.broker_contact import BrokerContact
from headrace.streams.kafka.consumer import LiveConsumer
from headrace.streams.kafka.consumer import MakeClient as MakeConsumerClient
from headrace.streams.kafka.group_offsets import MemberlessGroup
from headrace.streams.kafka.producer import MakeClient as MakeProducerClient
from headrace.streams.otel_tracer import tracer_of
from headrace.streams.plan.topics import TopicAdmin
from headrace.streams.questions.desk import Desk
from headrace.streams.seams.background import Background, InThread
from headrace.streams.seams.clients import Clock
from headrace.streams.seams.tracing import Tracer
from headrace.streams.upgrade.committed_records import CommittedRecords
from headrace.streams.worker.host_state import HostState, LocalState
from headrace.topology.context.calls import Caller

Stopping = Callable[[], bool]
"""Whether the application was asked to stop."""


def _new_commit_id() -> int:
    return secrets.randbits(30) << 32


@dataclass(frozen=True, slots=True)
class Connections:
    """What joins a worker to the world outside; by default a real cluster and a real disk.

    Args:
        admin: makes the admin client, given what says that nobody waits for it any more; None
            takes the live one.
        consumer_client: makes Kafka's own consumers, by their settings; None takes the live ones.
        producer_client: makes Kafka's own producers, by their settings; likewise.
        contact: hears what the live clients say, and knows whether brokers can be reached.
        local_state: takes an identity, and opens the host's state.
        background: makes what runs jobs of a name beside the worker.
        calls: makes what makes the calls of a worker's steps to the outside.
        first_commit_id: where a worker's commits are numbered from, unlike any other worker's.
        measures: what is measured of the worker from outside of its loop.
        tracer: makes what traces a worker, by the application's name and the worker's.
        open_sink: connects with tables outside of Kafka.
        desk: takes questions about rows in the worker's memory.
        sent: counts what the worker's producers send.
    """

    admin: Callable[[StreamsConfig, Stopping], TopicAdmin] | None = None
    consumer_client: MakeConsumerClient | None = None
    producer_client: MakeProducerClient | None = None
    contact: BrokerContact | None = None
    local_state: Callable[[StreamsConfig], LocalState] = HostState
    background: Callable[[str], Background] = InThread
    calls: Callable[[], Caller] = LiveCalls
    first_commit_id: Callable[[], int] = _new_commit_id
    measures: Measures = NOTHING_MEASURED
    tracer: Callable[[str, str], Tracer] = tracer_of
    open_sink: OpenSink = open_sink
    desk: Desk = field(default_factory=Desk)
    sent: SentRecords = field(default_factory=SentRecords)

    def hearing(self, config: StreamsConfig) -> dict[str, Any]:
        """How live clients are heard, as arguments of what uses them."""
        if self.contact is None:
            return {}
        timeout_s = config.task_timeout_ms / 1000
        return {"contact": self.contact, "waiting": partial(self.contact.was_lost, timeout_s)}

    def all_measures(self) -> Measures:
        """What is measured of the worker, with what its producers send."""
        if self.producer_client is not None:
            return self.measures  # what stands in for the live one has no statistics
        return replace(self.measures, sent=self.sent.totals, are_served=True)

    def make_admin(self, config: StreamsConfig, stopping: Stopping) -> TopicAdmin:
        """Make the admin client."""
        if self.admin is not None:
            return self.admin(config, stopping)
        timeout_s = config.task_timeout_ms / 1000
        return LiveAdmin(
            config.admin_config(), timeout_s=timeout_s, stopping=stopping, **self.hearing(config)
        )

    def make_consumer(
        self,
        config: StreamsConfig,
        settings: dict[str, object],
        clock: Clock,
        *,
        reads_headers: bool = True,
    ) -> LiveConsumer:
        """Make a consumer, of the group or without one, as the settings are."""
        return LiveConsumer(
            settings,
            timeout_s=config.task_timeout_ms / 1000,
            clock=clock,
            make_client=self.consumer_client,
            reads_headers=reads_headers,
            **self.hearing(config),
        )

    def memberless_group(self, config: StreamsConfig, stopping: Stopping) -> MemberlessGroup:
        """The application's group, asked and written to by one who is no member."""
        timeout_s = config.task_timeout_ms / 1000
        return MemberlessGroup(
            config.admin_config(), timeout_s=timeout_s, stopping=stopping, **self.hearing(config)
        )

    def committed_records(self, config: StreamsConfig, clock: Clock) -> CommittedRecords:
        """What is read of topics before a start."""
        make_reader = partial(self.make_reader, config, clock)
        timeout_s = config.task_timeout_ms / 1000
        return CommittedRecords(make_reader, clock=clock, timeout_s=timeout_s)

    def make_reader(self, config: StreamsConfig, clock: Clock) -> LiveConsumer:
        """Make a consumer of committed records without a group, which reads no headers."""
        settings = config.restore_config()
        return self.make_consumer(config, settings, clock, reads_headers=False)


LIVE = Connections()
