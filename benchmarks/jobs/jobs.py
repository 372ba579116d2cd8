"""The three jobs that are measured: their input, and what must come out of it.

Inputs are the same in every run: the seed is fixed. Expectations are counted while the input is
made, by plain Python that knows neither the hand-written loops nor Headrace.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import orjson

SEED = 20_240_229
WORDS_PER_SENTENCE = 8
VOCABULARY = 10_000
ACCOUNTS = 100_000

Record = tuple[bytes | None, bytes]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a run must have done.

    Args:
        processed: how many records go through the topology, those of repartition topics included.
        outputs: how many records are written to the output topic when nothing is held back.
        last: the last value of each key in the output topic.
    """

    processed: int
    outputs: int
    last: dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Job:
    """One job: what it is called, how much input it takes by default, and the input itself."""

    name: str
    title: str
    default_records: int
    stateful: bool
    repartitions: bool
    make: Callable[[int], tuple[list[Record], Expected]]


def sentences(count: int) -> tuple[list[Record], Expected]:
    """Make sentences of eight words, some of them much more frequent than others."""
    rng = random.Random(SEED)
    words = [f"{rng.choice('bcdfgklmnprst')}{rng.choice('aeiou')}{i:x}" for i in range(VOCABULARY)]
    weights = [1 / (rank + 10) for rank in range(VOCABULARY)]
    drawn = rng.choices(words, weights, k=count * WORDS_PER_SENTENCE)
    rows: list[Record] = [
        (None, " ".join(drawn[i : i + WORDS_PER_SENTENCE]).encode())
        for i in range(0, len(drawn), WORDS_PER_SENTENCE)
    ]
    last = {word.encode(): n.to_bytes(8, "big") for word, n in Counter(drawn).items()}
    return rows, Expected(count + len(drawn), len(drawn), last)


def amounts(count: int) -> tuple[list[Record], Expected]:
    """Make bookings on 100,000 accounts, evenly spread."""
    rng = random.Random(SEED)
    totals: dict[bytes, int] = {}
    rows: list[Record] = []
    keys = [orjson.dumps(f"account-{i:06d}") for i in range(ACCOUNTS)]
    drawn = rng.choices(keys, k=count)
    for key, amount in zip(drawn, rng.choices(range(1, 1000), k=count), strict=True):
        rows.append((key, b'{"amount":%d}' % amount))
        totals[key] = totals.get(key, 0) + amount
    last = {key: orjson.dumps(total) for key, total in totals.items()}
    return rows, Expected(count, count, last)


def orders(count: int) -> tuple[list[Record], Expected]:
    """Make orders of which half are paid; every key is there once."""
    return list(_orders(count)), _expected_invoices(count)


def _orders(count: int) -> Iterator[Record]:
    for number, user, price, quantity, paid in _order_fields(count):
        yield (
            b'"order-%08d"' % number,
            b'{"user":"user-%05d","price":%d,"quantity":%d,"paid":%s}'
            % (user, price, quantity, b"true" if paid else b"false"),
        )


def _expected_invoices(count: int) -> Expected:
    last = {
        b'"order-%08d"' % number: b'{"total":%d,"user":"user-%05d"}' % (price * quantity, user)
        for number, user, price, quantity, paid in _order_fields(count)
        if paid
    }
    return Expected(count, len(last), last)


def _order_fields(count: int) -> Iterator[tuple[int, int, int, int, bool]]:
    rng = random.Random(SEED)
    users = rng.choices(range(50_000), k=count)
    prices = rng.choices(range(100, 10_000), k=count)
    quantities = rng.choices(range(1, 10), k=count)
    paid = rng.choices((True, False), k=count)
    yield from zip(range(count), users, prices, quantities, paid, strict=True)


JOBS = {
    job.name: job
    for job in (
        Job("word_count", "word count", 100_000, True, True, sentences),
        Job("sum", "running sum per key", 1_000_000, True, False, amounts),
        Job("stateless", "parse, filter, map", 1_000_000, False, False, orders),
    )
}
