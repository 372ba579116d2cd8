"""repartition: through a topic of one's own, so that equal keys come together."""

from __future__ import annotations

from typing import Any

from headrace.state.codec import partition_for_key
from headrace.topology import serdes
from tests.support.operators import HEADERS, driver_of, pairs

TOPIC = "test-again-repartition"


def again(stream: Any, **options: Any) -> Any:
    return stream.repartition(name="again", **options)


def test_records_pass_unchanged() -> None:
    driver = driver_of(again)
    driver.input("in").send("a", [1], timestamp=7, headers=HEADERS)
    record = driver.output("out").read()
    assert (record.key, record.value, record.timestamp) == ("a", [1], 7)
    assert record.headers == HEADERS


def test_equal_keys_come_together_in_the_partition_of_their_bytes() -> None:
    driver = driver_of(lambda s: again(s.select_key(lambda k, v: v)), partitions=4)
    driver.input("in").send_many([(str(n), f"key {n % 5}") for n in range(40)])
    for record in driver.output(TOPIC).read_all():
        assert record.partition == partition_for_key(record.key.encode(), 4)


def test_the_topic_has_as_many_partitions_as_its_widest_source() -> None:
    driver = driver_of(again, partitions={"in": 5})
    assert len(driver.cluster.topics[TOPIC].logs) == 5


def test_the_topic_has_as_many_partitions_as_were_asked_for() -> None:
    driver = driver_of(lambda s: again(s, partitions=7), partitions={"in": 2})
    driver.input("in").send_many([(str(n), n) for n in range(30)])
    assert len(driver.cluster.topics[TOPIC].logs) == 7
    assert sorted(v for _, v in pairs(driver)) == list(range(30))


def test_the_topic_has_the_serdes_that_it_is_given() -> None:
    driver = driver_of(lambda s: again(s.map_values(len), value=serdes.long))
    driver.input("in").send("a", "xyz")
    raw = driver.output(TOPIC, value=serdes.bytes).read()
    assert raw.value == b"\0\0\0\0\0\0\0\x03"
    assert pairs(driver) == [("a", 3)]


def test_null_values_pass() -> None:
    driver = driver_of(again)
    driver.input("in").send("a", None)
    assert pairs(driver) == [("a", None)]


def test_records_of_one_key_keep_their_order() -> None:
    driver = driver_of(lambda s: again(s.select_key(lambda k, v: "same")), commit="manual")
    driver.input("in").send_many([("k", n) for n in range(50)])
    driver.commit()
    assert [v for _, v in pairs(driver)] == list(range(50))


def test_what_follows_needs_no_further_repartition() -> None:
    driver = driver_of(
        lambda s: again(s.select_key(lambda k, v: v)).group_by_key().count(store="counts")
    )
    driver.input("in").send_many([("x", "a"), ("y", "a")])
    assert [t for t in driver.cluster.topics if t.endswith("-repartition")] == [TOPIC]
    assert dict(driver.store("counts")) == {"a": 2}


def test_the_application_names_the_topic() -> None:
    driver = driver_of(again, settings={"application.id": "orders"})
    driver.input("in").send("a", 1)
    assert pairs(driver, "orders-again-repartition") == [("a", 1)]
