"""Faults that are put into correct histories: one function each, and the kinds that it deserves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson

from tests.chaos.application import STORES
from tests.chaos.check_kept import EXPIRES_AFTER_MS
from tests.chaos.check_state import OUTPUT_OF
from tests.chaos.history import Place, Record
from tests.chaos.perfect import Draft
from tests.chaos.verdict import Kind

Damage = Callable[[Draft, random.Random], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A damage and what the checker must say of it.

    Args:
        name: of the damage.
        kinds: must all be named.
        damage: changes the draft.
        caches: the modes in which the damage is one.
    """

    name: str
    kinds: frozenset[Kind]
    damage: Damage
    caches: tuple[bool, ...]


CASES: list[Case] = []


def deserves(*kinds: Kind, caches: tuple[bool, ...] = (False, True)) -> Callable[[Damage], Damage]:
    """Register a damage."""

    def register(damage: Damage) -> Damage:
        CASES.append(Case(damage.__name__, frozenset(kinds), damage, caches))
        return damage

    return register


def choose(draft: Draft, rng: random.Random, topic: str) -> tuple[Place, int]:
    """A committed record of a topic: its place, and its index in the log."""
    records = [
        (place, index)
        for place, log in draft.logs.items()
        if place.topic == topic
        for index, record in enumerate(log)
        if record.committed
    ]
    return rng.choice(records)


def remove(draft: Draft, place: Place, index: int) -> Record:
    """Remove a record from a log, and from what the concurrent reader saw of it."""
    record = draft.logs[place].pop(index)
    if place in draft.observed:
        draft.observed[place] = [s for s in draft.observed[place] if s[0] != record.offset]
    return record


def last_of_key(draft: Draft, place: Place, index: int) -> int:
    log = draft.logs[place]
    key = log[index].key
    return max(i for i, record in enumerate(log) if record.committed and record.key == key)


def _swap(log: list[Record], one: int, other: int) -> None:
    a, b = log[one], log[other]
    log[one] = b._replace(offset=a.offset)
    log[other] = a._replace(offset=b.offset)


# -- lost ---------------------------------------------------------------------------------------


@deserves("lost", "torn_transaction", "offset_without_output")
def an_order_is_not_copied(draft: Draft, rng: random.Random) -> None:
    remove(draft, *choose(draft, rng, "echo"))


@deserves("lost", "torn_transaction", "offset_without_output")
def a_tenth_order_is_not_among_the_changes(draft: Draft, rng: random.Random) -> None:
    log = [
        (place, index)
        for place, log in draft.logs.items()
        if place.topic == "account-changes"
        for index, record in enumerate(log)
        if record.committed and (record.value or b"").startswith(b'{"amount"')
    ]
    remove(draft, *rng.choice(log))


@deserves("lost", "torn_transaction", caches=(False,))
def a_count_is_missing(draft: Draft, rng: random.Random) -> None:
    remove(draft, *choose(draft, rng, "account-counts"))


@deserves("lost", "torn_transaction")
def the_last_count_of_a_key_is_missing(draft: Draft, rng: random.Random) -> None:
    place, index = choose(draft, rng, "account-counts")
    remove(draft, place, last_of_key(draft, place, index))


@deserves("lost", "torn_transaction", caches=(False,))
def a_total_is_missing(draft: Draft, rng: random.Random) -> None:
    remove(draft, *choose(draft, rng, "account-totals"))


@deserves("lost", "torn_transaction")
def an_order_is_not_repartitioned(draft: Draft, rng: random.Random) -> None:
    remove(draft, *choose(draft, rng, "by-region"))


@deserves("lost", "offset_without_output", caches=(False,))
def an_order_is_not_in_its_region(draft: Draft, rng: random.Random) -> None:
    remove(draft, *choose(draft, rng, "region-totals"))


@deserves("lost")
def the_last_total_of_a_region_is_missing(draft: Draft, rng: random.Random) -> None:
    place, index = choose(draft, rng, "region-totals")
    remove(draft, place, last_of_key(draft, place, index))


@deserves("lost", "offset_without_output", caches=(False,))
def a_change_of_the_table_is_missing(draft: Draft, rng: random.Random) -> None:
    log = [
        (place, index)
        for place, log in draft.logs.items()
        if place.topic == "account-changes"
        for index, record in enumerate(log)
        if record.committed and (record.value or b"{").startswith(b'{"change"')
    ]
    remove(draft, *rng.choice(log))


@deserves("lost")
def an_amount_is_left_out_of_a_sum(draft: Draft, rng: random.Random) -> None:
    topic = rng.choice(["account-totals", "region-totals"])
    place, index = choose(draft, rng, topic)
    index = last_of_key(draft, place, index)
    record = draft.logs[place][index]
    total = orjson.loads(record.value or b"")
    total["sum"] -= 1
    draft.logs[place][index] = record._replace(value=orjson.dumps(total))


