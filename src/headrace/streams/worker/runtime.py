"""Makes a worker of a cluster: looks at the topics, takes an identity, joins the clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from headrace.streams.config.config import StreamsConfig
from headrace.streams.contact.contact import NoContact
from headrace.streams.deployed.deployment import Deployment
from headrace.streams.deployed.live_versions import LiveVersions
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.topic_plan import TopicPlan
from headrace.streams.plan.topics import TopicAdmin, prepare_topics
from headrace.streams.questions.desk import Desk
from headrace.streams.seams.clients import Clock, Log, Probe, TopicPartition
from headrace.streams.seams.topic_facts import TopicFacts
from headrace.streams.tasks.cluster_facts import ClusterFacts, begins_earliest
from headrace.streams.tasks.gate_watch import Gate, OpenGate
from headrace.streams.tasks.restore import RestoreListener
from headrace.streams.upkeep.offset_retention import keep_offsets_every_s
from headrace.streams.worker.connections import LIVE, Connections, Stopping
from headrace.streams.worker.host_state import LocalState
from headrace.streams.worker.listeners import WorkerListener
from headrace.streams.worker.producers import describe_dead_letters, producer_maker
from headrace.streams.worker.seams import Application, Seams
from headrace.streams.worker.wiring import wire
from headrace.streams.worker.worker import Worker

BeforeStart = Callable[
    [TopicAdmin, TopicPlan, Mapping[str, TopicFacts]], AbstractSet[TopicPartition]
]
"""Called before topics are created, with what creates them, the plan, and those that are there.

It may refuse; it returns the inputs without offsets of which it has said what follows."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """A worker, and what must be closed after it."""

    worker: Worker
    local: LocalState
    keep_offsets_s: float
    """How often offsets that do not move are committed again."""
    desk: Desk

    def close(self) -> None:
        """Let go of the identity, and refuse what is asked."""
        self.desk.close()
        self.local.close()


def make_worker(
    config: StreamsConfig,
    plans: Sequence[SubPlan],
    *,
    clock: Clock,
    listener: WorkerListener,
    restore_listener: RestoreListener,
    probe: Probe,
    log: Log,
    connections: Connections = LIVE,
    stopping: Stopping = lambda: False,
    global_plans: Sequence[GlobalPlan] = (),
    deployed: Deployment | None = None,
    gate: Gate | None = None,
    versions: LiveVersions | None = None,
    before_start: BeforeStart = lambda _, __, ___: frozenset(),
) -> WorkerParts:
    """Check and create the topics, take an identity, and make a worker.

    Args:
        listener: hears what the worker does.
        restore_listener: hears how restores go on.
        stopping: whether the application was asked to stop.
        deployed: what was deployed before this start, as far as that is known.
        gate: what tasks wait for before they begin.
        versions: compares this version with that of live workers; None where there is one worker.
        before_start: looks at what is there before anything is made.

    Raises:
        VersionConflictError: live workers run a version that conflicts with this one.
        MissingTopicError, MisconfiguredTopicError: the topics do not fit.
        IdentityError: another live process has the identity that the settings give.
        LocalStateError: the state directory cannot be used.
        StopRequestedError: `stopping` said so while the cluster did not answer.
    """
    admin = connections.make_admin(config, stopping)
    topics, told = _prepare(config, plans, global_plans, admin, versions, before_start)
    plans = plans if versions is None else versions.plans
    local = connections.local_state(config)
    with _given_back_on_error(local):
        if versions is not None:
            versions.take(local.instance_id)
        bound = _bind(log, local.instance_id)
        application = Application(
            config=config,
            plans=plans,
            topics=topics,
            global_plans=global_plans,
            deployed=deployed,
            told=told,
            keep_offsets_s=keep_offsets_every_s(admin, log),
        )
        seams = _seams(
            application,
            local,
            admin=admin,
            clock=clock,
            listener=listener,
            restore_listener=restore_listener,
            probe=probe,
            log=bound,
            connections=connections,
            stopping=stopping,
            gate=gate or OpenGate(),
            version="" if versions is None else versions.version,
        )
        worker = wire(application, seams)
        return WorkerParts(worker, local, application.keep_offsets_s, connections.desk)


@contextmanager
def _given_back_on_error(local: LocalState) -> Iterator[None]:
    """Let go of the identity if no worker comes of it, so that this process may try again."""
    try:
        yield
    except BaseException:
        local.close()
        raise


def _prepare(
    config: StreamsConfig,
    plans: Sequence[SubPlan],
    global_plans: Sequence[GlobalPlan],
    admin: TopicAdmin,
    versions: LiveVersions | None,
    before_start: BeforeStart,
) -> tuple[dict[str, TopicFacts], AbstractSet[TopicPartition]]:
    """Check and create the topics; returns them, and what `before_start` has said of."""
    told: set[TopicPartition] = set()

    def before_create(plan: TopicPlan, found: Mapping[str, TopicFacts]) -> None:
        if versions is not None:
            versions.settle(admin, plan, found)
        told.update(before_start(admin, plan, found))

    topics = prepare_topics(
        admin,
        [*(plan.topics for plan in plans), *(plan.topics for plan in global_plans)],
        replication_factor=config.replication_factor,
        topic_configs=config.topic_configs,
        timeout_s=config.task_timeout_ms / 1000,
        before_create=before_create,
    )
    # Described on its own, as a dead-letter topic may be none of the topology's.
    topics.update(describe_dead_letters(admin, config))
    return topics, told


def _seams(
    application: Application,
    local: LocalState,
    *,
    admin: TopicAdmin,
    clock: Clock,
    listener: WorkerListener,
    restore_listener: RestoreListener,
    probe: Probe,
    log: Log,
    connections: Connections,
    stopping: Stopping,
    gate: Gate,
    version: str,
) -> Seams:
    """What a worker of a cluster meets of the world outside."""
    config = application.config
    settings = config.consumer_config(local.instance_id, version=version)
    consumer = connections.make_consumer(config, settings, clock)
    return Seams(
        admin=admin,
        consumer=consumer,
        make_reader=partial(connections.make_reader, config, clock),
        make_global_reader=partial(
            connections.make_consumer, config, config.restore_config(), clock
        ),
        make_producer=producer_maker(
            application,
            instance_id=local.instance_id,
            admin=admin,
            consumer=consumer,
            clock=clock,
            connections=connections,
            stopping=stopping,
        ),
        facts=ClusterFacts(
            admin,
            application.topics,
            begins_earliest(config),
            {
                name: reset
                for plan in application.plans
                for name, reset in plan.offset_resets.items()
            },
        ),
        open_home=local.homes(clock, log),
        open_global_home=lambda stores: local.global_home(stores, log),
        background=connections.background,
        clock=clock,
        listener=listener,
        restore_listener=restore_listener,
        global_listener=restore_listener,
        probe=probe,
        calls=connections.calls(),
        first_commit_id=connections.first_commit_id(),
        log=log,
        contact=connections.contact or NoContact(),
        gate=gate,
        worker_id=local.instance_id,
        measures=connections.all_measures(),
        tracer=connections.tracer(config.application_id, local.instance_id),
        open_sink=connections.open_sink,
        desk=connections.desk,
    )


def _bind(log: Log, worker_id: str) -> Log:
    bind = getattr(log, "bind", None)
    bound: Log = bind(worker=worker_id) if bind is not None else log
    return bound
