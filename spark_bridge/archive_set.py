"""The DataFrames that a backfill's history comes from, all together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_bridge.errors import CannotBackfillError
from spark_bridge.plan import BackfillPlan
from spark_bridge.planning import Until
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
            cls._refuse_others({}, plan)
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
        cls._refuse_others(source, plan)
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

    @staticmethod
    def _refuse_others(source: Mapping[str, Any], plan: BackfillPlan | None) -> None:
        """See that a second attempt has what the first one was planned with."""
        if plan is None or set(plan.archived) == set(source):
            return
        planned = "was planned without archives"
        if plan.archived:
            planned = f"begins with archives of {', '.join(plan.archived)}"
        raise CannotBackfillError(
            f"backfill {plan.id} {planned}, and is now given "
            f"{', '.join(sorted(source)) or 'none'}; give the same source= (--source) again, or "
            "drop it"
        )

    def refuse_end(self, plan: BackfillPlan, until: Until) -> None:
        """See that archives can end where the plan does.

        Raises:
            CannotBackfillError: one would have to be cut and has no offsets, or has records that
                are the live application's and are not in Kafka any more.
        """
        from spark_bridge.archives import first_left_out

        for archive in self.archives:
            places = [
                TopicPartition(archive.topic, p) for p in range(self.partitions[archive.topic])
            ]
            short = [place for place in places if plan.starts[place] < self.cuts[place]]
            if short and not archive.has_offsets:
                raise CannotBackfillError(
                    f"until= ends {short[0]} at offset {plan.ends[short[0]]}, and Kafka goes on "
                    f"at {self.cuts[short[0]]} behind an archive that has no offsets by which it "
                    "could be cut; leave the records behind the end out of it, and give the end as "
                    "cutover="
                )
            if isinstance(until, datetime):
                lost = first_left_out(archive, plan.starts, int(until.timestamp() * 1000))
                if lost is not None:
                    place, timestamp_ms = lost
                    raise CannotBackfillError(
                        f"until= leaves records to the live application that Kafka does not have "
                        f"any more, such as one of {place} at {timestamp_ms} ms in the archive; "
                        "take a later time, or give offsets"
                    )

    def numbered(self, job: Any, plan: BackfillPlan) -> tuple[list[Any], dict[TopicPartition, Any]]:
        """Return their records as packs, and what is known of each input partition.

        Args:
            job: any stage of the backfill.
            plan: of the backfill; what is behind its ends is left out.

        Raises:
            BackfillError: their records are not as they are to be.
        """
        from spark_bridge.archives import numbered
        from spark_bridge.stage_errors import archive_error

        frames, known = [], {}
        for archive in self.archives:
            try:
                frame, facts = numbered(archive, self.partitions[archive.topic], plan.starts, job)
            except Exception as error:
                raise archive_error(archive.topic, error) from error
            frames.append(frame)
            known.update(facts)
        return frames, known
