"""table, to_table and to_stream: streams read as tables, and back."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes
from tests.support.operators import HEADERS, NO_CACHE, driver_of, one, pairs, results


def table_driver(settings: dict[str, object] | None = None, **options: Any) -> TopologyTestDriver:
    builder = StreamsBuilder()
    builder.table("in", key=serdes.string, store="rows").to_stream().to("out")
    return TopologyTestDriver(builder.build(), settings, **options)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_table_keeps_the_last_value_of_each_key(partitions: int) -> None:
    driver = table_driver(partitions=partitions)
    driver.input("in").send_many([("a", 1), ("b", 2), ("a", 3)])
    assert dict(driver.store("rows")) == {"a": 3, "b": 2}
    assert driver.output("out").as_dict() == {"a": 3, "b": 2}


def test_a_null_value_deletes_the_row_and_goes_on_as_null() -> None:
    """Trap 8: Kafka Streams also passes on the deletion of what is not there."""
    driver = table_driver(NO_CACHE)
    driver.input("in").send_many([("a", 1), ("a", None), ("b", None)])
    assert dict(driver.store("rows")) == {}
    assert pairs(driver) == [("a", 1), ("a", None)]


def test_a_value_that_changes_nothing_goes_no_further_and_leaves_the_row_as_it_was() -> None:
    """Trap 8: Kafka Streams passes it on."""
    driver = table_driver(NO_CACHE)
    driver.input("in").send("a", [1], timestamp=5)
    driver.input("in").send("a", [1], timestamp=9)
    assert list(driver.store("rows").rows()) == [("a", [1], 5)]
    assert pairs(driver) == [("a", [1])]


@pytest.mark.parametrize("wrap", [lambda n: n, lambda n: [n], lambda n: {"n": n}])
def test_equal_numbers_of_other_types_are_other_values(wrap: Any) -> None:
    driver = table_driver(NO_CACHE)
    driver.input("in").send_many([("a", wrap(1)), ("a", wrap(1.0)), ("a", wrap(True))])
    assert [repr(value) for _, value in pairs(driver)] == [repr(wrap(n)) for n in (1, 1.0, True)]


@pytest.mark.parametrize("value", [1, "x", [1], {"n": 1.0}, True])
def test_an_equal_value_changes_nothing_after_a_restart_either(value: Any) -> None:
    def step(stream: Any) -> Any:
        table = stream.peek(lambda k, v: None).to_table(store="rows")
        return table.map_values(lambda v: v)

    driver = driver_of(step, settings=NO_CACHE)
    driver.input("in").send("a", value)
    driver.crash()
    driver.run()
    driver.input("in").send("a", value)
    driver.run()
    assert pairs(driver) == [("a", value)]


def test_the_last_value_to_arrive_wins_whatever_its_timestamp() -> None:
    driver = table_driver(NO_CACHE)
    driver.input("in").send("a", "new", timestamp=9)
    driver.input("in").send("a", "old", timestamp=5)
    assert list(driver.store("rows").rows()) == [("a", "old", 5)]
    assert [r.timestamp for r in driver.output("out").read_all()] == [9, 5]


def test_a_table_without_a_name_is_not_stored() -> None:
    builder = StreamsBuilder()
    builder.table("in", key=serdes.string).to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    driver.input("in").send_many([("a", 1), ("a", None)])
    assert pairs(driver) == [("a", 1), ("a", None)]
    assert [t for t in driver.cluster.topics if t.startswith("test-")] == []


def test_a_table_is_restored_from_its_changelog() -> None:
    driver = table_driver()
    driver.input("in").send_many([("a", 1), ("b", 2), ("a", None)])
    driver.crash(keep=False)
    driver.run()
    assert dict(driver.store("rows")) == {"b": 2}
    assert driver.restored == 3


def test_a_cache_sends_on_the_last_change_of_a_commit_alone() -> None:
    driver = table_driver(commit="manual")
    driver.input("in").send_many([("a", 1), ("b", 2), ("a", None)])
    driver.commit()
    assert pairs(driver) == [("a", None), ("b", 2)]


def test_a_stream_becomes_a_table_where_it_is() -> None:
    driver = driver_of(lambda s: s.map_values(lambda v: v * 2).to_table(store="rows"))
    driver.input("in").send_many([("a", 1), ("a", 2)])
    assert dict(driver.store("rows")) == {"a": 4}
    assert [t for t in driver.cluster.topics if "repartition" in t] == []


def test_a_stream_whose_key_has_changed_becomes_a_table_behind_a_topic() -> None:
    driver = driver_of(
        lambda s: s.select_key(lambda k, v: v).to_table(store="rows", key=serdes.string),
        partitions=3,
    )
    driver.input("in").send_many([(str(n), "x") for n in range(9)])
    assert len(driver.store("rows")) == 1
    assert sum("repartition" in topic for topic in driver.cluster.topics) == 1


def test_a_stream_s_null_deletes_a_row_of_the_table() -> None:
    driver = driver_of(lambda s: s.to_table(store="rows"), settings=NO_CACHE)
    driver.input("in").send_many([("a", 1), ("a", None)])
    assert dict(driver.store("rows")) == {}
    assert pairs(driver) == [("a", 1), ("a", None)]


def test_a_stream_becomes_a_table_that_is_not_stored_where_it_has_no_name() -> None:
    assert results(lambda s: s.to_table(), [("a", 1), ("a", None)]) == [("a", 1), ("a", None)]


def test_to_stream_keeps_timestamp_and_headers() -> None:
    record = one(lambda s: s.to_table(store="rows"), "a", 1, timestamp=7, headers=HEADERS)
    assert (record.timestamp, record.headers) == (7, HEADERS)


def test_to_stream_can_give_each_change_another_key() -> None:
    found = results(
        lambda s: s.to_table(store="rows").to_stream(lambda k, v: f"{k}:{v}"),
        [("a", 1), ("a", None)],
    )
    assert found == [("a:1", 1), ("a:None", None)]


def test_a_stream_of_a_table_s_changes_can_be_folded() -> None:
    driver = driver_of(
        lambda s: s.to_table(store="rows").to_stream().group_by_key().count(store="changes")
    )
    driver.input("in").send_many([("a", 1), ("a", 2), ("a", 2), ("a", None), ("b", 1)])
    assert dict(driver.store("changes")) == {"a": 2, "b": 1}


def test_derived_tables_follow_the_rows() -> None:
    def step(stream: Any) -> Any:
        table = stream.to_table(store="rows")
        return table.filter(lambda k, v: v > 1).map_values(lambda v: v * 10)

    found = results(step, [("a", 1), ("a", 2), ("a", None), ("b", 5)], settings=NO_CACHE)
    assert found == [("a", 20), ("a", None), ("b", 50)]


def test_a_filter_deletes_no_row_that_it_never_had() -> None:
    """Trap 8: Kafka Streams does."""
    found = results(
        lambda s: s.to_table(store="rows").filter(lambda k, v: v > 9),
        [("a", 1), ("a", 2), ("a", None)],
        settings=NO_CACHE,
    )
    assert found == []
