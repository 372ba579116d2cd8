"""Some hundred records for each of the examples: keys of all sorts, nulls, headers, late ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from examples.avro_orders import ORDER, TOTAL, Order, avro_orders
from examples.orders_with_customers import orders_with_customers
from examples.page_views import page_views
from examples.suspicious_loans import suspicious_loans
from examples.user_sessions import user_sessions
from examples.word_count import word_count
from headrace.topology import Topology
from headrace.topology.serdes import avro
from tests.spark_bridge.support.sameness import Headers, Input

START_MS = 1_700_000_040_000
"""In November 2023, and the beginning of a minute."""
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
DAY_MS = 24 * 60 * MINUTE_MS

Times = Iterator[int]


@dataclass(frozen=True)
class Example:
    """An example, with what it is given and what is promised of it.

    Args:
        name: of the test.
        make: the topology, from sources, sinks and a directory.
        sources: what topics are called, before a test gives them names of their own.
        sinks: likewise.
        inputs: the records, from the names of the sources and a directory.
        promise: "outputs" where there is one order only, so that outputs are the same, one by one;
            "updates" where there are as many updates of each key, and the last one is the same;
            "last" where nothing is said of those before the last one.
        partitions: of all topics.
        decode: reads values of the sinks where equal ones may have different bytes.
    """

    name: str
    make: Callable[[Sequence[str], Sequence[str], Path], Topology]
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    inputs: Callable[[Sequence[str], Path], list[Input]]
    promise: str
    partitions: int = 2
    decode: Callable[[Path], Callable[[bytes], Any]] = field(default=lambda _: bytes)


def ahead(rng: random.Random, step_ms: int, back_ms: int) -> Times:
    """Times that go ahead, by up to twice a step, but for some that lie back."""
    time = START_MS
    while True:
        time += rng.randrange(2 * step_ms)
        yield time if rng.random() < 0.85 else time - rng.randrange(back_ms)


def headers(number: int) -> Headers:
    """None, or one, or two of the same name."""
    both = (("trace", str(number).encode()), ("trace", None))
    return both[: number % 3]


def text(value: object) -> bytes:
    return json.dumps(value).encode()


def sentences(topics: Sequence[str], _: Path) -> list[Input]:
    rng = random.Random(1)
    words = [f"w{n}" for n in range(40)]
    return [
        Input(
            topics[0],
            (None, b"7", text(f"k{n % 7}"))[n % 3],
            " ".join(
                rng.choices(words, range(40, 0, -1), k=n % 50 and rng.randrange(1, 6))
            ).encode(),
            time,
            headers(n),
        )
        for n, time in zip(range(300), ahead(rng, MINUTE_MS, 10 * MINUTE_MS), strict=False)
    ]


def registry(directory: Path) -> avro.FileRegistry:
    return avro.FileRegistry(directory / "schemas.json")


def orders_in_avro(topics: Sequence[str], directory: Path) -> list[Input]:
    rng = random.Random(2)
    older = json.dumps({**json.loads(ORDER), "fields": json.loads(ORDER)["fields"][:2]})
    options: Any = {"registry": registry(directory), "subject": f"{topics[0]}-value"}
    old, new = avro.registered(older, **options), avro.registered(ORDER, into=Order, **options)
    found = []
    for n, time in zip(range(300), ahead(rng, MINUTE_MS, 10 * MINUTE_MS), strict=False):
        customer, cents = f"c{int(rng.expovariate(0.2))}", rng.randrange(10_000)
        if n % 5 == 0:
            value = old.serialize({"customer": customer, "cents": cents})
        else:
            value = new.serialize(Order(customer, cents, rng.choice(("EUR", "NOK", "JPY"))))
        key = None if n % 11 == 0 else f"o{n}".encode()
        found.append(Input(topics[0], key, value, time, headers(n)))
    return found


def totals(directory: Path) -> Callable[[bytes], Any]:
    found: Any = avro.registered(TOTAL, registry=registry(directory))
    return found.deserialize  # type: ignore[no-any-return]


def views(topics: Sequence[str], span_ms: int, back_ms: int) -> list[Input]:
    """Views of users who move about; some nobody knows, some are forgotten."""
    rng = random.Random(3)
    found = []
    for n in range(400):
        time = max(
            START_MS, START_MS + n * span_ms // 400 - rng.choice((0, 0, rng.randrange(back_ms)))
        )
        key = f"u{rng.randrange(20)}".encode()
        if n % 4 == 0:
            gone = rng.random() < 0.2
            region = text({"region": rng.choice(("Asia", "Europe", "Africa", "Peru"))})
            found.append(Input(topics[1], key, None if gone else region, time, headers(n)))
        else:
            page = None if n % 17 == 0 else text({"page": f"/{n}"})
            unknown = n % 23 == 0
            found.append(Input(topics[0], None if unknown else key, page, time, headers(n)))
    return found


def views_in_order_of_arrival(topics: Sequence[str], _: Path) -> list[Input]:
    """Twenty minutes, of which some views come too late."""
    return views(topics, 20 * MINUTE_MS, 5 * MINUTE_MS)


def views_in_time(topics: Sequence[str], _: Path) -> list[Input]:
    """Nothing is late, whichever task runs ahead."""
    return views(topics, 2 * MINUTE_MS, MINUTE_MS)


def shop(topics: Sequence[str], _: Path) -> list[Input]:
    """Orders that change and are taken back; customers who move, and some who are forgotten."""
    rng = random.Random(4)
    found = []
    times = ahead(rng, MINUTE_MS, 10 * MINUTE_MS)
    for n, time in zip(range(300), times, strict=False):
        gone = rng.random() < 0.15
        if n % 3 == 0:
            customer: Any = {"name": "Ann", "city": f"city {n}"}
            key = f"c{rng.randrange(12)}".encode()
            found.append(Input(topics[1], key, None if gone else text(customer), time, headers(n)))
        else:
            order: Any = {"customer": f"c{rng.randrange(14)}", "item": f"item {n}"}
            key = f"o{rng.randrange(60)}".encode()
            found.append(Input(topics[0], key, None if gone else text(order), time, headers(n)))
    return found


def payments(topics: Sequence[str], _: Path) -> list[Input]:
    """Their time is in the value; that of the record is another one."""
    rng = random.Random(5)
    found, paid_ms, loan = [], START_MS, 0
    times = ahead(rng, 12 * 60 * MINUTE_MS, 90 * DAY_MS)
    for n, time in zip(range(300), times, strict=False):
        again = n % 6 == 5  # a short time after the one before
        paid_ms = paid_ms + rng.randrange(2 * 60 * MINUTE_MS) if again else time
        loan = loan if again else rng.randrange(7)
        at = datetime.fromtimestamp(paid_ms / 1000, UTC).isoformat()
        value = text({"id": f"p{n}", "cents": rng.choice((100, 200, 500)), "at": at})
        key = f"loan{loan}".encode()
        found.append(Input(topics[0], key, value, paid_ms + 50 * DAY_MS, headers(n)))
    return found


def clicks(topics: Sequence[str], _: Path) -> list[Input]:
    """Some so late that their session is over, some without a user."""
    rng = random.Random(6)
    return [
        Input(
            topics[0],
            None if n % 29 == 0 else f"u{rng.randrange(16)}".encode(),
            text({"page": f"/{n}"}),
            time,
            headers(n),
        )
        for n, time in zip(range(400), ahead(rng, 5 * MINUTE_MS, 90 * MINUTE_MS), strict=False)
    ]


EXAMPLES = (
    Example(
        "word_count",
        lambda sources, sinks, _: word_count(*sources, *sinks),
        ("sentences",), ("word-counts",), sentences, "updates",
    ),
    Example(
        "avro_orders",
        lambda sources, sinks, where: avro_orders(registry(where), *sources, *sinks),
        ("avro-orders",), ("order-totals",), orders_in_avro, "updates", decode=totals,
    ),
    Example(
        "page_views",
        lambda sources, sinks, _: page_views(*sources, *sinks),
        ("page-views", "users"), ("views-by-region",), views_in_time, "updates",
    ),
    # One task writes to the repartition topic, so there is one order only.
    Example(
        "page_views of one partition",
        lambda sources, sinks, _: page_views(*sources, *sinks),
        ("page-views", "users"), ("views-by-region",), views_in_order_of_arrival, "outputs", 1,
    ),
    Example(
        "orders_with_customers",
        lambda sources, sinks, _: orders_with_customers(*sources, *sinks),
        ("shop-orders", "shop-customers"), ("parcels",), shop, "last",
    ),
    Example(
        "suspicious_loans",
        lambda sources, sinks, _: suspicious_loans(*sources, *sinks),
        ("loan-payments",), ("suspicious-payments",), payments, "outputs",
    ),
    Example(
        "user_sessions",
        lambda sources, sinks, _: user_sessions(*sources, *sinks),
        ("clicks",), ("sessions", "late-clicks"), clicks, "outputs",
    ),
)  # fmt: skip
