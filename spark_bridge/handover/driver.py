"""Hands a backfill over in one transaction of the driver.

Executors have computed the rows and keep them; the driver streams them into a transaction: state
into changelogs, records into sinks, at last the offsets of the inputs. Nothing is visible before
the commit, so until then it can be begun anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.spark_bridge.cleanup import and_then
from headrace.spark_bridge.errors import BackfillError, CannotBackfillError
from headrace.spark_bridge.handover.clients import expected_ms
from headrace.spark_bridge.handover.lead import Lead, fenced
from headrace.spark_bridge.handover.notes import Terms
from headrace.spark_bridge.handover.report import HandOverReport
from headrace.spark_bridge.handover.rows import RowWriter
from headrace.spark_bridge.handover.target import Target
from headrace.spark_bridge.handover.units import RowFacts, UnitCounts
from headrace.spark_bridge.plan.job import Application
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.records.records import Results
from headrace.spark_bridge.run.stage_errors import said_of_results
from headrace.streams.plan.changelog_identity import with_changelogs
from headrace.streams.plan.progress import with_topic_id
from headrace.streams.seams.clients import CommittedOffset, Offsets, Probe, TopicPartition, no_probe
from headrace.streams.worker_errors import AbortableError, OutcomeUnknownError, ProducerFencedError

__all__ = ["driver_fits", "hand_over_by_driver", "live_offsets"]

ATTEMPTS_MAX = 3
"""How often the transaction is begun, where what went wrong may pass."""


_SLOW = "pass handover='partitioned', or raise the brokers' transaction.max.timeout.ms"


def driver_fits(facts: RowFacts, target: Target) -> bool:
    """Whether the brokers keep a transaction open for as long as the rows may take."""
    return expected_ms(facts.total, facts.size) <= target.transaction_timeout_ms()


def hand_over_by_driver(
    results: Results,
    application: Application,
    *,
    outputs: str = "write",
    reset: bool = False,
    facts: RowFacts | None = None,
    target: Target | None = None,
    probe: Probe = no_probe,
) -> HandOverReport:
    """Write everything in one transaction.

    Args:
        outputs: "write" or "skip" the records for topics outside of the application.
        reset: replace what the application has.
        facts: of the results, where they are known.
        target: the application on its cluster; None takes the real one.
        probe: called between the steps, for tests.

    Raises:
        CannotBackfillError: the application or its topics are not ready for it; nothing is visible.
        BackfillError: it did not come to its end; nothing is visible.
    """
    begun = time.monotonic()
    facts = facts or RowFacts.of(results)
    target = target or Target.live(application)
    timeout_ms = target.transaction_timeout_ms()
    if not driver_fits(facts, target):
        raise CannotBackfillError(
            f"{facts.total} rows of {facts.size} bytes may take "
            f"{expected_ms(facts.total, facts.size)} ms, and the brokers abort transactions after "
            f"{timeout_ms} ms; {_SLOW}"
        )
    prepare_topics_for(target, facts, outputs=outputs)
    lead = Lead(target, results.plan.id, timeout_ms=timeout_ms, probe=probe)
    try:
        with and_then(lambda: lead.producer.close(), quietly=True):
            lead.open(results.plan, Terms("driver", outputs, reset))
            work = _OneTransaction(
                lead, target, results, probe, outputs == "write", reset, facts.largest
            )
            counts = work.repeat()
    except ProducerFencedError as error:
        way_out = f". If it took more than {timeout_ms} ms, {_SLOW}"
        raise fenced(results.plan.id, error, way_out) from error
    return HandOverReport("driver", counts, seconds=time.monotonic() - begun)


def prepare_topics_for(target: Target, facts: RowFacts, *, outputs: str) -> None:
    """See that topics keep what is about to be written, before anything is.

    Raises:
        CannotBackfillError: one would not.
    """
    if outputs == "write":
        target.refuse_short_sinks(facts.oldest("sink"))
    target.protect_windows(facts.oldest("changelog"))


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


class _OneTransaction:
    """The transaction, as often as it is begun."""

    def __init__(
        self,
        lead: Lead,
        target: Target,
        results: Results,
        probe: Probe,
        with_sinks: bool,
        reset: bool,
        largest: int,
    ) -> None:
        self._largest = largest
        self._lead = lead
        self._target = target
        self._results = results
        self._probe = probe
        self._with_sinks = with_sinks
        self._reset = reset
        self._counts = UnitCounts()

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
                self._target.log.warning("handover_repeated", attempt=attempt, reason=str(error))
                if self._lead.renew():
                    return self._counts
                if attempt == ATTEMPTS_MAX:
                    self._give_up(error)
                    raise BackfillError(
                        f"the transaction of backfill {self._results.plan.id} failed {attempt} "
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
            if self._lead.renew() or self._lead.notes.open_head is None:
                return
            self._lead.close_with("dropped")
        except Exception as second:
            raise BackfillError(
                f"{error}; nothing is visible, but backfill {self._results.plan.id} is still open "
                f"({second}): run it again with the same id, or drop it"
            ) from error

    def _next(self, batches: Iterator[Any]) -> Any:
        """The next rows: what fails here is Spark's, and what fails in the writer is Kafka's."""
        with said_of_results():
            return next(batches, None)

    def _write(self) -> UnitCounts:
        plan, producer = self._results.plan, self._lead.producer
        old = self._target.old_keys(self._target.changelogs(plan), reset=self._reset)
        producer.begin()
        writer = RowWriter(
            producer, with_sinks=self._with_sinks, old=old, now_ms=self._target.now_ms()
        )
        self._counts = writer.counts
        batches = self._results.batches(self._largest)
        while (batch := self._next(batches)) is not None:
            writer.write(batch)
        writer.forget_old(sorted(old))
        producer.pressure(self._lead.timeout_s)
        self._probe("handover_written")
        live = live_offsets(self._target, plan, writer.progress)
        self._lead.finish(plan, live, reset=self._reset, begun=True)
        return writer.counts
