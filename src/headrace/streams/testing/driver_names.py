"""Lookup of topics, stores and serdes of a topology under test by name."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SubPlan
from headrace.topology import serdes
from headrace.topology.compile.source import partial_taker
from headrace.topology.graph.graph import AnySerde, Sink, SourceNode
from headrace.topology.processors.store import Store
from headrace.topology.serdes.partials import Take

Serdes = tuple[AnySerde, AnySerde]
"""Key serde and value serde."""


class DriverNames:
    """Topics and stores of an application, by the names that its users know."""

    def __init__(
        self,
        plans: Sequence[SubPlan],
        config: StreamsConfig,
        global_plans: Sequence[GlobalPlan] = (),
    ) -> None:
        subs = [plan.program.sub_topology for plan in plans]
        self._subs = subs
        self._config = config
        self._globals = global_plans
        self._sources = [s for sub in subs for s in sub.sources if not s.internal]
        self._sinks = [sink for sub in subs for sink in sub.sinks]
        self._stores = [(p, s) for p in plans for s in p.program.sub_topology.stores]

    def read(self, topic: str) -> Serdes:
        """Return the serdes with which a topic is read."""
        for source in self._sources:
            if topic in source.topics:
                return self.serdes_of(source)
        for plan in self._globals:
            if topic == plan.topic:
                return plan.key, plan.value
        raise LookupError(
            f"the topology does not read {topic!r}; it reads {', '.join(self.inputs)}"
        )

    @property
    def inputs(self) -> list[str]:
        sources = {name for source in self._sources for name in source.topics}
        return sorted(sources | {plan.topic for plan in self._globals})

    def outputs(self, existing: Iterable[str]) -> list[str]:
        """Return the external topics that it writes, including topics that functions have named."""
        named = {s.topic for s in self._sinks if isinstance(s.topic, str) and not s.internal}
        own = f"{self._config.application_id}-"
        inputs = self.inputs
        return sorted(named | {t for t in existing if t not in inputs and not t.startswith(own)})

    def written(self, topic: str, existing: Container[str]) -> Serdes:
        """Return a topic's serdes as it is written; a topic in `existing` needs no known writer."""
        writers = self._writers()
        if topic in writers:
            return self.serdes_of(writers[topic])
        if topic == self._config.errors_dead_letter_queue_topic_name:
            return serdes.bytes, serdes.bytes
        choosing = [sink for sink in self._sinks if callable(sink.topic)]
        if not choosing and topic not in existing:
            names = ", ".join(sorted(writers))
            raise LookupError(f"the topology does not write {topic!r}; it writes {names}")
        return self.serdes_of(choosing[0] if len(choosing) == 1 else Sink(""))

    @property
    def internal(self) -> list[str]:
        own = f"{self._config.application_id}-"
        return sorted(topic for topic in self._writers() if topic.startswith(own))

    def partials(self, topic: str) -> Take | None:
        """Return the decoder of partial aggregates in a repartition topic, or None."""
        for sub in self._subs:
            for source in sub.sources:
                if source.internal and topic == f"{self._config.application_id}-{source.topics[0]}":
                    return partial_taker(sub, source, self._config.default_value_serde)
        return None

    def global_table(self, store: str) -> GlobalPlan | None:
        return next((plan for plan in self._globals if plan.store.name == store), None)

    def store(self, name: str) -> tuple[SubPlan, Store]:
        for plan, store in self._stores:
            if store.name == name:
                return plan, store
        found = [store.name for _, store in self._stores] + [p.store.name for p in self._globals]
        names = ", ".join(found) or "none"
        raise LookupError(f"the topology has no store {name!r}; there are: {names}")

    def _writers(self) -> dict[str, Sink | Store]:
        writers: dict[str, Sink | Store] = {}
        for sink in self._sinks:
            if isinstance(sink.topic, str):
                prefix = f"{self._config.application_id}-" if sink.internal else ""
                writers.setdefault(prefix + sink.topic, sink)
        for plan, store in self._stores:
            if store.name in plan.changelogs:
                writers[plan.changelogs[store.name]] = store
        return writers

    def serdes_of(self, node: SourceNode | Sink | Store) -> Serdes:
        return (
            node.key or self._config.default_key_serde,
            node.value or self._config.default_value_serde,
        )
