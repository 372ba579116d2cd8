"""Exactly-once: the changelogs of windows, joins and tallies against the recount."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from tests.chaos.application import (
    CLOSED_GRACE_MS,
    CLOSED_MS,
    SESSION_GAP_MS,
    SESSION_GRACE_MS,
    WINDOW_GRACE_MS,
    WINDOW_MS,
)
from tests.chaos.check_joins import recount_joins, unsettled
from tests.chaos.check_tallies import is_all_read, is_same_tier, read_tier, recount_tiers
from tests.chaos.check_windows import SESSION_WAIT_MS, Recounted
from tests.chaos.expectations import Expected, read_count
from tests.chaos.history import History, Log, Place
from tests.chaos.sequences import Seen, by_key
from tests.chaos.verdict import Findings
from tests.chaos.windowing import Span, Windows, closed, session_key, time_key

EXPIRES_AFTER_MS = {
    "windows": WINDOW_MS + WINDOW_GRACE_MS,
    "closed": CLOSED_MS + CLOSED_GRACE_MS,
    "sessions": SESSION_GAP_MS + SESSION_GRACE_MS,
}
"""How far stream time is past a row's own time when the row may be gone."""

LENGTHS_MS = {"windows": WINDOW_MS, "closed": CLOSED_MS, "sessions": 0}
"""How much later than its row's time the records of a row are at most."""


def row_time(store: str, key: bytes) -> int:
    """The time of a row that expires: a window's start, a session's end."""
    at = key[-16:-8] if store == "sessions" else key[-12:-4]
    return int.from_bytes(at, "big")


def check_kept(
    history: History,
    expected: Expected,
    recounted: Mapping[int, Recounted],
    findings: Findings,
    *,
    caches: bool,
) -> None:
    """Check that the rows of each partition are those of the orders and payments that count."""
    for partition, windows in recounted.items():
        logs = {place.topic: log for place, log in history.changelogs.items()
                if place.partition == partition}  # fmt: skip
        _check_windows(partition, logs, windows, findings)
        _check_joins(partition, logs, expected, findings)
    if is_all_read(history):
        _check_tiers(history, expected, findings, caches=caches)


def _check_windows(
    partition: int, logs: Mapping[str, Log], recounted: Recounted, findings: Findings
) -> None:
    for store, windows, key_of in (
        ("windows", recounted.windows, lambda span: time_key(span) + bytes(4)),
        ("closed", recounted.closed, lambda span: time_key(span) + bytes(4)),
        ("sessions", recounted.sessions, session_key),
    ):
        right = {key_of(span): (span, len(of_one)) for span, of_one in windows.counted.items()}
        _check_counts(Place(f"{store}-changelog", partition), store, logs, right, windows, findings)
    ended = {session_key(span) for span, _ in closed(recounted.sessions, SESSION_WAIT_MS)}
    held = {session_key(span) for span in recounted.sessions.counted} - ended
    place = Place("held-sessions-store-changelog", partition)
    _check_same_keys(place, _rows(logs, "held-sessions-store"), held, findings)


def _rows(logs: Mapping[str, Log], store: str) -> dict[bytes | None, Seen]:
    """The last row of each key, deletions left out."""
    last = {key: seen[-1] for key, seen in by_key(logs.get(store, Log())).items()}
    return {key: one for key, one in last.items() if one.value is not None}


def _check_counts(
    place: Place,
    store: str,
    logs: Mapping[str, Log],
    right: Mapping[bytes, tuple[Span, int]],
    windows: Windows,
    findings: Findings,
) -> None:
    rows = _rows(logs, store)
    for key, seen in rows.items():
        span, count = right.get(key or b"", (None, 0))
        if read_count(seen.value) != count:
            detail = f"{span or repr(key)} ends with {read_count(seen.value)}; right is {count}"
            findings.add("changelog_mismatch", f"{place}@{seen.offset}", detail)
    for key, (span, count) in right.items():
        # What came and expired between two commits was never written.
        is_kept = row_time(store, key) + EXPIRES_AFTER_MS[store] > windows.time
        if is_kept and key not in rows:
            detail = f"there is no row of {span}; right is {count}"
            findings.add("changelog_mismatch", str(place), detail)


def _check_joins(
    partition: int, logs: Mapping[str, Log], expected: Expected, findings: Findings
) -> None:
    for store, records in (
        ("paid-this-join-store", expected.orders[partition]),
        ("paid-outer-other-join-store", expected.payments[partition]),
    ):
        wanted = Counter((one.key, one.timestamp) for one in records)
        kept = Counter(((k or b"")[:-12], row_time(store, k or b"")) for k in _rows(logs, store))
        place = Place(f"{store}-changelog", partition)
        for key, time in wanted - kept:
            findings.add("changelog_mismatch", str(place), f"{key!r} of {time} is not kept")
        for key, time in kept - wanted:
            findings.add("changelog_mismatch", str(place), f"{key!r} of {time} is one too many")
    waiting = {
        time.to_bytes(8, "big") + key for time, key in unsettled(recount_joins(expected, partition))
    }
    store = "paid-left-shared-join-store"
    found = ((key or b"")[:8] + (key or b"")[9:] for key in _rows(logs, store))
    _check_same_keys(Place(f"{store}-changelog", partition), found, waiting, findings)


def _check_same_keys(
    place: Place,
    found: Iterable[bytes | None],
    right: Collection[bytes],
    findings: Findings,
) -> None:
    there = set(found)
    for key in there - set(right):
        findings.add("changelog_mismatch", str(place), f"the row of {key!r} should be gone")
    for key in set(right) - there:
        findings.add("changelog_mismatch", str(place), f"there is no row of {key!r}")


def _check_tiers(history: History, expected: Expected, findings: Findings, *, caches: bool) -> None:
    right = recount_tiers(expected)
    for partition, log in history.changelog_of("tiers").items():
        for tier, seen in by_key(log).items():
            row, wanted = read_tier(seen[-1].value), right.get(tier or b"")
            if wanted is None or not is_same_tier(row, wanted, caches=caches):
                where = f"tiers-changelog-{partition}@{seen[-1].offset}"
                findings.add("changelog_mismatch", where, f"{row} of {tier!r}; right is {wanted}")
