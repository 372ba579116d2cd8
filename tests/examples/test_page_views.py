"""examples/page_views.py: views of pages, by the region of who views them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from examples.page_views import User, View, Views, page_views
from headrace.streams import TopologyTestDriver

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def driver() -> Iterator[TopologyTestDriver]:
    with TopologyTestDriver(page_views(), now=NOON) as driver:
        yield driver


def at(minute: int, second: int = 0) -> datetime:
    return NOON.replace(minute=minute, second=second)


def look(driver: TopologyTestDriver, user: str, *moments: datetime) -> None:
    for moment in moments:
        driver.input("page-views").send(user, View("/tea"), timestamp=moment)


def counts(driver: TopologyTestDriver) -> list[tuple[str | None, Views | None]]:
    return [(record.key, record.value) for record in driver.output("views-by-region").read_all()]


def test_views_are_counted_by_region_and_minute(driver: TopologyTestDriver) -> None:
    driver.input("users").send_many([("ann", User("Asia")), ("bob", User("Asia"))])
    look(driver, "ann", at(0, 10), at(0, 59))
    look(driver, "bob", at(1))
    assert counts(driver) == [
        ("Asia", Views(at(0), 1)),
        ("Asia", Views(at(0), 2)),
        ("Asia", Views(at(1), 1)),
    ]


def test_a_user_who_moves_is_counted_where_they_are_at_that_moment(
    driver: TopologyTestDriver,
) -> None:
    driver.input("users").send("ann", User("Asia"))
    look(driver, "ann", at(0))
    driver.input("users").send("ann", User("Europe"))
    look(driver, "ann", at(0, 1))
    assert counts(driver) == [("Asia", Views(at(0), 1)), ("Europe", Views(at(0), 1))]


def test_users_who_are_not_known_or_forgotten_are_in_an_unknown_region(
    driver: TopologyTestDriver,
) -> None:
    look(driver, "eve", at(0))
    driver.input("users").send_many([("ann", User("Asia")), ("ann", None)])
    look(driver, "ann", at(0, 1))
    assert counts(driver) == [("unknown", Views(at(0), 1)), ("unknown", Views(at(0), 2))]


def test_a_view_may_come_a_minute_late_and_no_later(driver: TopologyTestDriver) -> None:
    driver.input("users").send("ann", User("Asia"))
    look(driver, "ann", at(1, 59), at(0, 10), at(2), at(0, 20))
    assert counts(driver) == [
        ("Asia", Views(at(1), 1)),
        ("Asia", Views(at(0), 1)),
        ("Asia", Views(at(2), 1)),
    ]
    assert [reason for _, reason in driver.dropped] == ["late"]
