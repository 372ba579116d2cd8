"""Timestamp extractors: the time of a source's records, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from headrace.streams.config.handlers import Continue, Failure
from headrace.streams.errors import ConfigError, RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import KStream, StreamsBuilder, Topology, TopologyError, serdes, timestamps
from headrace.topology.timestamps import InputRecord, TimestampExtractor
from tests.support.topologies import EXACTLY_ONCE, NO_CACHE

Stream = KStream[Any, Any]


def at(record: InputRecord, partition_time: int) -> int:
    """The time that stands in the value."""
    del partition_time
    time: int = record.value["at"]
    return time


def copied(extractor: TimestampExtractor | None, *topics: str) -> Topology:
    """Topics merged into "out", all with the same extractor."""
    builder = StreamsBuilder()
    first, *others = (
        builder.stream(topic, key=serdes.string, timestamps=extractor, name=f"read-{topic}")
        for topic in topics or ("in",)
    )
    for other in others:
        first = first.merge(other)
    first.to("out")
    return builder.build()


def times(driver: TopologyTestDriver) -> list[int]:
    output = driver.output("out", isolation="read_uncommitted")
    return [record.timestamp for record in output.read_all()]


def send_at(driver: TopologyTestDriver, *moments: int, topic: str = "in") -> None:
    """Write records with these timestamps, as one batch; the driver's input refuses none."""
    for moment in moments:
        driver.cluster.append(topic, b"1", b"k", 0, moment, None)
    driver.run()


def test_records_have_the_time_that_the_extractor_gives() -> None:
    driver = TopologyTestDriver(copied(at))
    driver.input("in").send("k", {"at": 70}, timestamp=5)
    assert times(driver) == [70]


def test_an_extractor_may_give_a_datetime_with_a_time_zone() -> None:
    """Digits beyond the millisecond go, also before 1970, where a record is left out."""
    driver = TopologyTestDriver(copied(lambda record, _: datetime.fromisoformat(record.value)))
    for moment in ("1970-01-01T01:00:00.0019+01:00", "1970-01-02T00:00Z", "1969-12-31T23:59Z"):
        driver.input("in").send("k", moment, timestamp=5)
    assert times(driver) == [1, 86_400_000]