@deserves("lost")
def input_is_left_over(draft: Draft, rng: random.Random) -> None:
    _, _, record = _one_more_order(draft, rng)
    assert record.committed


# -- doubled ------------------------------------------------------------------------------------


@deserves("doubled")
def a_record_is_written_again(draft: Draft, rng: random.Random) -> None:
    topics = ["echo", "account-counts", "account-totals", "account-changes", "region-totals"]
    place, index = choose(draft, rng, rng.choice([*topics, "by-region"]))
    record = draft.logs[place][index]
    assert record.key is not None
    draft.add(place, record.key, record.value, record.timestamp)
    if place.topic == "by-region":
        draft.committed[place] = draft.ends[place]


@deserves("doubled")
def there_is_a_record_of_no_input(draft: Draft, rng: random.Random) -> None:
    topic = rng.choice(["echo", "account-counts", "account-totals", "region-totals"])
    place, index = choose(draft, rng, topic)
    draft.add(place, draft.logs[place][index].key or b"", b"other", 1)


@deserves("doubled", caches=(False,))
def an_aggregate_counts_twice(draft: Draft, rng: random.Random) -> None:
    place, index = choose(draft, rng, rng.choice(["account-totals", "region-totals"]))
    log = draft.logs[place]
    key = log[index].key
    for i, record in enumerate(log[index:], index):
        if record.committed and record.key == key:
            total = orjson.loads(record.value or b"")
            total["count"] += 1
            log[i] = record._replace(value=orjson.dumps(total))


# -- out of sequence ----------------------------------------------------------------------------


@deserves("out_of_sequence")
def two_copies_are_swapped(draft: Draft, rng: random.Random) -> None:
    place, index = choose(draft, rng, "echo")
    others = [
        i for i, r in enumerate(draft.logs[place]) if r.committed and abs(i - index) in (1, 2, 3)
    ]
    if not others:
        return two_copies_are_swapped(draft, rng)
    return _swap(draft.logs[place], index, rng.choice(others))


@deserves("out_of_sequence", caches=(False,))
def two_values_of_a_key_are_swapped(draft: Draft, rng: random.Random) -> None:
    topic = rng.choice(["account-counts", "account-totals"])
    place, index = choose(draft, rng, topic)
    log = draft.logs[place]
    same = [i for i, r in enumerate(log) if r.committed and r.key == log[index].key and i != index]
    if not same:
        return two_values_of_a_key_are_swapped(draft, rng)
    return _swap(log, index, rng.choice(same))


@deserves("out_of_sequence")
def two_orders_of_a_partition_change_places_on_the_way(draft: Draft, rng: random.Random) -> None:
    partition_of = {
        record.value: place.partition
        for place, log in draft.logs.items()
        if place.topic == "orders"
        for record in log
    }
    place, index = choose(draft, rng, "by-region")
    log = draft.logs[place]
    home = partition_of[log[index].value]
    same = [
        i for i, r in enumerate(log) if r.committed and partition_of[r.value] == home and i != index
    ]
    if not same:
        return two_orders_of_a_partition_change_places_on_the_way(draft, rng)
    return _swap(log, index, rng.choice(same))


# -- aborted and torn ---------------------------------------------------------------------------


@deserves("aborted_read")
def an_order_was_aborted_after_all(draft: Draft, rng: random.Random) -> None:
    place, index = choose(draft, rng, "orders")
    draft.logs[place][index] = draft.logs[place][index]._replace(committed=False)


@deserves("aborted_read")
def a_change_was_aborted_after_all(draft: Draft, rng: random.Random) -> None:
    there = {(r.value, r.timestamp) for p, log in draft.logs.items()
             if p.topic == "account-changes" for r in log if r.committed}  # fmt: skip
    inputs = [
        (place, index)
        for place, log in draft.logs.items()
        if place.topic == "accounts"
        for index, record in enumerate(log)
        if record.committed and (record.value, record.timestamp) in there
    ]
    place, index = rng.choice(inputs)
    draft.logs[place][index] = draft.logs[place][index]._replace(committed=False)


@deserves("aborted_read")
def an_aborted_order_is_copied(draft: Draft, rng: random.Random) -> None:
    aborted = [
        (place.partition, record)
        for place, log in draft.logs.items()
        if place.topic == "orders"
        for record in log
        if not record.committed
    ]
    partition, record = rng.choice(aborted)
    assert record.key is not None
    draft.add(Place("echo", partition), record.key, record.value, record.timestamp)


