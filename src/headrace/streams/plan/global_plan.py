"""Global tables of an application, which every process reads and stores besides its tasks."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.state.spec import StoreSpec
from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.topic_plan import SubTopologyTopics
from headrace.topology.graph.binding import bound_to_topics
from headrace.topology.graph.graph import AnySerde
from headrace.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class GlobalPlan:
    """Global table of an application.

    Args:
        id: its number among the sub-topologies.
        source: the node that reads the topic.
        table: the node that joins refer to.
        topic: the source topic, which the application never creates, purges or deletes.
    """

    id: int
    source: str
    table: str
    topic: str
    store: StoreSpec
    key: AnySerde
    value: AnySerde

    @property
    def topics(self) -> SubTopologyTopics:
        """The topics of the table; its partition count is independent of all other topics."""
        return SubTopologyTopics(self.id, sources=(self.topic,), copartitioned=())


def plan_global_tables(topology: Topology, config: StreamsConfig) -> tuple[GlobalPlan, ...]:
    """Return the global tables of a topology.

    >>> from headrace import StreamsBuilder, serdes
    >>> builder = StreamsBuilder()
    >>> table = builder.global_table("countries", value=serdes.string, store="countries")
    >>> settings = {"application.id": "a", "bootstrap.servers": "localhost:9092"}
    >>> (plan,) = plan_global_tables(builder.build(), StreamsConfig.parse(settings))
    >>> plan.topic, plan.store.name, plan.topics.changelogs
    ('countries', 'countries', ())
    """
    if not topology.global_stores:
        return ()
    bound = bound_to_topics(
        topology,
        application_id=config.application_id,
        default_key=config.default_key_serde,
        default_value=config.default_value_serde,
    )
    return tuple(
        GlobalPlan(
            group.id,
            group.source.name,
            group.table.name,
            group.source.topic,
            group.store.spec,
            group.store.key or config.default_key_serde,
            group.store.value or config.default_value_serde,
        )
        for group in bound.global_stores
    )
