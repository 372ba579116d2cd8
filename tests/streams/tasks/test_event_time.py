"""Times from the payload: what `event_time` reads, and what becomes of records without a time."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from headrace import TopologyError, event_time
from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, Topology, serdes
from headrace.topology.payload_time import EventTime, OnInvalid

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
NOON_MS = 1_714_564_800_000
DEAD = {"errors.dead.letter.queue.topic.name": "dead"}


def copied(extractor: EventTime | None, *, value: Any = serdes.json) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(
        "in", key=serdes.string, value=value, timestamps=extractor, name="read-in"
    )
    stream.map_values(repr).to("out", value=serdes.string)
    return builder.build()


def time_of(extractor: EventTime, value: object) -> int:
    driver = TopologyTestDriver(copied(extractor), now=NOON)
    driver.input("in").send("k", value, timestamp=5)
    return driver.output("out").read().timestamp


@dataclass(frozen=True)
class Order:
    at: datetime


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"format": "epoch_ms"}, NOON_MS),
        ({"format": "epoch_s"}, NOON_MS // 1000),
        ({"format": "epoch_s"}, NOON_MS / 1000),
        ({"format": "epoch_us"}, NOON_MS * 1000 + 999),
        ({"format": "epoch_ns"}, NOON_MS * 1_000_000 + 999_999),
        ({}, "2024-05-01T12:00:00Z"),
        ({}, "2024-05-01T14:00:00.000999+02:00"),
        ({"zone": "Europe/Oslo"}, "2024-05-01T14:00:00"),
        ({"zone": "Europe/Oslo"}, "2024-05-01T12:00:00Z"),
        ({"zone": timezone(timedelta(hours=1))}, "2024-05-01 13:00"),
        ({"format": "%d.%m.%Y %H:%M", "zone": "UTC"}, "01.05.2024 12:00"),
        ({"format": "%d.%m.%Y %H:%M %z"}, "01.05.2024 14:00 +0200"),
    ],
)
def test_formats(given: dict[str, Any], value: object) -> None:
    assert time_of(event_time("ts", **given), {"ts": value}) == NOON_MS


def test_milliseconds_of_seconds_with_fractions_are_exact() -> None:
    extractor = event_time("ts", format="epoch_s")
    for ms in range(0, 1000, 7):
        assert time_of(extractor, {"ts": 1_714_564_799 + ms / 1000}) == 1_714_564_799_000 + ms


def test_a_path_and_a_function_and_the_field_of_an_object() -> None:
    value = {"meta": {"ts": NOON_MS}}
    assert time_of(event_time("meta.ts", format="epoch_ms"), value) == NOON_MS
    assert time_of(event_time(lambda v: v["meta"]["ts"], format="epoch_ms"), value) == NOON_MS
    order = serdes.json_of(Order)
    driver = TopologyTestDriver(copied(event_time("at"), value=order), now=NOON)
    driver.input("in").send("k", Order(NOON))
    assert driver.output("out").read().timestamp == NOON_MS


def boom(value: Any) -> Any:
    raise KeyError(value)


_INVALID: dict[str, tuple[EventTime, object, str]] = {
    "null value": (event_time("ts"), None, "a null value"),
    "no field": (event_time("a.ts"), {"a": {"b": 1}}, "no such field, or null"),
    "no object": (event_time("a.ts"), {"a": 7}, "no such field, or null"),
    "null": (event_time("ts"), {"ts": None}, "no such field, or null"),
    "naive": (event_time("ts"), {"ts": "2024-05-01T12:00:00"}, "a time without a time zone"),
    "text": (event_time("ts"), {"ts": "secret"}, "a text that is not of format iso8601"),
    "kind": (event_time("ts"), {"ts": 5}, "an int, not a text of format iso8601"),
    "bool": (event_time("ts", format="epoch_s"), {"ts": True}, "a bool, not a number of epoch_s"),
    "str": (event_time("ts", format="epoch_s"), {"ts": "5"}, "a str, not a number of epoch_s"),
    "before": (event_time("ts", format="epoch_s"), {"ts": -5}, "a time before 1970"),
    "unit": (event_time("ts", format="epoch_s"), {"ts": NOON_MS}, "days ahead of the clock"),
    "ahead": (
        event_time("ts"),
        {"ts": "2024-05-01T15:00:00Z"},
        "a time that is 3 hours ahead of the clock",
    ),
    "function": (event_time(boom), {"ts": 1}, "a function that raised KeyError"),
}


@pytest.mark.parametrize(("extractor", "value", "message"), _INVALID.values(), ids=_INVALID)
def test_a_record_without_a_valid_time_is_named(
    extractor: EventTime, value: object, message: str
) -> None:
    driver = TopologyTestDriver(copied(extractor), now=NOON)
    with pytest.raises(RecordError, match=message) as caught:
        driver.input("in").send("k", value, timestamp=5)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("in", 0, 0)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("extractor", "value", "message"), _INVALID.values(), ids=_INVALID)
@pytest.mark.parametrize("on_invalid", ["dead_letter", "drop", "record_time"])
def test_on_invalid(
    on_invalid: OnInvalid, extractor: EventTime, value: object, message: str
) -> None:
    function = extractor.field
    given = event_time(
        function, format=extractor.format, zone=extractor.zone, on_invalid=on_invalid
    )
    settings = DEAD if on_invalid == "dead_letter" else {}
    driver = TopologyTestDriver(copied(given), settings, now=NOON)
    driver.input("in").send("k", value, timestamp=5)
    if on_invalid == "record_time":
        assert [record.timestamp for record in driver.output("out").read_all()] == [5]
        assert not driver.dropped
        return
    assert driver.output("out").read_all() == []
    assert driver.dropped == {("read-in", "invalid event time"): 1}
    if on_invalid == "dead_letter":
        letter = driver.output("dead", key=serdes.bytes, value=serdes.bytes).read()
        assert (None if letter.value is None else json.loads(letter.value)) == value
        assert message.encode() in (dict(letter.headers)["__streams.errors.message"] or b"")


def test_the_setting_takes_it_and_dead_letters_need_a_topic() -> None:
    extractor = event_time("ts", on_invalid="dead_letter")
    setting = {"default.timestamp.extractor": extractor}
    driver = TopologyTestDriver(copied(None), {**setting, **DEAD})
    driver.input("in").send("k", {})
    assert len(driver.output("dead", key=serdes.bytes).read_all()) == 1
    for topology, settings in ((copied(None), setting), (copied(extractor), {})):
        with pytest.raises(TopologyError, match=r"set errors\.dead\.letter\.queue\.topic\.name"):
            TopologyTestDriver(topology, settings)


def test_max_ahead() -> None:
    later = {"ts": "2031-01-01T00:00:00Z"}
    for extractor, now in ((event_time("ts", max_ahead=None), NOON), (event_time("ts"), 0)):
        driver = TopologyTestDriver(copied(extractor), now=now)
        driver.input("in").send("k", later)
        assert driver.output("out").read().timestamp == 1_924_992_000_000
    driver = TopologyTestDriver(copied(event_time("ts", max_ahead=timedelta(0))), now=NOON)
    driver.advance(timedelta(seconds=1))
    driver.input("in").send("k", {"ts": "2024-05-01T12:00:01Z"})
    with pytest.raises(RecordError, match="ahead of the clock"):
        driver.input("in").send("k", {"ts": "2024-05-01T12:00:01.001Z"})


def test_a_table_drops_a_record_without_a_time_and_keeps_its_row() -> None:
    builder = StreamsBuilder()
    extractor = event_time("ts", format="epoch_ms", on_invalid="drop")
    builder.table("in", key=serdes.string, store="rows", timestamps=extractor)
    driver = TopologyTestDriver(builder.build())
    driver.input("in").send("k", {"ts": 7})
    driver.input("in").send("k", {"ts": None})
    assert list(driver.store("rows").rows()) == [("k", {"ts": 7}, 7)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: event_time(5), "field must be a function"),  # type: ignore[arg-type]
        (lambda: event_time("a..b"), "has an empty part"),
        (lambda: event_time("ts", format="millis"), "format 'millis' is not known"),
        (lambda: event_time("ts", zone="Mars"), "'Mars' is not a known time zone"),
        (lambda: event_time("ts", format="%Y-%m-%d"), "have no time zone"),
        (lambda: event_time("ts", on_invalid="skip"), "on_invalid must be"),  # type: ignore[arg-type]
        (lambda: event_time("ts", max_ahead=5), "max_ahead must be"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()


def test_equal_arguments_make_equal_extractors_that_can_be_shipped() -> None:
    made = event_time("ts", zone="Europe/Oslo")
    assert made == event_time("ts", zone="Europe/Oslo") != event_time("ts")
    assert pickle.loads(pickle.dumps(made)) == made
