"""to: writing records to a topic, or to one that each record chooses."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.state.codec import partition_for_key
from headrace.streams.errors import RecordError
from headrace.topology import StreamsBuilder, Topology, serdes
from headrace.topology.errors import TopologyError
from tests.support.operators import HEADERS, driver_of, pairs


def test_a_record_is_written_as_it_is() -> None:
    driver = driver_of(lambda s: s)
    driver.input("in").send("a", {"n": 1}, timestamp=7, headers=HEADERS)
    record = driver.output("out").read()
    assert (record.key, record.value) == ("a", {"n": 1})
    assert (record.timestamp, record.headers) == (7, HEADERS)


def test_null_keys_and_values_are_written_as_null() -> None:
    driver = driver_of(lambda s: s)
    driver.input("in").send(None, None)
    raw = driver.output("out", key=serdes.bytes, value=serdes.bytes).read()
    assert (raw.key, raw.value) == (None, None)


def test_the_serdes_that_it_is_given_are_used() -> None:
    driver = driver_of(lambda s: s.to("out", key=serdes.json, value=serdes.double))
    driver.input("in").send("a", 1)
    raw = driver.output("out", key=serdes.bytes, value=serdes.bytes).read()
    assert raw.key == b'"a"'
    assert raw.value == serdes.double.serialize(1.0)


def test_bytes_that_nothing_has_changed_are_written_as_they_were_read() -> None:
    """But a JSON document that was read is written in its canonical form."""

    def step(stream: Any) -> None:
        stream.to("out")

    driver = driver_of(step)
    driver.input("in").send_bytes(b"k\xc3\xa9", b'{"b": 1,  "a": 2}')
    raw = driver.output("out", key=serdes.bytes, value=serdes.bytes).read()
    assert (raw.key, raw.value) == (b"k\xc3\xa9", b'{"a":2,"b":1}')


def test_the_partition_is_that_of_the_key_s_bytes() -> None:
    driver = driver_of(lambda s: s.select_key(lambda k, v: v), partitions=5)
    driver.input("in").send_many([("k", f"key {n}") for n in range(20)])
    for record in driver.output("out").read_all():
        assert record.partition == partition_for_key(record.key.encode(), 5)


def test_a_record_can_choose_its_topic() -> None:
    driver = driver_of(lambda s: s.to(lambda k, v: f"{k}-{'even' if v % 2 == 0 else 'odd'}"))
    driver.input("in").send_many([("a", 1), ("b", 2), ("a", 3)])
    assert pairs(driver, "a-odd") == [("a", 1), ("a", 3)]
    assert pairs(driver, "b-even") == [("b", 2)]


def test_one_stream_can_be_written_to_several_topics() -> None:
    def step(stream: Any) -> None:
        stream.to("one")
        stream.to("two", value=serdes.string)

    driver = driver_of(step)
    driver.input("in").send("a", "x")
    assert pairs(driver, "one") == pairs(driver, "two") == [("a", "x")]


def test_a_topic_name_that_is_no_string_is_an_error_of_the_sink() -> None:
    driver = driver_of(lambda s: s.to(lambda k, v: v, name="chosen"))
    with pytest.raises(RecordError, match=r"an int instead of the name.*node chosen.*test_to\.py"):
        driver.input("in").send("a", 5)


def test_a_partitioner_says_where_records_go() -> None:
    """To one partition, to several, to none, or where the key goes."""
    chosen = {"one": 1, "both": (0, 2), "none": (), "key's": None}

    def partition(topic: str, key: str, value: str, partitions: int) -> Any:
        assert (topic, partitions) == ("out", 3)
        return chosen[value]

    driver = driver_of(lambda s: s.to("out", partitioner=partition), partitions=3)
    driver.input("in").send_many([("k", value) for value in chosen])
    found = sorted((record.value, record.partition) for record in driver.output("out").read_all())
    hashed = partition_for_key(b"k", 3)
    assert found == [("both", 0), ("both", 2), ("key's", hashed), ("one", 1)]


@pytest.mark.parametrize("settings", [{}, {"production.exception.handler": "continue"}])
@pytest.mark.parametrize(
    ("named", "said"),
    [
        (99, "returned 99"),
        (-1, "returned -1"),
        (3, "returned 3"),
        ([0, 3], "returned 3"),
        ([None], "returned None"),
        ("1", "returned a str"),
        (0.0, "returned a float"),
        (True, "returned a bool"),
        ({0: 1}, "returned a dict"),
    ],
)
def test_a_partitioner_that_names_no_partition_is_told_with_those_that_there_are(
    named: Any, said: str, settings: dict[str, Any]
) -> None:
    """-1 too: None is what leaves the choice to the key."""

    def function(*_: Any) -> Any:
        return named

    driver = driver_of(
        lambda s: s.to("out", partitioner=function, name="write"), settings=settings, partitions=3
    )
    with pytest.raises(RecordError) as caught:
        driver.input("in").send("a", "x", partition=2)
    error = caught.value
    assert f"the partitioner {said}, and out has 3 partitions (0 to 2)" in str(error)
    assert (error.topic, error.partition, error.offset, error.node) == ("in", 2, 0, "write")
    assert error.function is not None
    assert "test_to.py" in error.function


def test_of_a_topic_s_function_and_a_partitioner_the_one_at_fault_is_named() -> None:
    def topic(key: Any, value: Any) -> str:
        return "out"

    def partition(*_: Any) -> int:
        return 7

    driver = driver_of(lambda s: s.to(topic, partitioner=partition))
    with pytest.raises(RecordError) as caught:
        driver.input("in").send("a", "x")
    assert [place.name for place in caught.value.functions] == ["partition"]


def test_numbers_of_other_kinds_are_partitions_too() -> None:
    class Number:
        def __index__(self) -> int:
            return 2

    driver = driver_of(lambda s: s.to("out", partitioner=lambda *a: iter([Number()])), partitions=3)
    driver.input("in").send("a", "x")
    assert [record.partition for record in driver.output("out").read_all()] == [2]


@pytest.mark.parametrize("topic", [None, 5, b"out", ["out"]])
def test_a_topic_is_a_str_or_a_function(topic: Any) -> None:
    stream = StreamsBuilder().stream("in")
    with pytest.raises(TopologyError, match="topic must be a str or a function, not "):
        stream.to(topic)
    with pytest.raises(TopologyError, match="topic must be a str or a function, not "):
        Topology().add_source("read", "in").add_sink("write", topic, "read")


@pytest.mark.parametrize("topics", [b"orders", 5, None, [b"orders"], ["a", 5]])
def test_topics_that_are_read_are_of_type_str(topics: Any) -> None:
    with pytest.raises(TopologyError, match=r"(several names|be a str), not (an? |None)"):
        StreamsBuilder().stream(topics)
    with pytest.raises(TopologyError, match=r"(several names|be a str), not (an? |None)"):
        StreamsBuilder().table(topics)
