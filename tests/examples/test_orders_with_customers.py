"""examples/orders_with_customers.py: each order with the customer that it names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.orders_with_customers import Customer, Order, Parcel, orders_with_customers
from headrace.streams import TopologyTestDriver

ANN, BOB = Customer("Ann", "Rome"), Customer("Bob", "Oslo")


@pytest.fixture
def driver() -> Iterator[TopologyTestDriver]:
    """The topics have unequal partition counts, which a join by a foreign key allows."""
    partitions = {"shop-orders": 3, "shop-customers": 2}
    with TopologyTestDriver(orders_with_customers(), partitions=partitions) as driver:
        yield driver


def order(driver: TopologyTestDriver, name: str, order: Order | None) -> None:
    driver.input("shop-orders").send(name, order)


def customer(driver: TopologyTestDriver, name: str, customer: Customer | None) -> None:
    driver.input("shop-customers").send(name, customer)


def changes(driver: TopologyTestDriver) -> list[tuple[str | None, Parcel | None]]:
    """All so far. Those of two orders come in no order that counts."""
    found = [(record.key, record.value) for record in driver.output("parcels").read_all()]
    return sorted(found, key=lambda change: change[0] or "")


def test_an_order_becomes_a_parcel_when_its_customer_is_known(driver: TopologyTestDriver) -> None:
    order(driver, "o1", Order("ann", "tea"))
    assert changes(driver) == []
    customer(driver, "ann", ANN)
    assert changes(driver) == [("o1", Parcel("tea", "Ann, Rome"))]
    order(driver, "o2", Order("ann", "cup"))
    assert changes(driver)[1:] == [("o2", Parcel("cup", "Ann, Rome"))]


def test_all_parcels_of_a_customer_who_moves_move_too(driver: TopologyTestDriver) -> None:
    customer(driver, "ann", ANN)
    customer(driver, "bob", BOB)
    for name, who in (("o1", "ann"), ("o2", "bob"), ("o3", "ann")):
        order(driver, name, Order(who, "tea"))
    customer(driver, "ann", Customer("Ann", "Nice"))
    assert changes(driver) == [
        ("o1", Parcel("tea", "Ann, Rome")),
        ("o1", Parcel("tea", "Ann, Nice")),
        ("o2", Parcel("tea", "Bob, Oslo")),
        ("o3", Parcel("tea", "Ann, Rome")),
        ("o3", Parcel("tea", "Ann, Nice")),
    ]


def test_an_order_that_goes_to_somebody_else_has_one_parcel(driver: TopologyTestDriver) -> None:
    customer(driver, "ann", ANN)
    customer(driver, "bob", BOB)
    order(driver, "o1", Order("ann", "tea"))
    order(driver, "o1", Order("bob", "tea"))
    assert driver.output("parcels").as_dict() == {"o1": Parcel("tea", "Bob, Oslo")}


def test_an_order_that_is_taken_back_takes_its_parcel_with_it(driver: TopologyTestDriver) -> None:
    customer(driver, "ann", ANN)
    order(driver, "o1", Order("ann", "tea"))
    order(driver, "o1", None)
    order(driver, "o2", Order("nobody", "tea"))
    order(driver, "o2", None)
    assert changes(driver) == [("o1", Parcel("tea", "Ann, Rome")), ("o1", None)]
