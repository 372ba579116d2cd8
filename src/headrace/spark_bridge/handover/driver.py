"""Hands a backfill over in one transaction of the driver.

Executors have computed the rows and keep them; the driver streams them into a transaction: state
into changelogs, records into sinks, at last the offsets of the inputs. Nothing is visible before
the commit, so until then it can be begun anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.spark_bridge.cleanup import and_then
from headrace.spark_bridge.errors import BackfillError, CannotBackfillError
from headrace.spark_bridge.handover.clients import expected_ms
from headrace.spark_bridge.handover.lead import Lead, fenced
from headrace.spark_bridge.handover.report import HandOverReport
from headrace.spark_bridge.handover.request import Request
from headrace.spark_bridge.handover.rows import RowWriter
from headrace.spark_bridge.handover.target import Target
from headrace.spark_bridge.handover.units import RowFacts, UnitCounts
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.records import Results
from headrace.spark_bridge.run.stage_errors import said_of_results
from headrace.streams.plan.changelog_identity import with_changelogs
from headrace.streams.plan.progress import with_topic_id
from headrace.streams.seams.clients import CommittedOffset, Offsets, TopicPartition
from headrace.streams.worker_errors import AbortableError, OutcomeUnknownError, ProducerFencedError

ATTEMPTS_MAX = 3
"""How often the transaction is begun, where what went wrong may pass."""


_SLOW = "pass handover='partitioned', or raise the brokers' transaction.max.timeout.ms"


def driver_fits(facts: RowFacts, target: Target) -> bool:
    """Whether the brokers keep a transaction open for as long as the rows may take."""
    return expected_ms(facts.total, facts.size) <= target.transaction_timeout_ms()


def hand_over_by_driver(
    results: Results, request: Request, facts: RowFacts | None = None
) -> HandOverReport:
    """Write everything in one transaction.

    Raises:
        CannotBackfillError: the application or its topics are not ready for it; nothing is visible.
        BackfillError: it did not come to its end; nothing is visible.
    """
    begun = time.monotonic()
    facts = facts or RowFacts.of(results)
    target = request.target
    timeout_ms = target.transaction_timeout_ms()
    if not driver_fits(facts, target):
        raise CannotBackfillError(
            f"{facts.total} rows of {facts.size} bytes may take "
            f"{expected_ms(facts.total, facts.size)} ms, and the brokers abort transactions after "
            f"{timeout_ms} ms; {_SLOW}"
        )
    prepare_topics_for(request, facts)
    lead = Lead(target, results.plan.id, timeout_ms=timeout_ms, probe=request.probe)
    try:
        with and_then(lambda: lead.producer.close(), quietly=True):
            lead.open(results.plan, request.terms("driver"))
            counts = _OneTransaction(lead, request, results, facts.largest).repeat()
    except ProducerFencedError as error:
        way_out = f". If it took more than {timeout_ms} ms, {_SLOW}"
        raise fenced(results.plan.id, error, way_out) from error
    return HandOverReport("driver", counts, seconds=time.monotonic() - begun)


def prepare_topics_for(request: Request, facts: RowFacts) -> None:
    """See that topics keep what is about to be written, before anything is.

    Raises:
        CannotBackfillError: one would not.
    """
    if request.with_sinks:
        request.target.refuse_short_sinks(facts.oldest("sink"))
    request.target.protect_windows(facts.oldest("changelog"))


def live_offsets(
    target: Target, plan: BackfillPlan, progress: Mapping[TopicPartition, str]
) -> Offsets:
    """What the application begins from: every input partition with what tasks know of it.

    Raises:
        BackfillError: a task has said nothing.
    """
    ends = target.ends(plan)
    silent = sorted(ends.keys() - progress.keys())
    if silent:
        raise BackfillError(
            f"no task has told its progress for {', '.join(map(str, silent[:3]))}: not all rows "
            "of the backfill are there; run it again with the same id"
        )
    ids = plan.topic_ids
    changelogs = {
        topic: {name: ids[name] for name in sub.changelogs.values() if name in ids}
        for sub in target.application.plans.values()
        for topic in sub.topics.all_sources
    }
    texts = {
        place: with_topic_id(progress[place], place.topic, ids.get(place.topic)) for place in ends
    }
    return {
        place: CommittedOffset(end, with_changelogs(texts[place], changelogs[place.topic]))
        for place, end in ends.items()
    }


@dataclass(slots=True, eq=False)
class _OneTransaction:
    """The transaction, as often as it is begun."""

    lead: Lead
    request: Request
    results: Results
    largest: int
    counts: UnitCounts = field(default_factory=UnitCounts)

    def repeat(self) -> UnitCounts:
        """Write and commit; begin anew after errors that may pass.

        Raises:
            BackfillError: it failed for good. The plan is not open any more, unless the message
                says so.
        """
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return self._write()
            except (AbortableError, OutcomeUnknownError) as error:
                self.request.target.log.warning(
                    "handover_repeated", attempt=attempt, reason=str(error)
                )
                if self.lead.renew():
                    return self.counts
                if attempt == ATTEMPTS_MAX:
                    self._give_up(error)
                    raise BackfillError(
                        f"the transaction of backfill {self.results.plan.id} failed {attempt} "
                        f"times, at last with: {error}; nothing is visible: see that the brokers "
                        "are well, and run it again"
                    ) from error
            except ProducerFencedError:
                raise
            except BaseException as error:
                self._give_up(error)
                raise
        raise AssertionError("unreachable")

    def _give_up(self, error: BaseException) -> None:
        """Let the application start: nothing of the backfill is there."""
        try:
            # Its note is gone where it was at a topic that was deleted.
            if self.lead.renew() or self.lead.notes.open_head is None:
                return
            self.lead.close_with("dropped")
        except Exception as second:
            raise BackfillError(
                f"{error}; nothing is visible, but backfill {self.results.plan.id} is still open "
                f"({second}): run it again with the same id, or drop it"
            ) from error

    def _next(self, batches: Iterator[Any]) -> Any:
        """The next rows: what fails here is Spark's, and what fails in the writer is Kafka's."""
        with said_of_results():
            return next(batches, None)

    def _write(self) -> UnitCounts:
        plan, producer = self.results.plan, self.lead.producer
        request, target = self.request, self.request.target
        old = target.old_keys(target.changelogs(plan), reset=request.reset)
        producer.begin()
        now_ms = target.now_ms()
        writer = RowWriter(producer, with_sinks=request.with_sinks, old=old, now_ms=now_ms)
        self.counts = writer.counts
        batches = self.results.batches(self.largest)
        while (batch := self._next(batches)) is not None:
            writer.write(batch)
        writer.forget_old(sorted(old))
        producer.pressure(self.lead.timeout_s)
        request.probe("handover_written")
        live = live_offsets(target, plan, writer.progress)
        self.lead.finish(plan, live, reset=request.reset, begun=True)
        return writer.counts
