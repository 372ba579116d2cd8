"""Exactly-once: windows and sessions, each change of the one kind and each result of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.chaos.application import (
    CLOSED_GRACE_MS,
    CLOSED_MS,
    SESSION_GAP_MS,
    SESSION_GRACE_MS,
    WINDOW_GRACE_MS,
    WINDOW_MS,
)
from tests.chaos.check_outputs import check_counted
from tests.chaos.expectations import Expected, read_count
from tests.chaos.history import History, Place
from tests.chaos.sequences import OrderJudge, by_key, compare
from tests.chaos.verdict import Findings, Kind
from tests.chaos.windowing import Span, Windows, closed, session_key, sessions, time_key, tumbling

SESSION_WAIT_MS = SESSION_GAP_MS + SESSION_GRACE_MS + 1
"""A session is closed once stream time is later than its end by the gap and the grace period."""


class Recounted(NamedTuple):
    """What the windows of one partition come to."""

    windows: Windows
    closed: Windows
    sessions: Windows


def recount_windows(expected: Expected) -> dict[int, Recounted]:
    """Fold the orders of each partition into all kinds of windows."""
    return {
        partition: Recounted(
            tumbling(orders, size_ms=WINDOW_MS, grace_ms=WINDOW_GRACE_MS),
            tumbling(orders, size_ms=CLOSED_MS, grace_ms=CLOSED_GRACE_MS),
            sessions(orders, gap_ms=SESSION_GAP_MS, grace_ms=SESSION_GRACE_MS),
        )
        for partition, orders in expected.orders.items()
    }


def final_results(recounted: Recounted) -> dict[str, dict[bytes, tuple[Span, int]]]:
    """What must have come out of closed windows, by topic and key, in its order."""
    return {
        "closed-counts": {
            time_key(span): (span, count)
            for span, count in closed(recounted.closed, CLOSED_GRACE_MS)
        },
        "session-counts": {
            session_key(span): (span, count)
            for span, count in closed(recounted.sessions, SESSION_WAIT_MS)
        },
    }


def check_windows(
    history: History, judge: OrderJudge, recounted: Mapping[int, Recounted], *, caches: bool
) -> None:
    """Each order is in its window once; each closed window is there once, with all its orders."""
    for partition, log in history.of("window-counts").items():
        place = Place("window-counts", partition)
        counted = recounted[partition].windows.counted if partition in recounted else {}
        wanted = {time_key(span): orders for span, orders in counted.items()}
        check_counted(place, by_key(log), wanted, judge, caches=caches)
    for topic in ("closed-counts", "session-counts"):
        for partition, log in history.of(topic).items():
            final = final_results(recounted[partition])[topic] if partition in recounted else {}
            found = [
                (record.offset, record.key or b"", read_count(record.value))
                for record in log.read_committed()
            ]
            _check_final(Place(topic, partition), found, final, judge.findings)


def _check_final(
    place: Place,
    found: Sequence[tuple[int, bytes, int]],
    final: Mapping[bytes, tuple[Span, int]],
    findings: Findings,
) -> None:
    differences = compare([(offset, key) for offset, key, _ in found], list(final), caches=False)
    for key in differences.missing:
        assert isinstance(key, bytes)
        span, count = final[key]
        findings.add("lost", str(place), f"{span}, with {count} orders, is closed and not there")
        detail = f"the committed offset has closed {span}, which is not in {place}"
        findings.add("offset_without_output", f"orders-{place.partition}", detail)
    for offset, key in differences.again:
        findings.add("doubled", f"{place}@{offset}", f"{key!r} is there again")
    for offset, key in differences.unknown:
        detail = f"{key!r} is no window that the committed offset has closed"
        findings.add("torn_transaction", f"{place}@{offset}", detail)
    for offset, key in differences.disordered:
        findings.add("out_of_sequence", f"{place}@{offset}", f"{key!r} comes too late")
    for offset, key, count in found:
        if key in final and count != final[key][1]:
            span, right = final[key]
            kind: Kind = "doubled" if count > right else "lost"
            findings.add(kind, f"{place}@{offset}", f"{span} has {count} orders; right is {right}")
