"""examples/user_sessions.py: what a user looks at without half an hour of silence."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from examples.user_sessions import Click, Session, user_sessions
from headrace.streams import TopologyTestDriver

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
MINUTE, MS = timedelta(minutes=1), timedelta(milliseconds=1)


@pytest.fixture
def driver() -> Iterator[TopologyTestDriver]:
    with TopologyTestDriver(user_sessions()) as driver:
        yield driver


def click(driver: TopologyTestDriver, user: str, page: str, after: timedelta) -> None:
    driver.input("clicks").send(user, Click(page), timestamp=NOON + after)


def sessions(driver: TopologyTestDriver) -> list[tuple[str | None, Session | None]]:
    return [(record.key, record.value) for record in driver.output("sessions").read_all()]


def test_a_session_goes_out_once_when_it_is_over(driver: TopologyTestDriver) -> None:
    click(driver, "ann", "/", 0 * MINUTE)
    click(driver, "ann", "/tea", 30 * MINUTE)
    click(driver, "bob", "/cup", 65 * MINUTE)
    assert sessions(driver) == []
    click(driver, "bob", "/", 65 * MINUTE + MS)
    assert sessions(driver) == [("ann", Session(NOON, 1800, ("/", "/tea")))]


def test_after_half_an_hour_of_silence_another_session_begins(driver: TopologyTestDriver) -> None:
    click(driver, "ann", "/", 0 * MINUTE)
    click(driver, "ann", "/tea", 30 * MINUTE + MS)
    click(driver, "bob", "/", 120 * MINUTE)
    assert sessions(driver) == [
        ("ann", Session(NOON, 0, ("/",))),
        ("ann", Session(NOON + 30 * MINUTE + MS, 0, ("/tea",))),
    ]


def test_a_click_that_comes_late_may_join_two_sessions(driver: TopologyTestDriver) -> None:
    click(driver, "ann", "/", 0 * MINUTE)
    click(driver, "ann", "/tea", 34 * MINUTE)
    click(driver, "ann", "/cup", 17 * MINUTE)
    click(driver, "bob", "/", 120 * MINUTE)
    assert sessions(driver) == [("ann", Session(NOON, 34 * 60, ("/", "/tea", "/cup")))]


def test_a_click_that_comes_too_late_is_kept_apart(driver: TopologyTestDriver) -> None:
    click(driver, "bob", "/", 120 * MINUTE)
    click(driver, "ann", "/old", 0 * MINUTE)
    assert driver.output("late-clicks").as_dict() == {"ann": Click("/old")}
    assert sessions(driver) == []
