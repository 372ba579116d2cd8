"""Stores that are kept from a topic, which is their changelog too (KIP-813)."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    ProcessorContext,
    Record,
    StoreBuilder,
    Stores,
    Topology,
    TopologyError,
    serdes,
)
from tests.support.operators import pairs
from tests.support.topologies import EXACTLY_ONCE


def price(record: Record[str, str], context: ProcessorContext[str, float]) -> None:
    found = context.store("prices").get(record.key)
    context.forward(record.with_value(-1.0 if found is None else found))


def prices(**options: Any) -> StoreBuilder[Any]:
    return Stores.key_value("prices", key=serdes.string, value=serdes.double, **options)


def kept(store: StoreBuilder[Any] | None = None) -> Topology:
    return Topology().add_read_only_state_store(
        store or prices(), "prices", source="read-prices", processor="keep"
    )


def priced(processor: Any = price) -> Topology:
    return (
        kept()
        .add_source("read", "orders", key=serdes.string, value=serdes.string)
        .add_processor("price", processor, "read", stores=["prices"])
        .add_sink("write", "out", "price", key=serdes.string, value=serdes.double)
    )


def test_a_processor_reads_the_last_values_of_a_topic() -> None:
    driver = TopologyTestDriver(priced())
    driver.input("prices").send_many([("tea", 1.0), ("tea", 2.0), ("ale", 3.0)])
    driver.input("prices").send("ale", None)
    driver.input("orders").send_many([("tea", ""), ("ale", "")])
    assert pairs(driver) == [("tea", 2.0), ("ale", -1.0)]


def test_no_changelog_is_made_and_the_rows_are_restored_from_the_topic() -> None:
    driver = TopologyTestDriver(priced(), EXACTLY_ONCE, partitions=3)
    driver.input("prices").send_many([("tea", 1.0), ("ale", 3.0), ("tea", 2.0)])
    assert "test-prices-changelog" not in driver.cluster.topics
    driver.crash(keep=False)
    driver.input("orders").send_many([("tea", ""), ("ale", "")])
    assert sorted(pairs(driver)) == [("ale", 3.0), ("tea", 2.0)]
    assert driver.restored == 3


def test_processors_cannot_write_what_a_restore_would_not_find() -> None:
    def write(record: Record[str, str], context: ProcessorContext[Any, Any]) -> None:
        context.store("prices").put(record.key, 5.0)

    driver = TopologyTestDriver(priced(write))
    with pytest.raises(RecordError) as raised:
        driver.input("orders").send("tea", "")
    assert "is read-only; write to the topic" in str(raised.value.__cause__)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: kept(prices(logged=False)), "omit it: no changelog topic"),
        (lambda: kept(Stores.timestamped_key_value("prices")), "create it with Stores.key_value"),
        (
            lambda: kept().add_read_only_state_store(prices(), "others", source="s", processor="p"),
            "two stores are named 'prices'",
        ),
        (
            lambda: kept().add_read_only_state_store(
                Stores.key_value("x"), "prices", source="s", processor="p"
            ),
            "is read by node 'read-prices' already",
        ),
    ],
)
def test_what_could_not_be_restored_is_refused(build: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        build()
