"""The DataFrames that a backfill's history comes from, all together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_bridge.errors import CannotBackfillError
from spark_bridge.plan import BackfillPlan
from streams.clients import TopicPartition

__all__ = ["ArchiveSet", "Cutover", "Source"]

Cutover = Mapping[TopicPartition, int] | datetime
"""Where Kafka goes on: at offsets, or at the first records that are not older than a time."""

Source = Mapping[str, Any] | None
"""DataFrames by topic."""


@dataclass(frozen=True, slots=True)
class ArchiveSet:
    """The DataFrames that history comes from."""

    archives: Sequence[Any]
    partitions: Mapping[str, int]
    cuts: Mapping[TopicPartition, int]

    @classmethod
    def open(
        cls,
        source: Source,
        application: Any,
        admin: Any,
        cutover: Cutover | None,
        plan: BackfillPlan | None,
    ) -> ArchiveSet:
        """Look at the DataFrames, and find out where Kafka goes on behind them.

        Args:
            source: as for `backfill`.
            application: what is to run.
            admin: the cluster.
            cutover: as for `backfill`.
            plan: one that was made before; it says where Kafka goes on.

        Raises:
            CannotBackfillError: they are not the history of what the topology reads.
        """
        from spark_bridge.archives import cuts_of, open_archive

        if source is None:
            if cutover is not None:
                raise CannotBackfillError("cutover= says where Kafka goes on behind source=")
            return cls((), {}, {})
        if not isinstance(source, Mapping):
            raise CannotBackfillError(
                f"source={source!r}: give a mapping from topics to DataFrames, or leave it out to "
                "read Kafka"
            )
        read = {t for sub in application.plans.values() for t in sub.topics.sources}
        unknown = sorted(source.keys() - read)
        if unknown:
            raise CannotBackfillError(
                f"source= names {', '.join(unknown)}, and the topology reads "
                f"{', '.join(sorted(read))}"
            )
        partitions = {name: facts.partitions for name, facts in admin.describe(source).items()}
        found, cuts = [], {}
        for topic, frame in source.items():
            if topic not in partitions:
                raise CannotBackfillError(
                    f"topic {topic} does not exist; create it, as the live application will read it"
                )
            archive = open_archive(topic, frame, partitions[topic])
            found.append(archive)
            if plan is not None:
                cuts.update({p: at for p, at in plan.starts.items() if p.topic == topic})
            else:
                mine = cutover
                if isinstance(cutover, Mapping):
                    mine = {p: at for p, at in cutover.items() if p[0] == topic} or None
                cuts.update(cuts_of(archive, partitions[topic], admin, mine))
        return cls(found, partitions, cuts)

    def numbered(self, job: Any) -> tuple[list[Any], dict[TopicPartition, Any]]:
        """Return their records as packs, and what is known of each input partition.

        Args:
            job: any stage of the backfill.
        """
        from spark_bridge.archives import numbered

        frames, known = [], {}
        for archive in self.archives:
            frame, facts = numbered(archive, self.partitions[archive.topic], self.cuts, job)
            frames.append(frame)
            known.update(facts)
        return frames, known
