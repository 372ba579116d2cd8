"""Ownership of topic partitions, by subscribed topic, and its comparison between two versions.

The group assigns one topic of each sub-topology, the subscribed topic. The worker that is assigned
a partition of it owns the task, and with it the same partition of all inputs and changelogs of the
sub-topology. Brokers check that a commit comes from a member, but not that the member owns the
partition. So workers of two versions may be members of the group at the same time only if both
versions have the same subscribed topic for everything that both read or restore from. Otherwise a
partition has two owners, and each record is processed twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from headrace.streams.plan.deployment import DeployedStore, Deployment
from headrace.streams.plan.plan import SubPlan

OLDER_RELEASE = ""
"""The version of a worker whose release does not report a version."""


@dataclass(frozen=True, slots=True)
class TopicOwnership:
    """Topics, changelogs and external sinks that a version owns, by subscribed topic.

    Args:
        subscribed: the subscribed topic of each input topic.
        stores: the subscribed topic of each changelog, or the reason why it has none.
        sinks: the subscribed topic of each external sink that reads its topic directly.
        settings: the settings that must be equal in all live workers.
    """

    subscribed: Mapping[str, str]
    stores: Mapping[str, str]
    sinks: Mapping[str, str]
    settings: Mapping[str, str]

    @classmethod
    def of(cls, deployment: Deployment, application_id: str) -> TopicOwnership:
        """Read a description, which must have sub-topologies."""
        by_id = {sub.id: sub.subscribed for sub in deployment.subs}
        by_topic = {topic: sub.subscribed for sub in deployment.subs for topic in sub.reads}
        return cls(
            by_topic,
            {
                f"{application_id}-{store.name}-changelog": _changelog_owner(
                    store, by_id[store.sub]
                )
                for store in deployment.stores
            },
            {
                sink.name: by_topic[_full(sink.reads, deployment, application_id)[0]]
                for sink in deployment.sinks
            },
            dict(deployment.settings),
        )

    @property
    def version(self) -> str:
        """A digest of the ownership, which workers report to the group."""
        both = [self.subscribed, self.stores, self.sinks, self.settings]
        text = json.dumps(both, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def conflicts(self, other: TopicOwnership) -> list[str]:
        kinds = (
            ("topic", self.subscribed, other.subscribed),
            ("changelog", self.stores, other.stores),
            ("external sink", self.sinks, other.sinks),
        )
        conflicts = [
            f"{kind} {name} is assigned with {own[name]} here and with {others[name]} there"
            for kind, own, others in kinds
            for name in sorted(own.keys() & others.keys())
            if own[name] != others[name]
        ]
        return conflicts + [
            f"{name} is {value} here and {other.settings[name]} there"
            for name, value in self.settings.items()
            if other.settings.get(name, value) != value
        ]


def _changelog_owner(store: DeployedStore, subscribed: str) -> str:
    if not store.logged:
        return "no changelog"
    return "its source topic" if store.source else subscribed


def keep_subscribed(plans: Sequence[SubPlan], deployed: TopicOwnership) -> tuple[SubPlan, ...]:
    """Keep the deployed version's subscribed topic in each sub-topology that still reads it."""

    def deployed_topic(plan: SubPlan) -> str | None:
        read = {deployed.subscribed.get(topic) for topic in plan.topics.all_sources}
        subscribed = sorted({topic for topic in read if topic in plan.topics.all_sources})
        return subscribed[0] if subscribed else None

    return tuple(replace(plan, deployed_topic=deployed_topic(plan)) for plan in plans)


@dataclass(frozen=True, slots=True)
class OlderOwnership:
    """Known part of the ownership of a version whose release did not describe its sub-topologies.

    Args:
        known: the ownership that follows from described stores, repartition topics and sinks.
        assigned: the topics that its live workers were assigned.
        partitions: the partition counts of topics.
    """

    known: TopicOwnership
    assigned: AbstractSet[str]
    partitions: Mapping[str, int]

    @classmethod
    def of(
        cls,
        deployment: Deployment,
        application_id: str,
        assigned: AbstractSet[str],
        partitions: Mapping[str, int],
    ) -> OlderOwnership:
        """Derive the ownership; `partitions` has the topics that `older_reads` returns."""
        subscribed: dict[str, str] = {}
        for reads in older_reads(deployment, application_id):
            existing = [topic for topic in reads if topic in partitions]
            if existing:
                subscribed_topic = max(existing, key=lambda t: (partitions[t], t))
                subscribed |= dict.fromkeys(existing, subscribed_topic)
        stores = {}
        for store in deployment.stores:
            reads = _full(store.reads, deployment, application_id)
            subscribed_topic = next(
                (subscribed[topic] for topic in reads if topic in subscribed), "nothing"
            )
            stores[f"{application_id}-{store.name}-changelog"] = _changelog_owner(
                store, subscribed_topic
            )
        return cls(TopicOwnership(subscribed, stores, {}, {}), assigned, partitions)

    def conflicts(self, own: TopicOwnership) -> list[str]:
        conflicts = own.conflicts(self.known)
        for topic, subscribed in sorted(own.subscribed.items()):
            others = set(self._may_be_assigned_by(topic)) - {subscribed}
            if topic not in self.known.subscribed and others:
                named = " or ".join(sorted(others))
                conflicts.append(
                    f"topic {topic} is assigned with {subscribed} here and perhaps with "
                    f"{named} there"
                )
        return conflicts

    def _may_be_assigned_by(self, topic: str) -> Iterator[str]:
        """Yield the possible subscribed topics of a topic that is not described but may be read."""
        if topic in self.assigned:
            yield topic
            return
        size = (self.partitions.get(topic, 0), topic)
        for other in self.assigned - {*self.known.subscribed.values()}:
            if (self.partitions.get(other, 0), other) > size:
                yield other


def older_reads(deployment: Deployment, application_id: str) -> set[tuple[str, ...]]:
    described: list[tuple[str, ...]] = [
        *(store.reads for store in deployment.stores),
        *(topic.reads for topic in deployment.topics),
        *(sink.reads for sink in deployment.sinks),
    ]
    return {_full(reads, deployment, application_id) for reads in described if reads}


def _full(reads: Sequence[str], deployment: Deployment, application_id: str) -> tuple[str, ...]:
    internal = {topic.name for topic in deployment.topics}
    return tuple(f"{application_id}-{name}" if name in internal else name for name in reads)
