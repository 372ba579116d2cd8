"""Changelogs and local stores against the recount, against the outputs, against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from tests.chaos.check_kept import EXPIRES_AFTER_MS, LENGTHS_MS, row_time
from tests.chaos.expectations import Expected, read_count, read_total
from tests.chaos.history import History, Log, Place, StoreDump
from tests.chaos.sequences import Seen, by_key, is_subsequence
from tests.chaos.verdict import Findings

OUTPUT_OF = {"counts": "account-counts", "totals": "account-totals", "regions": "region-totals"}
"""The topic to which a store's every row goes."""
_RECOUNTED = (*OUTPUT_OF, "accounts")
"""The other stores are those of windows, joins and tallies: see `check_kept`."""


def check_changelogs(
    history: History, expected: Expected, findings: Findings, unread: set[int]
) -> None:
    """Check that each changelog ends with the recount, and says nothing that was not output."""
    for store in _RECOUNTED:
        right = dict(_recounted(store, expected, unread))
        seen: set[bytes] = set()
        for partition, log in history.changelog_of(store).items():
            found = by_key(log)
            place = Place(f"{store}-changelog", partition)
            rows = {key: right[key] for key in found if key in right}
            seen |= rows.keys()
            _check_rows(place, found, rows, store, findings)
            topic = OUTPUT_OF.get(store)
            if topic is not None:
                output = history.logs.get(Place(topic, partition), Log())
                _check_same_transactions(place, found, by_key(output), findings)
        for key in right.keys() - seen:
            if right[key] is not None:
                detail = f"there is no row of {key!r}; right is {right[key]!r}"
                findings.add("changelog_mismatch", f"{store}-changelog", detail)


def _recounted(store: str, expected: Expected, unread: set[int]) -> Iterator[tuple[bytes, object]]:
    """Yield the last row of each key, as `_comparable` reads it."""
    if store == "accounts":
        for changes in expected.changes.values():
            for key, history in changes.items():
                last = history[-1]
                yield key, None if last.value is None else (last.value, last.timestamp)
        return
    if store == "regions":
        for region, all_orders in expected.by_region.items():
            orders = [order for order in all_orders if order.n not in unread]
            if orders:
                # Which order is the last depends on how the partitions interleaved.
                yield region, (len(orders), sum(order.amount for order in orders))
        return
    for accounts in expected.by_account.values():
        for key, orders in accounts.items():
            if store == "counts":
                yield key, len(orders)
            else:
                total = sum(order.amount for order in orders)
                yield key, (len(orders), total, orders[-1].n)


def _comparable(store: str, value: bytes | None, timestamp: int) -> object:
    if value is None:
        return None
    if store == "accounts":
        return (value, timestamp)
    if store == "counts":
        return read_count(value)
    total = read_total(value)
    return tuple(total) if store == "totals" else (total.number, total.sum)


def _check_rows(
    place: Place,
    found: Mapping[bytes | None, Sequence[Seen]],
    right: Mapping[bytes, object],
    store: str,
    findings: Findings,
) -> None:
    for key, seen in found.items():
        last = seen[-1]
        row = _comparable(store, last.value, last.timestamp)
        wanted = right.get(key) if key is not None else None
        if row != wanted:
            detail = f"{key!r} ends with {row!r}; right is {wanted!r}"
            findings.add("changelog_mismatch", f"{place}@{last.offset}", detail)
        if store in OUTPUT_OF:
            _check_rising(place, key, seen, store, findings)


def _check_rising(
    place: Place, key: bytes | None, seen: Sequence[Seen], store: str, findings: Findings
) -> None:
    read = read_count if store == "counts" else lambda value: read_total(value).number
    for before, after in pairwise(seen):
        if read(after.value) <= read(before.value):
            detail = f"{key!r} went from {read(before.value)} to {read(after.value)}"
            findings.add("changelog_mismatch", f"{place}@{after.offset}", detail)


def _check_same_transactions(
    place: Place,
    changelog: Mapping[bytes | None, Sequence[Seen]],
    output: Mapping[bytes | None, Sequence[Seen]],
    findings: Findings,
) -> None:
    """A row and the output that says the same are committed together, so neither is alone."""
    for key in changelog.keys() | output.keys():
        rows = [seen.value for seen in changelog.get(key, ())]
        said = [seen.value for seen in output.get(key, ())]
        if rows[-1:] == said[-1:] and is_subsequence(rows, said):
            continue
        values = set(said)
        alone = [seen for seen in changelog.get(key, ()) if seen.value not in values]
        if alone:
            detail = f"row {alone[0].value!r} of {key!r} was committed without its output"
            findings.add("torn_transaction", f"{place}@{alone[0].offset}", detail)
        elif rows[-1:] != said[-1:]:
            detail = f"output {said[-1]!r} of {key!r} was committed without its row"
            findings.add("torn_transaction", str(place), detail)
        else:
            detail = f"rows of {key!r} are in another order than their outputs"
            findings.add("changelog_mismatch", str(place), detail)


def check_stores(history: History, findings: Findings) -> None:
    """Check that local rows are what the changelog says up to the position they claim."""
    dumps = [dump for dump in history.stores if dump.position is not None]
    findings.figures["stores without a position"] = len(history.stores) - len(dumps)
    behind = 0
    for dump in dumps:
        log = history.changelogs.get(Place(dump.store, dump.partition))
        if log is None:
            findings.add("store_mismatch", dump.where, f"{dump.store} has no changelog")
            continue
        behind += _check_store(dump, log, findings)
    findings.figures["stores behind their changelogs"] = behind
    if not dumps:
        return
    there = {Place(dump.store, dump.partition) for dump in dumps}
    for place, log in history.changelogs.items():
        if place not in there and any(log.committed):
            detail = "no directory has rows that say how far they are"
            findings.add("store_mismatch", f"{place}", detail)


def _check_store(dump: StoreDump, log: Log, findings: Findings) -> bool:
    """Check one store; returns whether its rows are older than the changelog's last."""
    assert dump.position is not None
    where = f"{dump.where} {dump.store}-{dump.partition}@{dump.position}"
    if dump.position > log.end:
        detail = f"claims an offset beyond the changelog's end {log.end}"
        findings.add("store_mismatch", where, detail)
    right: dict[bytes, tuple[int, bytes] | None] = {}
    later: set[bytes] = set()
    for record in log.read_committed():
        assert record.key is not None
        if record.offset >= dump.position:
            later.add(record.key)
        else:
            value = record.value
            right[record.key] = None if value is None else (record.timestamp, value)
    expired = _expired(dump.store, right)
    for key in right.keys() | dump.rows.keys():
        row, wanted = dump.rows.get(key), right.get(key)
        # The record of an old row may be compacted away, where there is a newer one.
        is_gone = (key not in right and key in later) or (row is None and key in expired)
        if row != wanted and not is_gone:
            findings.add("store_mismatch", where, f"{key!r} is {row!r}; right is {wanted!r}")
    return bool(later)


def _expired(store: str, rows: Mapping[bytes, object]) -> set[bytes]:
    """The rows that may be gone from a disk without a deletion: stream time is past them."""
    keep_ms = EXPIRES_AFTER_MS.get(store)
    if keep_ms is None or not rows:
        return set()
    # The record that made the latest row may be of any moment of its window.
    time = max(row_time(store, key) for key in rows) + LENGTHS_MS[store]
    return {key for key in rows if row_time(store, key) + keep_ms < time}
