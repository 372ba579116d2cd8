"""Archives of a backfill: the DataFrames that its history comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal

from headrace.spark_bridge.cleanup import and_then
from headrace.spark_bridge.errors import CannotBackfillError
from headrace.spark_bridge.history.archive_cuts import Cutover, ReadRange, check_cutover, cuts_of
from headrace.spark_bridge.history.archive_facts import (
    EVERYWHERE,
    ArchiveFacts,
    refuse_implausible_times,
    refuse_other_archive,
)
from headrace.spark_bridge.history.planning import InputEnds, Until
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.topics import describe_as

Times = Literal["check", "trust"]
"""Whether implausible timestamps are rejected."""

Source = Mapping[str, Any] | None
"""DataFrames by topic."""


@dataclass(frozen=True, slots=True)
class ArchiveSet:
    """Archives of a backfill.

    Args:
        facts: statistics of each archive, in the same order.
        cuts: first offset to read from Kafka after the archives.
    """

    archives: Sequence[Any] = ()
    facts: Sequence[ArchiveFacts] = ()
    cuts: Mapping[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        source: Source,
        application: Any,
        admin: Any,
        cutover: Cutover | None,
        plan: BackfillPlan | None,
        times: Times = "check",
    ) -> ArchiveSet:
        """Check the frames, and find the first offsets to read from Kafka after them."""
        from headrace.spark_bridge.history.archive_packs import open_archive

        if source is None:
            if cutover is not None:
                raise CannotBackfillError("cutover= says where Kafka goes on behind source=")
            cls._refuse_others({}, plan)
            return cls()
        cls._refuse_topics(source, application)
        cls._refuse_others(source, plan)
        described = describe_as(admin, source)
        partitions = {name: facts.partitions for name, facts in described.items()}
        missing = sorted(source.keys() - partitions.keys())
        if missing:
            raise CannotBackfillError(
                f"topic {missing[0]} does not exist; create it, as the live application will read "
                "it"
            )
        tps = [TopicPartition(t, p) for t in source for p in range(partitions[t])]
        check_cutover(cutover, tps)
        archives = [open_archive(t, frame, partitions[t]) for t, frame in source.items()]
        starts = None if plan is None else plan.starts
        found = [_facts(archive, starts) for archive in archives]
        cuts: dict[TopicPartition, int] = {}
        for facts in found:
            if times == "check":
                refuse_implausible_times(facts)
            if plan is not None:
                refuse_other_archive(plan, facts)
                cuts.update({p: at for p, at in plan.starts.items() if p.topic == facts.topic})
            else:
                mine = cutover
                if isinstance(cutover, Mapping):
                    mine = {p: at for p, at in cutover.items() if p[0] == facts.topic} or None
                read = _reader(application)
                ends = InputEnds(admin, committed=application.config.reads_committed)
                cuts.update(cuts_of(facts, partitions[facts.topic], ends, read, mine))
        return cls(archives, found, cuts)

    @staticmethod
    def _refuse_topics(source: Any, application: Any) -> None:
        """Raise if an archive is not of a source topic, or is of a table's changelog."""
        from headrace.spark_bridge.run.refusals import refuse_reused

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
        refuse_reused(source, application)

    @staticmethod
    def _refuse_others(source: Mapping[str, Any], plan: BackfillPlan | None) -> None:
        """Raise if a second attempt gets archives of other topics than the first attempt."""
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

    def ended(self, plan: BackfillPlan, until: Until) -> BackfillPlan:
        """Check that archives can end at the plan's ends, and return the plan with their facts.

        An archive is scanned again only if the plan cuts it.
        """
        rows = {}
        for archive, whole in zip(self.archives, self.facts, strict=True):
            tps = [TopicPartition(archive.topic, p) for p in range(archive.partitions)]
            short = [tp for tp in tps if plan.starts[tp] < self.cuts[tp]]
            if short and not archive.has_offsets:
                raise CannotBackfillError(
                    f"until= ends {short[0]} at offset {plan.ends[short[0]]}, and Kafka goes on "
                    f"at {self.cuts[short[0]]} behind an archive that has no offsets by which it "
                    "could be cut; leave the records behind the end out of it, and give the end as "
                    "cutover="
                )
            is_cut = whole.goes_beyond(plan.starts)
            facts = _facts(archive, plan.starts) if is_cut else whole
            if isinstance(until, datetime):
                _refuse_left_out(facts, int(until.timestamp() * 1000))
            rows.update(facts.kept)
        return replace(plan, archived_rows=rows) if self.archives else plan

    def numbered(self, job: Any, plan: BackfillPlan) -> tuple[list[Any], dict[TopicPartition, Any]]:
        """Return the records before the plan's ends as packs, and facts of each partition."""
        from headrace.spark_bridge.history.archive_packs import numbered
        from headrace.spark_bridge.run.stage_errors import archive_error

        frames: list[Any] = []
        known = {}
        for archive in self.archives:
            try:
                frame, facts = numbered(archive, plan.starts, job)
            except Exception as error:
                with and_then(*[frame.unpersist for frame in frames], quietly=True):
                    raise archive_error(archive.topic, error) from error
            frames.append(frame)
            known.update(facts)
        return frames, known


def _facts(archive: Any, ends: Mapping[TopicPartition, int] | None) -> ArchiveFacts:
    from headrace.spark_bridge.history.archive_packs import look_into
    from headrace.spark_bridge.run.stage_errors import archive_error

    try:
        return look_into(archive, ends)
    except CannotBackfillError:
        raise
    except Exception as error:
        raise archive_error(archive.topic, error) from error


def _reader(application: Any) -> ReadRange:
    from headrace.spark_bridge.read import consumer_opener, read_range

    config = application.config
    timeout_s = config.task_timeout_ms / 1000
    return partial(
        read_range, consumer_opener(config, committed=config.reads_committed), timeout_s=timeout_s
    )


def _refuse_left_out(facts: ArchiveFacts, until_ms: int) -> None:
    for partition, part in facts.parts.items():
        if part.latest is not None and part.latest >= until_ms:
            tp = TopicPartition(facts.topic, partition)
            raise CannotBackfillError(
                "until= leaves records to the live application that Kafka does not have any more, "
                f"such as one of {facts.topic if partition == EVERYWHERE else tp} at "
                f"{part.latest} ms in the archive; take a later time, or give offsets"
            )
