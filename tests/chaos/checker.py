"""Judges what was observed of a run of `application`. Knows nothing of the system that made it.

Everything that an order leads to must be there once, in order, and in one transaction: its copies,
the counts and totals of its account and its region, the changelogs' rows, and the offset.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.application import OUTPUTS, REPARTITION, REPARTITIONS
from tests.chaos.check_answers import check_asked
from tests.chaos.check_at_least_once import check_at_least_once
from tests.chaos.check_joins import check_limits, check_payments
from tests.chaos.check_kept import check_kept
from tests.chaos.check_outputs import (
    check_changes,
    check_counts,
    check_echo,
    check_marks,
    check_totals,
)
from tests.chaos.check_reads import check_hanging, check_observed, check_offsets
from tests.chaos.check_regions import check_regions, check_repartition
from tests.chaos.check_state import check_changelogs, check_stores
from tests.chaos.check_tallies import check_tallies, check_tiers
from tests.chaos.check_windows import check_windows, recount_windows
from tests.chaos.expectations import Expected, recount
from tests.chaos.history import History
from tests.chaos.sequences import OrderJudge
from tests.chaos.verdict import Findings, Guarantee, Kind, Problem, Verdict

__all__ = ["Guarantee", "Kind", "Problem", "Verdict", "check"]


def check(history: History, *, guarantee: Guarantee, caches: bool, drained: bool = True) -> Verdict:
    """Say what is wrong with a history.

    Args:
        history: what was observed.
        guarantee: what the application promised. Under at-least-once what is there again is
            counted, and not wrong.
        caches: whether updates of a key waited for the commit, so that only the last must come.
        drained: whether all of the input was to be processed.
    """
    with _no_garbage_collection():
        return _check(history, guarantee, caches=caches, drained=drained)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Millions of tuples without a cycle: looking for one takes longer than the checks."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _check(history: History, guarantee: Guarantee, *, caches: bool, drained: bool) -> Verdict:
    findings = Findings(guarantee)
    expected = recount(history)
    _count(history, expected, findings)
    check_offsets(history, findings, drained=drained)
    check_hanging(history, findings)
    check_observed(history, findings)
    check_asked(history, findings, drained=drained)
    if guarantee == "at_least_once":
        check_at_least_once(history, expected, findings, caches=caches)
    else:
        judge = OrderJudge(expected, findings)
        check_repartition(history, judge)
        check_echo(history, judge)
        check_marks(history, judge)
        check_counts(history, judge, caches=caches)
        check_totals(history, judge, caches=caches)
        for topic in ("account-changes", "order-limits"):
            check_changes(history, judge, topic, caches=caches)
        check_regions(history, judge, caches=caches)
        recounted = recount_windows(expected)
        check_windows(history, judge, recounted, caches=caches)
        check_limits(history, judge, caches=caches)
        check_payments(history, judge)
        check_tallies(history, judge)
        check_tiers(history, expected, findings, caches=caches)
        _check_offsets_have_outputs(history, judge, caches=caches)
        check_changelogs(history, expected, findings, judge.unread)
        check_kept(history, expected, recounted, findings, caches=caches)
    check_stores(history, findings)
    return findings.verdict()


def _check_offsets_have_outputs(history: History, judge: OrderJudge, *, caches: bool) -> None:
    """What the committed offset is beyond has all of its outputs, or it is torn from them."""
    for n, lacking in judge.missing.items():
        order = judge.expected.known[n]
        where = f"orders-{order.partition}@{order.offset}"
        own = lacking - {"region-totals"}
        if own:
            detail = f"the committed offset is beyond order {n}; without it: {_names(own)}"
            judge.findings.add("offset_without_output", where, detail)
            there = _outputs(n, judge, caches=caches) - own
            if there:
                detail = f"order {n} is in {_names(there)} and not in {_names(own)}"
                judge.findings.add("torn_transaction", where, detail)
        elif lacking:
            detail = f"{REPARTITION} is read beyond order {n}, which is not in region-totals"
            judge.findings.add("offset_without_output", where, detail)


def _outputs(n: int, judge: OrderJudge, *, caches: bool) -> set[str]:
    """Where an order can be seen in the transaction that processes it."""
    found = {"echo", "order-limits"}
    if judge.sees_repartition:
        found.add(REPARTITION)
    if n % 10 == 0:
        found.add("account-changes")
    return found if caches else found | {"account-counts", "account-totals"}


def _names(topics: set[str]) -> str:
    return ", ".join(sorted(topics))


def _count(history: History, expected: Expected, findings: Findings) -> None:
    figures = findings.figures
    figures["orders"] = sum(map(len, expected.orders.values()))
    figures["orders not processed"] = len(expected.pending)
    figures["orders of aborted transactions"] = len(expected.aborted)
    figures["changes of accounts"] = sum(
        len(changes) for keys in expected.changes.values() for changes in keys.values()
    )
    figures["payments"] = sum(map(len, expected.payments.values()))
    figures["accounts"] = sum(map(len, expected.by_account.values()))
    figures["regions"] = len(expected.by_region)
    for topic in (*OUTPUTS, *REPARTITIONS):
        logs = history.of(topic).values()
        figures[f"records in {topic}"] = sum(sum(log.committed) for log in logs)
        figures[f"records in {topic}, aborted"] = sum(len(log) - sum(log.committed) for log in logs)
    figures["records in changelogs"] = sum(
        sum(log.committed) for log in history.changelogs.values()
    )
    figures["partitions"] = len(history.logs) + len(history.changelogs)
    figures["local stores"] = len(history.stores)
    figures["markers"] = len(history.markers)
    figures["records seen by the concurrent reader"] = sum(
        len(seen.offsets) for seen in history.observed.values()
    )