@deserves("torn_transaction")
def an_offset_is_behind_its_output(draft: Draft, rng: random.Random) -> None:
    place, index = choose(draft, rng, "orders")
    draft.committed[place] = draft.logs[place][index].offset


@deserves("torn_transaction", caches=(False,))
def an_offset_of_the_table_is_behind_its_output(draft: Draft, rng: random.Random) -> None:
    place, index = choose(draft, rng, "accounts")
    draft.committed[place] = draft.logs[place][index].offset


@deserves("torn_transaction")
def an_offset_between_the_sub_topologies_is_behind(draft: Draft, rng: random.Random) -> None:
    place, _ = choose(draft, rng, "by-region")
    # From the start: with caches only the last order of each commit shows.
    draft.committed[place] = 0


@deserves("lost", "torn_transaction")
def one_partition_of_a_transaction_was_aborted(draft: Draft, rng: random.Random) -> None:
    """The marker of one partition says abort, those of the others commit."""
    place, index = choose(draft, rng, rng.choice(["echo", "by-region"]))
    _abort_around(draft, place, index)


@deserves("lost", "torn_transaction")
def the_last_transaction_of_a_partition_was_aborted(draft: Draft, rng: random.Random) -> None:
    topic = rng.choice(["account-counts", "account-totals", "region-totals"])
    place, _ = choose(draft, rng, topic)
    log = draft.logs[place]
    _abort_around(draft, place, max(i for i, record in enumerate(log) if record.committed))


def _abort_around(draft: Draft, place: Place, index: int) -> None:
    log = draft.logs[place]
    first = last = index
    # Markers take offsets: where offsets follow each other, it is one transaction.
    while first > 0 and log[first - 1].offset == log[first].offset - 1:
        first -= 1
    while last + 1 < len(log) and log[last + 1].offset == log[last].offset + 1:
        last += 1
    for i in range(first, last + 1):
        log[i] = log[i]._replace(committed=False)


@deserves("torn_transaction")
def the_last_row_of_a_changelog_was_aborted(draft: Draft, rng: random.Random) -> None:
    place, index = _choose_row(draft, rng)
    log = draft.changelogs[place]
    key = log[index].key
    last = max(i for i, record in enumerate(log) if record.committed and record.key == key)
    log[last] = log[last]._replace(committed=False)


@deserves("torn_transaction", "changelog_mismatch")
def a_row_was_committed_without_its_output(draft: Draft, rng: random.Random) -> None:
    place, index = _choose_row(draft, rng)
    record = draft.changelogs[place][index]
    changelog = Place(f"{place.topic}-changelog", place.partition)
    value = (1_000_000).to_bytes(8, "big")
    if place.topic != "counts":
        value = orjson.dumps({"count": 1_000_000, "last": 0, "sum": 0})
    draft.changelogs[place].append(Record(draft.ends[changelog], record.key, value, 1))
    draft.ends[changelog] += 1


def _choose_row(
    draft: Draft,
    rng: random.Random,
    stores: tuple[str, ...] = ("counts", "totals", "regions"),
) -> tuple[Place, int]:
    return rng.choice(
        [
            (place, index)
            for place, log in draft.changelogs.items()
            if place.topic in stores
            for index, record in enumerate(log)
            if record.committed and record.value is not None
        ]
    )


def _one_more_order(draft: Draft, rng: random.Random) -> tuple[Place, int, Record]:
    place, index = choose(draft, rng, "orders")
    record = draft.logs[place][index]
    order = orjson.loads(record.value or b"")
    order["n"] += 1 << 50
    draft.add(place, record.key or b"", orjson.dumps(order), record.timestamp + 1)
    return place, len(draft.logs[place]) - 1, draft.logs[place][-1]


@deserves("lost", "offset_without_output")
def an_offset_is_ahead_of_its_output(draft: Draft, rng: random.Random) -> None:
    place, _, _ = _one_more_order(draft, rng)
    draft.committed[place] = draft.ends[place]


@deserves("offset_without_output")
def an_offset_is_beyond_the_end(draft: Draft, rng: random.Random) -> None:
    place, _ = choose(draft, rng, "orders")
    draft.committed[place] = draft.ends[place] + 1


# -- state --------------------------------------------------------------------------------------


@deserves("changelog_mismatch")
def a_row_of_a_changelog_is_wrong(draft: Draft, rng: random.Random) -> None:
    place, index = _choose_row(draft, rng, ("counts", "totals", "regions", "accounts"))
    log = draft.changelogs[place]
    key = log[index].key
    last = max(i for i, record in enumerate(log) if record.committed and record.key == key)
    log[last] = log[last]._replace(value=(12345).to_bytes(8, "big"))


