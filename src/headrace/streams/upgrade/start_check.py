"""Looks, before internal topics are created, whether creating them would hide a loss.

Offsets that are gone are looked for first (see `headrace.streams.upgrade.lost_group`).

A changelog that is to be created while the group has read what its rows were made from is one that
was deleted, or that of a store which is called otherwise. What is deployed tells the two apart, and
so do the numbers of changelogs beside the offsets. Where neither is known, topics of the
application that the topology does not claim are all there is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from headrace.streams.config.config import StreamsConfig
from headrace.streams.deployed.deployed import GroupOffsets
from headrace.streams.deployed.deployment import Deployment, is_accepted
from headrace.streams.plan.changelog_identity import (
    committed_numbers,
    known_changelogs,
    lost_changelogs,
)
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.progress import RESET_MARK
from headrace.streams.plan.topic_errors import ChangelogLostError
from headrace.streams.plan.topic_plan import TopicPlan
from headrace.streams.plan.topics import TopicAdmin
from headrace.streams.seams.clients import Log, TopicPartition
from headrace.streams.seams.topic_facts import TopicFacts
from headrace.streams.start_errors import TopologyChangedError
from headrace.streams.upgrade.committed_records import CommittedRecords
from headrace.streams.upgrade.lost_group import LostGroup, OffsetsAt
from headrace.streams.upgrade.reset_plan import ApplicationTopics
from headrace.streams.upgrade.topic_owners import require_own_topics


class StartCheck:
    """See the module.

    Args:
        deployed: the version that started last, where it is known.
        described: reads the descriptions of other applications; None if there are none.
    """

    def __init__(
        self,
        config: StreamsConfig,
        plans: Sequence[SubPlan],
        offsets: OffsetsAt,
        records: CommittedRecords,
        deployed: Deployment | None,
        log: Log,
        *,
        described: GroupOffsets | None = None,
    ) -> None:
        self._described = described
        self.look_for_offsets = LostGroup(config, plans, offsets, records, deployed, log)
        self._group = config.application_id
        self._accepted = config.topology_change_accept
        self._plans = plans
        self._offsets = offsets
        self._deployed = deployed
        self._log = log

    def begin(
        self, admin: TopicAdmin, plan: TopicPlan, facts: Mapping[str, TopicFacts]
    ) -> frozenset[TopicPartition]:
        """Look at everything before a worker starts.

        Returns:
            The inputs without offsets of which it was said what follows.

        Raises:
            StateWithoutOffsetsError: the group's offsets are gone (see
            `headrace.streams.upgrade.lost_group`). ChangelogLostError, TopologyChangedError: see
            `__call__`. MisconfiguredTopicError: see `headrace.streams.upgrade.topic_owners`.
        """
        if self._described is not None:
            internal = [topic.name for topic in plan.internal]
            require_own_topics(self._group, internal, admin.groups(), self._described)
        told = self.look_for_offsets(admin, plan, facts)
        if plan.create:
            self(admin, plan)
        return told

    def __call__(self, admin: TopicAdmin, plan: TopicPlan) -> None:
        """Look at what is to be created.

        Raises:
            ChangelogLostError: changelogs were deleted.
            TopologyChangedError: topics of another topology are there, and it is not known which.
        """
        new = [topic.name for topic in plan.create]
        texts = self._texts_of_what_was_read(admin)
        read = [sub for sub in self._plans if texts.keys() & set(sub.topics.all_sources)]
        if not read:
            return
        # Another worker that starts now may have created them, and committed since.
        new = [name for name in new if name not in admin.describe(new)]
        had = self._had(read, texts, new)
        if had:
            # Their rows were committed, so these stores are not new, and none begins empty.
            raise ChangelogLostError(had)
        if self._deployed is None and new and self._are_unclaimed(admin, plan, new):
            return
        lost = [name for sub in read for name in self._lost(sub) if name in new]
        if lost:
            code = None if self._deployed is not None else _code("lost", lost)
            if code is not None and is_accepted(self._accepted, code):
                self._log.warning("stores_begin_empty", changelogs=lost)
                return
            raise ChangelogLostError(lost, code=code)

    def require_same(self, admin: TopicAdmin, facts: Mapping[str, TopicFacts]) -> None:
        """Compare the changelogs that are there with those that rows were written to.

        Tasks do so for themselves when they begin.

        Raises:
            ChangelogLostError: some were deleted and made anew.
        """
        texts = self._texts_of_what_was_read(admin)
        lost: dict[str, str] = {}
        for sub in self._plans:
            ids = {t: facts[t].topic_id for t in sub.changelogs.values() if t in facts}
            for values in committed_numbers(_of(sub, texts)):
                others = lost_changelogs(values, ids)
                lost |= {t: store for store, t in sub.changelogs.items() if t in others}
        if lost:
            raise ChangelogLostError(lost, stores=lost.values())

    def _texts_of_what_was_read(self, admin: TopicAdmin) -> dict[str, list[str]]:
        """By input: what stands beside offsets that were read, and not only where to begin."""
        inputs = {sub.id: sub.topics.all_sources for sub in self._plans}
        facts = admin.describe(dict.fromkeys(name for some in inputs.values() for name in some))
        places = [TopicPartition(n, p) for n, f in facts.items() for p in range(f.partitions)]
        committed = self._offsets.committed_at(self._group, places)
        texts: dict[str, list[str]] = {}
        for place, found in committed.items():
            if found.metadata and not found.metadata.startswith(RESET_MARK):
                texts.setdefault(place.topic, []).append(found.metadata)
        return texts

    @staticmethod
    def _had(
        read: Sequence[SubPlan], texts: Mapping[str, Sequence[str]], new: Sequence[str]
    ) -> list[str]:
        """Those of the new topics that were there when offsets were committed."""
        found = []
        for sub in read:
            changelogs = [name for name in sub.changelogs.values() if name in new]
            found += known_changelogs(committed_numbers(_of(sub, texts)), changelogs)
        return found

    def _lost(self, sub: SubPlan) -> list[str]:
        """The changelogs of a sub-topology that must have been there."""
        if self._deployed is None:
            return list(sub.changelogs.values())
        had = {s.name for s in self._deployed.stores if s.logged and not s.source}
        return [topic for store, topic in sub.changelogs.items() if store in had]

    def _are_unclaimed(self, admin: TopicAdmin, plan: TopicPlan, new: Sequence[str]) -> bool:
        """Whether there are topics that the topology does not claim, and that is accepted."""
        unclaimed = self._unclaimed(admin)
        if not unclaimed:
            return False
        code = _code("unclaimed", [*new, "", *unclaimed])
        if is_accepted(self._accepted, code):
            self._log.warning("topics_unclaimed", new=list(new), unclaimed=list(unclaimed))
            return True
        claimed = [topic.name for topic in plan.internal if topic.name not in new]
        what = (
            "the group has read its inputs, no description of what is deployed is known, and "
            "topics of the application are there that this topology does not use, while it would "
            "create others: a store or a step that is called otherwise begins empty. Give it the "
            "name that is deployed, reset the application, or accept it if the unclaimed topics "
            f"are of an older version, or of another application whose id begins with {self._group}"
        )
        lists = {"claimed": claimed, "new": new, "unclaimed": unclaimed}
        told = [f"{kind}: {', '.join(names) or 'none'}" for kind, names in lists.items()]
        raise TopologyChangedError([what, *told], code)

    def _unclaimed(self, admin: TopicAdmin) -> list[str]:
        """Internal topics of the application, by their names, without those of longer ids."""
        found = ApplicationTopics.of(self._plans).leftovers(self._group, admin.names())
        longer = [g for g in admin.groups() if g.startswith(f"{self._group}-")]
        return [name for name in found if not any(is_topic_of(g, name) for g in longer)]


def _of(sub: SubPlan, texts: Mapping[str, Sequence[str]]) -> list[str]:
    """The texts beside offsets of a sub-topology's inputs."""
    return [text for topic in sub.topics.all_sources for text in texts.get(topic, ())]


def is_topic_of(application_id: str, topic: str) -> bool:
    """Whether an internal topic can be one of an application.

    >>> is_topic_of("orders-eu", "orders-eu-counts-changelog")
    True
    >>> is_topic_of("orders-counts", "orders-counts-changelog")
    False
    """
    prefix = f"{application_id}-"
    rest = topic.removeprefix(prefix)
    return topic.startswith(prefix) and "-" in rest


def _code(kind: str, names: Iterable[str]) -> str:
    """A short name of what is to be accepted, for a setting that accepts this and nothing else."""
    return hashlib.sha256("\n".join((kind, *names)).encode()).hexdigest()[:8]