def test_an_extractor_sees_the_whole_record_and_the_largest_time_before_it() -> None:
    seen: list[tuple[Any, ...]] = []

    def extractor(record: InputRecord, partition_time: int) -> int:
        place = (record.topic, record.partition, record.offset)
        seen.append((record.key, record.value, record.headers, place, partition_time))
        return 10 - record.offset if record.partition == 1 else record.timestamp

    driver = TopologyTestDriver(copied(extractor), partitions=2)
    source = driver.input("in")
    source.send("a", 1, timestamp=5, headers=[("h", b"x")], partition=1)
    source.send("b", None, timestamp=6, partition=1)
    source.send(None, 3, timestamp=3, partition=0)
    source.send("c", 4, timestamp=9, partition=1)
    assert seen == [
        ("a", 1, [("h", b"x")], ("in", 1, 0), -1),
        ("b", None, None, ("in", 1, 1), 10),
        (None, 3, None, ("in", 0, 0), -1),
        ("c", 4, None, ("in", 1, 2), 10),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_the_lowest_extracted_time_goes_first(seed: int) -> None:
    """Trap 2: partitions are chosen by the times of their heads, those that were extracted."""
    driver = TopologyTestDriver(copied(at, "a", "b"), EXACTLY_ONCE, commit="manual", seed=seed)
    driver.run()
    for topic, moments in (("a", [1, 4, 5]), ("b", [2, 3, 6])):
        for moment in moments:
            driver.cluster.append(topic, b'{"at":%d}' % moment, None, 0, 100 - moment, None)
    driver.run()
    assert times(driver) == [1, 2, 3, 4, 5, 6]


def test_a_table_has_an_extractor_too() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", key=serdes.string, store="rows", timestamps=at)
    table.to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    driver.input("in").send("k", {"at": 7}, timestamp=5)
    assert times(driver) == [7]


def test_the_setting_is_for_sources_that_have_none_of_their_own() -> None:
    builder = StreamsBuilder()
    for topic, extractor in (
        ("a", None),
        ("b", at),
        ("c", timestamps.fail_on_invalid_timestamp),
    ):
        builder.stream(topic, timestamps=extractor).to(f"out-{topic}")
    driver = TopologyTestDriver(
        builder.build(), {"default.timestamp.extractor": lambda record, _: 1000}
    )
    for topic, expected in (("a", 1000), ("b", 7), ("c", 5)):
        driver.input(topic).send("k", {"at": 7}, timestamp=5)
        assert driver.output(f"out-{topic}").read().timestamp == expected


def test_internal_topics_keep_the_times_that_were_given_upstream() -> None:
    """As in Kafka Streams: an extractor is for what comes from outside."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string)
    moved = stream.select_key(lambda k, v: "other").repartition(name="again")
    moved.to("out")
    calls: list[int] = []

    def extractor(record: InputRecord, partition_time: int) -> int:
        calls.append(partition_time)
        return record.timestamp + 1000

    driver = TopologyTestDriver(builder.build(), {"default.timestamp.extractor": extractor})
    driver.input("in").send("k", {"at": 7}, timestamp=5)
    assert times(driver) == [1005]
    assert len(calls) == 1


def test_fail_on_invalid_stops_at_a_negative_timestamp() -> None:
    """Trap 30: it is the default; named or not, the error is the same."""
    for settings, extractor in (
        ({}, None),
        ({}, timestamps.fail_on_invalid_timestamp),
        ({"default.timestamp.extractor": "fail_on_invalid_timestamp"}, None),
    ):
        driver = TopologyTestDriver(copied(extractor), settings)
        with pytest.raises(RecordError, match="the timestamp -1 is negative") as caught:
            send_at(driver, 3, -1)
        assert (caught.value.node, caught.value.offset) == ("read-in", 1)


@pytest.mark.parametrize("as_setting", [True, False])
def test_log_and_skip_leaves_out_records_with_a_negative_timestamp(as_setting: bool) -> None:
    name = "log_and_skip_on_invalid_timestamp"
    settings = {"default.timestamp.extractor": name} if as_setting else {}
    extractor = None if as_setting else timestamps.log_and_skip_on_invalid_timestamp
    driver = TopologyTestDriver(copied(extractor), settings, commit="manual")
    send_at(driver, 3, -1, -7, 5)
    driver.commit()
    assert times(driver) == [3, 5]
    assert driver.dropped == {("read-in", "negative timestamp"): 2}
    assert driver.committed_offsets("in") == {0: 4}


def test_use_partition_time_takes_the_largest_time_before() -> None:
    driver = TopologyTestDriver(copied(timestamps.use_partition_time_on_invalid_timestamp))
    send_at(driver, 3, -1, 9, 5, -1)
    assert times(driver) == [3, 3, 9, 5, 9]


@pytest.mark.parametrize("keep", [True, False])
def test_the_partition_time_outlives_a_crash(keep: bool) -> None:
    """It is committed beside the offset."""
    extractor = timestamps.use_partition_time_on_invalid_timestamp
    driver = TopologyTestDriver(copied(extractor), EXACTLY_ONCE)
    send_at(driver, 8, 3)
    driver.crash(keep=keep)
    send_at(driver, -1)
    assert times(driver) == [8, 3, 8]


def test_the_partition_time_of_what_an_abort_undid_is_found_again() -> None:
    extractor = timestamps.use_partition_time_on_invalid_timestamp
    driver = TopologyTestDriver(copied(extractor), EXACTLY_ONCE, commit="manual")
    send_at(driver, 8, -1)
    driver.abort()
    driver.commit()
    assert [record.timestamp for record in driver.output("out").read_all()] == [8, 8]


def test_use_partition_time_stops_where_there_is_none() -> None:
    driver = TopologyTestDriver(copied(timestamps.use_partition_time_on_invalid_timestamp))
    with pytest.raises(RecordError, match="has no earlier record with a valid timestamp"):
        send_at(driver, -1)


def test_the_wall_clock_is_the_runtimes() -> None:
    driver = TopologyTestDriver(copied(timestamps.wallclock_timestamp), now=1000)
    driver.input("in").send("k", 1, timestamp=5)
    driver.advance(timedelta(seconds=1))
    driver.input("in").send("k", 1, timestamp=5)
    assert times(driver) == [1000, 2000]


def raises(record: InputRecord, partition_time: int) -> int:
    raise KeyError("the payload, which must not be in the message")


@pytest.mark.parametrize(
    ("extractor", "message"),
    [
        (raises, "a user function raised KeyError"),
        (lambda record, _: None, "a timestamp extractor returned None"),
        (lambda record, _: 1.5, "a timestamp extractor returned a float"),
        (lambda record, _: datetime(1970, 1, 1), "returned a datetime without"),
    ],
)
def test_an_extractor_that_fails_stops_the_application_at_its_record(
    extractor: Callable[..., Any], message: str
) -> None:
    driver = TopologyTestDriver(
        copied(lambda record, _: 1 if record.offset < 2 else extractor(record, _)),
        {"processing.exception.handler": "continue"},
    )
    with pytest.raises(RecordError, match=message) as caught:
        send_at(driver, 1, 2, 3)
    assert (caught.value.node, caught.value.offset) == ("read-in", 2)
    assert "payload" not in str(caught.value)


@pytest.mark.parametrize("extractor", [raises, lambda record, _: None])
def test_a_record_that_an_extractor_fails_on_goes_to_the_deserialization_handler(
    extractor: Callable[..., Any],
) -> None:
    """One null value must not stop every worker that reads it."""
    failures: list[Failure] = []

    def handler(failure: Failure) -> Continue:
        failures.append(failure)
        return Continue((failure.dead_letter("dead"),))

    driver = TopologyTestDriver(
        copied(lambda record, _: 1 if record.offset != 1 else extractor(record, _)),
        {"deserialization.exception.handler": handler},
    )
    send_at(driver, 1, 2, 3)
    assert times(driver) == [1, 1]
    (failure,) = failures
    assert (failure.stage, failure.node, failure.offset) == ("deserialization", "read-in", 1)
    assert driver.output("dead", key=serdes.bytes).read().timestamp == 2
    assert driver.dropped == {("read-in", "it cannot be decoded"): 1}


def test_bytes_that_cannot_be_decoded_are_no_matter_of_the_extractor() -> None:
    """They go to the deserialization handler, and without one the error names the serde."""
    for handler, offset in (("continue", None), ("fail", 1)):
        settings = {"deserialization.exception.handler": handler, **NO_CACHE}
        driver = TopologyTestDriver(copied(at), settings)
        source = driver.input("in")
        source.send("k", {"at": 1})
        if offset is None:
            source.send_bytes(b"k", b"not json")
            source.send("k", {"at": 2})
            assert times(driver) == [1, 2]
        else:
            with pytest.raises(RecordError, match="serde 'json' cannot decode") as caught:
                source.send_bytes(b"k", b"not json")
            assert caught.value.offset == offset


def test_sources_of_one_topic_must_have_the_same_extractor() -> None:
    builder = StreamsBuilder()
    builder.stream("in", timestamps=at).to("a")
    builder.stream("in").to("b")
    with pytest.raises(TopologyError, match="with different timestamps= or offset_reset="):
        builder.build()


def test_the_setting_must_be_a_function_or_a_name_that_is_known() -> None:
    with pytest.raises(ConfigError, match="must be a function or one of fail_on_invalid_timestamp"):
        TopologyTestDriver(copied(None), {"default.timestamp.extractor": "now"})


def test_without_an_extractor_the_code_does_nothing_for_one() -> None:
    code = copied(None).describe(code=True)
    assert "m.time()" not in code
    assert "timestamp = m.timestamp()[1]" in code


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (1.5, "a float"),
        (None, "None"),
        ("2020", "a str"),
        (datetime(2020, 1, 1), "a datetime without a time zone"),
    ],
)
def test_what_is_no_time_is_said_in_the_message(returned: Any, said: str) -> None:
    driver = TopologyTestDriver(copied(lambda record, _: returned, "in"))
    with pytest.raises(RecordError) as raised:
        driver.input("in").send("k", {"at": 5})
    assert f"a timestamp extractor returned {said}; it must return an int" in str(raised.value)


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, BaseException, pytest.fail.Exception])
def test_what_an_extractor_raises_names_the_record_whatever_it_is(
    kind: type[BaseException],
) -> None:
    def extract(record: Any, _: int) -> int:
        if record.value == 13:
            raise kind("13")
        return 5

    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string, timestamps=extract).to("out")
    driver = TopologyTestDriver(builder.build(), partitions=1)
    driver.input("in").send("k", 1)
    with pytest.raises(RecordError, match=f"raised {kind.__name__}, which ends") as caught:
        driver.input("in").send("k", 13)
    assert (caught.value.topic, caught.value.offset) == ("in", 1)
    assert caught.value.node == "KSTREAM-SOURCE-0000000000"
