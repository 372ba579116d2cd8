"""The examples on a real broker, exactly-once: all that they write is compared.

What readers of committed records see is awaited, the application is closed, and then the whole
topic must be what was awaited: nothing twice, nothing left out. The word count has a test of its
own beside this one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from examples.avro_orders import ORDER, TOTAL, Order, Total, avro_orders
from examples.orders_with_customers import orders_with_customers
from examples.page_views import page_views
from examples.suspicious_loans import suspicious_loans
from examples.user_sessions import user_sessions
from headrace.topology.serdes import avro
from tests.support import kafka
from tests.support.live import Live, live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.reader import Reader
from tests.support.topics import Topics
from tests.support.tutorials import Block
from tests.test_readme import blocks

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)

Input = tuple[str, str, Any, timedelta]
"""Topic, key, what is written as JSON unless it is bytes or None, and how long after noon."""
Rows = dict[str, list[Any]]
"""All values of each key, in their order."""


def write(bootstrap: str, records: Iterable[Input]) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 5}
    )
    for topic, key, value, after in records:
        plain = value is None or isinstance(value, bytes)
        data = value if plain else json.dumps(value).encode()
        producer.produce(topic, data, key, timestamp=int((NOON + after).timestamp() * 1000))
    assert producer.flush(PATIENCE_S) == 0


def rows(bootstrap: str, topic: str, decode: Callable[[bytes], Any] = json.loads) -> Rows:
    found: Rows = defaultdict(list)
    for record in kafka.read(bootstrap, topic):
        assert record.key is not None
        found[record.key.decode()].append(None if record.value is None else decode(record.value))
    return found


def count(found: Rows) -> int:
    return sum(map(len, found.values()))


def wait_for(app: Live, topic: str, records: int, topics: Topics) -> None:
    app.wait(
        lambda: count(rows(topics.bootstrap, topic, bytes)) >= records,
        what=f"{records} records in {topic}",
    )


def iso(after: timedelta) -> str:
    return (NOON + after).isoformat().replace("+00:00", "Z")


def test_page_views_are_counted_by_region(topics: Topics, tmp_path: Path) -> None:
    views, users = (topics.create(name, partitions=3) for name in ("page-views", "users"))
    by_region = topics.create("views-by-region", partitions=2)
    regions = {f"u{n}": ("Asia", "Europe", "Africa")[n % 3] for n in range(12)}
    write(
        topics.bootstrap,
        [
            *((users, user, {"region": region}, -MINUTE) for user, region in regions.items()),
            *((views, f"u{n % 13}", {"page": "/"}, n * SECOND) for n in range(104)),
        ],
    )
    with live(page_views(views, users, by_region), settings_of(topics, tmp_path)) as app:
        wait_for(app, by_region, 104, topics)
    expected: Rows = defaultdict(list)
    for n in range(104):
        region, minute = regions.get(f"u{n % 13}", "unknown"), iso(n // 60 * MINUTE)
        so_far = sum(view["minute"] == minute for view in expected[region])
        expected[region].append({"minute": minute, "views": so_far + 1})
    found = rows(topics.bootstrap, by_region)
    # Views of one region come from several partitions, so only minutes are in order.
    for region, counts in found.items():
        for minute in (iso(0 * MINUTE), iso(MINUTE)):
            of_minute = [view for view in counts if view["minute"] == minute]
            assert of_minute == [view for view in expected[region] if view["minute"] == minute]
    assert (found.keys(), count(found)) == (expected.keys(), 104)


def test_orders_follow_their_customers(topics: Topics, tmp_path: Path) -> None:
    orders, parcels = (topics.create(name, partitions=3) for name in ("orders", "parcels"))
    customers = topics.create("customers", partitions=2)
    write(
        topics.bootstrap,
        [
            *(
                (orders, f"o{n}", {"customer": f"c{n % 4}", "item": "tea"}, 0 * DAY)
                for n in range(8)
            ),
            *((customers, f"c{n}", {"name": f"C{n}", "city": "Rome"}, 0 * DAY) for n in range(3)),
        ],
    )
    topology = orders_with_customers(orders, customers, parcels)
    with live(topology, settings_of(topics, tmp_path)) as app:
        wait_for(app, parcels, 6, topics)
        write(
            topics.bootstrap,
            [
                (customers, "c0", {"name": "C0", "city": "Nice"}, 1 * DAY),
                (orders, "o1", None, 1 * DAY),
                (orders, "o2", {"customer": "c1", "item": "tea"}, 1 * DAY),
            ],
        )
        wait_for(app, parcels, 10, topics)

    def to(*addresses: str | None) -> list[Any]:
        return [None if to is None else {"item": "tea", "to": to} for to in addresses]

    assert rows(topics.bootstrap, parcels) == {
        "o0": to("C0, Rome", "C0, Nice"),
        "o1": to("C1, Rome", None),
        "o2": to("C2, Rome", "C1, Rome"),
        "o4": to("C0, Rome", "C0, Nice"),
        "o5": to("C1, Rome"),
        "o6": to("C2, Rome"),
    }


def test_suspicious_payments_are_found(topics: Topics, tmp_path: Path) -> None:
    payments, suspicious = (topics.create(name, partitions=3) for name in ("payments", "found"))

    def paid(loan: int, number: int, cents: int, after: timedelta) -> Input:
        payment = {"id": f"p{number}", "cents": cents, "at": iso(after)}
        return payments, f"loan{loan}", payment, 0 * DAY

    ten = range(10)
    write(topics.bootstrap, [paid(n, 1, 100, 0 * DAY) for n in ten])
    write(topics.bootstrap, [paid(n, 2, 100 * n, 30 * DAY) for n in ten])
    write(topics.bootstrap, [paid(n, 3, 300, 30 * DAY + 59 * MINUTE) for n in ten if n == 7])
    with live(suspicious_loans(payments, suspicious), settings_of(topics, tmp_path)) as app:
        wait_for(app, suspicious, 11, topics)

    def told(payment: str, before: str, reason: str) -> dict[str, str]:
        return {"payment": payment, "before": before, "reason": reason}

    far = [told("p2", "p1", "far from the usual")]
    assert rows(topics.bootstrap, suspicious) == {
        **{f"loan{n}": far for n in ten if not 1 <= n <= 2},
        "loan7": [
            *far,
            told("p3", "p1", "far from the usual"),
            told("p3", "p2", "too close together"),
            told("p3", "p2", "far from the usual"),
        ],
    }


def test_sessions_go_out_when_they_are_over(topics: Topics, tmp_path: Path) -> None:
    clicks, sessions, late = (topics.create(name) for name in ("clicks", "sessions", "late"))
    write(
        topics.bootstrap,
        [
            *((clicks, f"u{n % 5}", {"page": f"/{n}"}, n * MINUTE) for n in range(20)),
            (clicks, "later", {"page": "/"}, 55 * MINUTE),
            *((clicks, f"u{n}", {"page": "/again"}, 60 * MINUTE) for n in range(5)),
            (clicks, "u0", {"page": "/late"}, 15 * MINUTE),
            (clicks, "last", {"page": "/"}, 200 * MINUTE),
        ],
    )
    with live(user_sessions(clicks, sessions, late), settings_of(topics, tmp_path)) as app:
        wait_for(app, sessions, 11, topics)
        wait_for(app, late, 1, topics)
    assert rows(topics.bootstrap, sessions) == {
        "later": [{"began": iso(55 * MINUTE), "seconds": 0, "pages": ["/"]}],
        **{
            f"u{n}": [
                {
                    "began": iso(n * MINUTE),
                    "seconds": 900,
                    "pages": [f"/{page}" for page in range(n, 20, 5)],
                },
                {"began": iso(60 * MINUTE), "seconds": 0, "pages": ["/again"]},
            ]
            for n in range(5)
        },
    }
    assert rows(topics.bootstrap, late) == {"u0": [{"page": "/late"}]}


def test_orders_in_avro_are_added_up(topics: Topics, tmp_path: Path) -> None:
    orders, totals = (topics.create(name, partitions=3) for name in ("avro-orders", "totals"))
    registry = avro.FileRegistry(tmp_path / "schemas.json")
    order = avro.registered(ORDER, registry=registry, into=Order, subject=f"{orders}-value")
    write(
        topics.bootstrap,
        [
            (
                orders,
                f"o{n}",
                order.serialize(Order(f"c{n % 4}", n, ("EUR", "NOK")[n % 2])),
                n * DAY,
            )
            for n in range(40)
        ],
    )
    with live(avro_orders(registry, orders, totals), settings_of(topics, tmp_path)) as app:
        wait_for(app, totals, 40, topics)
    total = avro.registered(TOTAL, registry=registry, into=Total)
    found = rows(topics.bootstrap, totals, total.deserialize)
    assert found.keys() == {f"c{n}" for n in range(4)}
    for customer, so_far in found.items():
        n = int(customer[1:])
        # The orders of a customer come from several partitions, so in any order.
        assert [total.orders for total in so_far] == list(range(1, 11))
        assert so_far[-1] == Total(10, {("EUR", "NOK")[n % 2]: sum(range(n, 40, 4))})


@pytest.mark.slow
def test_the_page_shows_how_to_write_to_them_and_to_read(topics: Topics, tmp_path: Path) -> None:
    """The application is the example, with topics that no other test uses."""
    ((title, visit),) = blocks("docs/examples.md")
    views, users, by_region = (
        topics.create(name) for name in ("page-views", "users", "views-by-region")
    )
    names = {"page-views": views, "users": users, "views-by-region": by_region}
    names["visitor"] = topics.name("visitor")
    me = Reader(tmp_path, topics.bootstrap, names)
    me.save(Block("python", title, visit))
    with live(page_views(views, users, by_region), settings_of(topics, tmp_path)) as app:
        app.wait_running()
        lines = me.run(f"python {title}").splitlines()
    last = {}
    for region, view in (line.split(maxsplit=1) for line in lines):
        counted = json.loads(view)
        last[region, counted["minute"]] = counted["views"]
    regions = [region for (region, _), count in last.items() for _ in range(count)]
    assert sorted(regions) == ["Asia", "Asia", "Europe"]