@deserves("changelog_mismatch")
def a_key_is_in_no_changelog(draft: Draft, rng: random.Random) -> None:
    place, key = _choose_local(draft, rng, (*OUTPUT_OF, "accounts"))
    kept = [record for record in draft.changelogs[place] if record.key != key]
    draft.changelogs[place] = kept


def _choose_local(
    draft: Draft, rng: random.Random, stores: Sequence[str] = tuple(STORES)
) -> tuple[Place, bytes]:
    rows = draft.rows.items()
    there = [(place, key) for place, own in rows if place.topic in stores for key in own]
    return rng.choice(sorted(there))


@deserves("store_mismatch")
def a_local_row_is_wrong(draft: Draft, rng: random.Random) -> None:
    place, key = _choose_local(draft, rng)
    timestamp, value = draft.rows[place][key]
    if rng.random() < 0.5:
        timestamp += 1
    else:
        value += b"!"
    draft.rows[place][key] = (timestamp, value)


@deserves("store_mismatch")
def a_local_row_is_missing(draft: Draft, rng: random.Random) -> None:
    kept_for_ever = [store for store in STORES if store not in EXPIRES_AFTER_MS]
    place, key = _choose_local(draft, rng, kept_for_ever)
    del draft.rows[place][key]


@deserves("store_mismatch")
def a_local_row_is_too_many(draft: Draft, rng: random.Random) -> None:
    place, _ = _choose_local(draft, rng)
    draft.rows[place][b"nobody"] = (1, b"x")


@deserves("store_mismatch")
def a_local_store_has_no_position_beside_others_that_have(draft: Draft, rng: random.Random) -> None:
    place, _ = _choose_local(draft, rng)
    del draft.positions[place]


@deserves("store_mismatch")
def a_local_position_is_beyond_the_changelog(draft: Draft, rng: random.Random) -> None:
    place, _ = _choose_local(draft, rng)
    draft.positions[place] += 1000


@deserves("store_mismatch")
def a_local_position_claims_rows_that_are_not_there(draft: Draft, rng: random.Random) -> None:
    place, index = _choose_row(draft, rng)
    record = draft.changelogs[place][index]
    assert record.key is not None
    newest = [r for r in draft.changelogs[place] if r.key == record.key and r.committed][-1]
    assert newest.value is not None
    draft.rows[place][record.key] = (newest.timestamp - 1, newest.value)


# -- hanging, and reads -------------------------------------------------------------------------


@deserves("hanging_transaction")
def a_marker_is_not_read_back(draft: Draft, rng: random.Random) -> None:
    draft.markers[rng.choice(list(draft.markers))] = False


@deserves("hanging_transaction")
def a_marker_could_not_be_written(draft: Draft, rng: random.Random) -> None:
    del draft.markers[rng.choice(list(draft.markers))]


@deserves("hanging_transaction")
def a_transaction_is_open(draft: Draft, rng: random.Random) -> None:
    place = rng.choice(list(draft.logs))
    draft.ends[place] += 1
    draft.stable_ends[place] = draft.ends[place] - 1


def _choose_seen(draft: Draft, rng: random.Random) -> list[tuple[int, int]]:
    return rng.choice([seen for seen in draft.observed.values() if len(seen) > 3])


@deserves("non_monotonic_read")
def a_reader_got_a_record_twice(draft: Draft, rng: random.Random) -> None:
    seen = _choose_seen(draft, rng)
    at = rng.randrange(len(seen))
    seen.insert(rng.randrange(at, len(seen)) + 1, seen[at])


@deserves("non_monotonic_read")
def a_reader_got_records_in_another_order(draft: Draft, rng: random.Random) -> None:
    seen = _choose_seen(draft, rng)
    at = rng.randrange(len(seen) - 1)
    seen[at], seen[at + 1] = seen[at + 1], seen[at]


@deserves("non_monotonic_read")
def a_reader_was_not_given_a_record(draft: Draft, rng: random.Random) -> None:
    seen = _choose_seen(draft, rng)
    del seen[rng.randrange(len(seen) - 1)]


@deserves("non_monotonic_read")
def a_reader_got_other_bytes(draft: Draft, rng: random.Random) -> None:
    seen = _choose_seen(draft, rng)
    at = rng.randrange(len(seen))
    offset, known_by = seen[at]
    seen[at] = (offset, known_by ^ 1)


@deserves("non_monotonic_read")
def a_reader_got_what_was_aborted(draft: Draft, rng: random.Random) -> None:
    place, index = choose(draft, rng, "account-counts")
    log = draft.logs[place]
    log[index] = log[index]._replace(committed=False)
