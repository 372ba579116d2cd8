"""Connections of a worker to a cluster and a disk, real or simulated."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from headrace.state.directory import StateDirectory, WorkerIdentity, raise_open_files
from headrace.state.errors import StateError, StateLockedError
from headrace.streams.admin.start_check import CommittedRecords
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import IdentityError, LocalStateError
from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.kafka.clocks import Background, InThread
from headrace.streams.kafka.connectivity import BrokerMonitor
from headrace.streams.kafka.consumer import LiveConsumer
from headrace.streams.kafka.consumer import MakeClient as MakeConsumerClient
from headrace.streams.kafka.group_offsets import MemberlessGroup
from headrace.streams.kafka.producer import MakeClient as MakeProducerClient
from headrace.streams.kafka.protocols import AdminClient, Clock, Log, Tracer
from headrace.streams.metrics.measures import NOTHING_MEASURED, Measures, SentRecords
from headrace.streams.metrics.otel_tracer import tracer_of
from headrace.streams.plan.progress import COMMIT_COUNT_BITS
from headrace.streams.queries.query_queue import QueryQueue
from headrace.streams.tasks.async_io import LiveCalls
from headrace.streams.tasks.home import LocalHomes, open_global_home, rocks_memory
from headrace.streams.tasks.sink_connections import OpenSink, open_sink
from headrace.streams.tasks.tasks import OpenHome, TaskHome
from headrace.topology.context.calls import Caller
from headrace.topology.context.task_context import RESULTS_PER_COMMIT
from headrace.topology.processors.store import Store

# A worker's identity, and the local state of its tasks, on its host.


class LocalState(Protocol):
    """A worker's identity, and the local state of its tasks, on its host."""

    @property
    def instance_id(self) -> str:
        """The worker's identity, kept across restarts."""

    def homes(self, clock: Clock, log: Log) -> OpenHome:
        """Return the opener of tasks' local state."""

    def global_home(self, stores: Sequence[Store], log: Log) -> TaskHome:
        """Open the local state of this worker's global tables."""

    def close(self) -> None:
        """Release the identity."""


class HostState:
    """Identity and state in the settings' state.dir (see `LocalState`).

    Raises:
        IdentityError: another live process has the identity that the settings give.
        LocalStateError: the state directory cannot be used.
    """

    def __init__(self, config: StreamsConfig) -> None:
        raise_open_files()
        self._directory, self._identity = _local_identity(config)
        self._config = config
        self._memory = rocks_memory(config)

    @property
    def instance_id(self) -> str:
        return self._identity.instance_id

    def homes(self, clock: Clock, log: Log) -> OpenHome:
        return LocalHomes(self._directory, self._memory, clock=clock, log=log).open

    def global_home(self, stores: Sequence[Store], log: Log) -> TaskHome:
        return open_global_home(self._directory, self.instance_id, stores, self._memory, log)

    def close(self) -> None:
        self._identity.release()


def _local_identity(config: StreamsConfig) -> tuple[StateDirectory, WorkerIdentity]:
    try:
        directory = StateDirectory(config.state_dir, config.application_id)
        return directory, directory.acquire_identity(config.worker_id)
    except StateLockedError as error:
        raise IdentityError(str(error)) from error
    except StateError as error:
        raise LocalStateError(str(error)) from error


Stopping = Callable[[], bool]
"""Returns whether a stop of the application was requested."""


@dataclass(frozen=True, slots=True)
class Connections:
    """Connections of a worker to the outside; by default to a real cluster and disk.

    Args:
        admin: creates the admin client, given a function that returns whether to stop; None for the
            live client.
        consumer_client: creates Kafka consumers from settings; None for live consumers.
        producer_client: creates Kafka producers from settings; None for live producers.
        brokers: handles the callbacks of live clients, and tracks whether brokers are reachable.
        background: creates a runner of background jobs with a name.
        first_commit_id: returns the first commit ID, which is unique to the worker.
        results_per_commit: the number of results of closed windows in one commit.
        tracer: creates the tracer of a worker, given the application ID and the worker's identity.
    """

    admin: Callable[[StreamsConfig, Stopping], AdminClient] | None = None
    consumer_client: MakeConsumerClient | None = None
    producer_client: MakeProducerClient | None = None
    brokers: BrokerMonitor | None = None
    local_state: Callable[[StreamsConfig], LocalState] = HostState
    background: Callable[[str], Background] = InThread
    calls: Callable[[], Caller] = LiveCalls
    first_commit_id: Callable[[], int] = lambda: secrets.randbits(30) << COMMIT_COUNT_BITS
    results_per_commit: int = RESULTS_PER_COMMIT
    measures: Measures = NOTHING_MEASURED
    tracer: Callable[[str, str], Tracer] = tracer_of
    open_sink: OpenSink = open_sink
    query_queue: QueryQueue = field(default_factory=QueryQueue)
    sent: SentRecords = field(default_factory=SentRecords)

    def broker_arguments(self, config: StreamsConfig) -> dict[str, Any]:
        """Return the arguments that connect a live client to the broker monitor."""
        if self.brokers is None:
            return {}
        timeout_s = config.task_timeout_ms / 1000
        return {"brokers": self.brokers, "waiting": partial(self.brokers.was_lost, timeout_s)}

    def all_measures(self) -> Measures:
        """Return the measurements of the worker, including records sent by its producers."""
        if self.producer_client is not None:
            return self.measures  # clients that are not live have no statistics
        return replace(self.measures, sent=self.sent.totals, are_served=True)

    def make_admin(self, config: StreamsConfig, stopping: Stopping) -> AdminClient:
        if self.admin is not None:
            return self.admin(config, stopping)
        timeout_s = config.task_timeout_ms / 1000
        return LiveAdmin(
            config.admin_config(),
            timeout_s=timeout_s,
            stopping=stopping,
            **self.broker_arguments(config),
        )

    def make_consumer(
        self,
        config: StreamsConfig,
        settings: dict[str, object],
        clock: Clock,
        *,
        reads_headers: bool = True,
    ) -> LiveConsumer:
        return LiveConsumer(
            settings,
            timeout_s=config.task_timeout_ms / 1000,
            clock=clock,
            make_client=self.consumer_client,
            reads_headers=reads_headers,
            **self.broker_arguments(config),
        )

    def memberless_group(self, config: StreamsConfig, stopping: Stopping) -> MemberlessGroup:
        timeout_s = config.task_timeout_ms / 1000
        return MemberlessGroup(
            config.admin_config(),
            timeout_s=timeout_s,
            stopping=stopping,
            **self.broker_arguments(config),
        )

    def committed_records(self, config: StreamsConfig, clock: Clock) -> CommittedRecords:
        make_reader = partial(self.make_reader, config, clock)
        timeout_s = config.task_timeout_ms / 1000
        return CommittedRecords(make_reader, clock=clock, timeout_s=timeout_s)

    def make_reader(self, config: StreamsConfig, clock: Clock) -> LiveConsumer:
        """Create a consumer of committed records without a group, which reads no headers."""
        settings = config.restore_config()
        return self.make_consumer(config, settings, clock, reads_headers=False)


LIVE = Connections()
