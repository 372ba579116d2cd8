"""Faults of windows, joins and tallies, put into correct histories as those of `damages` are."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import orjson

from tests.chaos.application import CLOSED_MS
from tests.chaos.damages import choose, deserves, last_of_key, remove
from tests.chaos.history import Place, Record
from tests.chaos.perfect import Draft


def _choose_where(
    draft: Draft, rng: random.Random, topic: str, suits: Callable[[Record], bool]
) -> tuple[Place, int]:
    return rng.choice(
        [
            (place, index)
            for place, log in draft.logs.items()
            if place.topic == topic
            for index, record in enumerate(log)
            if record.committed and suits(record)
        ]
    )


def _fields(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(record.value or b"{}")
    return found


def _change(draft: Draft, place: Place, index: int, value: bytes) -> None:
    draft.logs[place][index] = draft.logs[place][index]._replace(value=value)


def _recount(draft: Draft, rng: random.Random, by: int) -> None:
    place, index = choose(draft, rng, rng.choice(["closed-counts", "session-counts"]))
    count = int.from_bytes(draft.logs[place][index].value or b"", "big")
    _change(draft, place, index, (count + by).to_bytes(8, "big"))


@deserves("lost", "torn_transaction", caches=(False,))
def a_count_of_a_window_is_missing(draft: Draft, rng: random.Random) -> None:
    remove(draft, *choose(draft, rng, "window-counts"))


@deserves("lost", "torn_transaction")
def the_last_count_of_a_window_is_missing(draft: Draft, rng: random.Random) -> None:
    place, index = choose(draft, rng, "window-counts")
    remove(draft, place, last_of_key(draft, place, index))


@deserves("lost", "offset_without_output")
def a_closed_window_is_missing(draft: Draft, rng: random.Random) -> None:
    remove(draft, *choose(draft, rng, rng.choice(["closed-counts", "session-counts"])))


@deserves("lost")
def a_closed_window_lacks_an_order(draft: Draft, rng: random.Random) -> None:
    _recount(draft, rng, -1)


@deserves("doubled")
def a_closed_window_counts_an_order_twice(draft: Draft, rng: random.Random) -> None:
    _recount(draft, rng, 1)


@deserves("doubled")
def a_closed_window_comes_again(draft: Draft, rng: random.Random) -> None:
    place, index = choose(draft, rng, rng.choice(["closed-counts", "session-counts"]))
    record = draft.logs[place][index]
    draft.add(place, record.key or b"", record.value, record.timestamp)


@deserves("torn_transaction")
def a_window_comes_before_it_is_closed(draft: Draft, rng: random.Random) -> None:
    place, index = choose(draft, rng, "closed-counts")
    record = draft.logs[place][index]
    assert record.key is not None
    start = max(r.timestamp for log in draft.logs.values() for r in log) // CLOSED_MS * CLOSED_MS
    draft.add(place, record.key[:-8] + start.to_bytes(8, "big"), record.value, record.timestamp)


@deserves("out_of_sequence")
def a_closed_window_comes_too_late(draft: Draft, rng: random.Random) -> None:
    place, _ = choose(draft, rng, rng.choice(["closed-counts", "session-counts"]))
    log = draft.logs[place]
    there = [index for index, record in enumerate(log) if record.committed]
    if len(there) < 2:
        return a_closed_window_comes_too_late(draft, rng)
    one, other = there[0], there[-1]
    a, b = log[one], log[other]
    log[one], log[other] = b._replace(offset=a.offset), a._replace(offset=b.offset)
    return None


@deserves("lost", "torn_transaction", "offset_without_output")
def an_order_is_not_joined_with_its_account(draft: Draft, rng: random.Random) -> None:
    remove(draft, *_choose_where(draft, rng, "order-limits", lambda r: "n" in _fields(r)))


@deserves("lost", caches=(False,))
def an_order_misses_the_row_of_its_account(draft: Draft, rng: random.Random) -> None:
    found = _choose_where(draft, rng, "order-limits", lambda r: bool(_fields(r).get("row")))
    _change(draft, *found, orjson.dumps({**_fields(draft.logs[found[0]][found[1]]), "row": None}))


@deserves("out_of_sequence")
def an_order_meets_a_row_of_another_account(draft: Draft, rng: random.Random) -> None:
    found = _choose_where(draft, rng, "order-limits", lambda r: bool(_fields(r).get("row")))
    _change(draft, *found, orjson.dumps({**_fields(draft.logs[found[0]][found[1]]), "row": -1}))


@deserves("lost", "torn_transaction")
def an_order_is_not_joined_with_a_payment(draft: Draft, rng: random.Random) -> None:
    pair = _choose_where(draft, rng, "order-payments", lambda r: bool(_fields(r)["payment"]))
    remove(draft, *pair)


@deserves("doubled")
def an_order_meets_a_payment_twice(draft: Draft, rng: random.Random) -> None:
    place, index = choose(draft, rng, "order-payments")
    record = draft.logs[place][index]
    draft.add(place, record.key or b"", record.value, record.timestamp)


@deserves("out_of_sequence")
def an_order_is_alone_after_it_has_met_a_payment(draft: Draft, rng: random.Random) -> None:
    alone = {
        _fields(r)["n"]
        for place, log in draft.logs.items()
        if place.topic == "order-payments"
        for r in log
        if r.committed and _fields(r)["payment"] is None
    }
    place, index = _choose_where(
        draft,
        rng,
        "order-payments",
        lambda r: _fields(r)["payment"] is not None and _fields(r)["n"] not in alone,
    )
    record = draft.logs[place][index]
    value = orjson.dumps({"n": _fields(record)["n"], "payment": None})
    draft.add(place, record.key or b"", value, record.timestamp)


@deserves("doubled")
def an_order_meets_a_payment_of_another_time(draft: Draft, rng: random.Random) -> None:
    place, index = choose(draft, rng, "order-payments")
    record = draft.logs[place][index]
    value = orjson.dumps({"n": _fields(record)["n"], "payment": 1 << 50})
    draft.add(place, record.key or b"", value, record.timestamp)


@deserves("lost")
def a_tally_is_missing(draft: Draft, rng: random.Random) -> None:
    remove(draft, *choose(draft, rng, "tallies"))


@deserves("doubled")
def a_tally_comes_again(draft: Draft, rng: random.Random) -> None:
    place, index = choose(draft, rng, "tallies")
    record = draft.logs[place][index]
    draft.add(place, record.key or b"", record.value, record.timestamp)


@deserves("lost", "doubled")
def a_tally_counts_other_orders(draft: Draft, rng: random.Random) -> None:
    place, index = _choose_where(draft, rng, "tallies", lambda r: _fields(r)["count"] > 0)
    fields = _fields(draft.logs[place][index])
    _change(draft, place, index, orjson.dumps({**fields, "sum": fields["sum"] + 1}))


def _retotal(draft: Draft, rng: random.Random, by: int) -> None:
    place, index = choose(draft, rng, "tier-totals")
    index = last_of_key(draft, place, index)
    fields = _fields(draft.logs[place][index])
    more = {"joined": fields["joined"] + by, "limits": fields["limits"] + by}
    _change(draft, place, index, orjson.dumps({**fields, **more}))


@deserves("lost")
def a_tier_lacks_an_account(draft: Draft, rng: random.Random) -> None:
    _retotal(draft, rng, -1)


@deserves("doubled", caches=(False,))
def a_tier_counts_an_account_twice(draft: Draft, rng: random.Random) -> None:
    _retotal(draft, rng, 1)


@deserves("changelog_mismatch")
def a_row_of_a_window_is_wrong(draft: Draft, rng: random.Random) -> None:
    place = rng.choice([p for p in draft.changelogs if p.topic in ("windows", "closed", "sessions")
                        and any(r.value for r in draft.changelogs[p] if r.committed)])  # fmt: skip
    log = draft.changelogs[place]
    newest = {r.key: i for i, r in enumerate(log) if r.committed}
    index = rng.choice([i for i in newest.values() if log[i].value])
    log[index] = log[index]._replace(value=(12345).to_bytes(8, "big"))


@deserves("changelog_mismatch")
def a_row_that_was_let_go_is_there_still(draft: Draft, rng: random.Random) -> None:
    stores = ("held-sessions-store", "paid-left-shared-join-store", "sessions")
    log, index = rng.choice(
        [
            (log, index)
            for place, log in draft.changelogs.items()
            if place.topic in stores
            for index, record in enumerate(log)
            if record.committed and record.value is None
        ]
    )
    log[index] = log[index]._replace(value=b"again")
