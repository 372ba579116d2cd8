"""Windowed keys have the bytes that Kafka Streams writes, and partitions go by the inner key."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any, assert_type

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.topology import serdes
from headrace.topology.errors import SerdeError, TopologyError
from headrace.topology.serdes import Serde
from headrace.topology.serdes.windows_serde import (
    UNLIMITED_MS,
    SessionWindowedSerde,
    TimeWindowedSerde,
)
from headrace.topology.windows import Window, Windowed

FIVE_MINUTES = timedelta(minutes=5)
MS = timedelta(milliseconds=1)
minutes = serdes.time_windowed(serdes.string, size=FIVE_MINUTES)
sessions = serdes.session_windowed(serdes.string)
TIMES = st.integers(0, 2**61)


# What TimeWindowedSerializer and SessionWindowedSerializer of Kafka Streams 4.3.1 (Java) wrote.
@pytest.mark.parametrize(
    ("serde", "value", "data"),
    [
        (minutes, Windowed("é", Window(300_000, 600_000)), "c3a900000000000493e0"),
        (
            serdes.time_windowed(serdes.string, size=5 * MS),
            Windowed("", Window(0, 5)),
            "0000000000000000",
        ),
        (
            serdes.time_windowed(serdes.long, size=timedelta(minutes=1)),
            Windowed(-2, Window(1_700_000_000_000, 1_700_000_060_000)),
            "fffffffffffffffe0000018bcfe56800",
        ),
        (
            serdes.time_windowed(serdes.string, size=None),
            Windowed("k", Window(7, UNLIMITED_MS)),
            "6b0000000000000007",
        ),
        (
            sessions,
            Windowed("é", Window(300_000, 600_000)),
            "c3a900000000000927c000000000000493e0",
        ),
        (
            serdes.session_windowed(serdes.long),
            Windowed(5, Window(9, 9)),
            "000000000000000500000000000000090000000000000009",
        ),
    ],
    ids=str,
)
def test_known_keys_have_the_bytes_that_java_writes(
    serde: Serde[Any], value: Windowed[Any], data: str
) -> None:
    assert serde.serialize(value).hex() == data
    assert serde.deserialize(bytes.fromhex(data)) == value


@given(st.text(), TIMES, st.integers(1, 2**62))
def test_a_time_windowed_key_reads_back_and_its_inner_bytes_stand_in_front(
    key: str, start: int, size: int
) -> None:
    serde = TimeWindowedSerde(serdes.string, size)
    windowed = Windowed(key, Window(start, start + size))
    data = serde.serialize(windowed)
    assert serde.deserialize(data) == windowed
    assert serde.inner_bytes(data) == serdes.string.serialize(key)


@given(st.text(), TIMES, TIMES)
def test_a_session_windowed_key_reads_back_and_its_inner_bytes_stand_in_front(
    key: str, one: int, other: int
) -> None:
    windowed = Windowed(key, Window(min(one, other), max(one, other)))
    data = sessions.serialize(windowed)
    assert sessions.deserialize(data) == windowed
    assert sessions.inner_bytes(data) == serdes.string.serialize(key)


@given(st.binary(max_size=24), st.sampled_from([minutes, sessions]))
def test_any_bytes_are_read_and_written_alike_or_refused(data: bytes, serde: Any) -> None:
    """They are canonical where the inner serde is."""
    assert serde.canonical
    try:
        value = serde.deserialize(data)
    except SerdeError:
        return
    assert serde.serialize(value) == data


def test_they_promise_of_values_what_the_inner_serde_promises() -> None:
    for make in (
        lambda inner: serdes.time_windowed(inner, size=MS),
        serdes.session_windowed,
    ):
        assert (make(serdes.string).immutable, make(serdes.string).canonical) == (True, True)
        assert (make(serdes.json).immutable, make(serdes.json).canonical) == (False, False)
        assert (make(None).immutable, make(None).canonical) == (False, False)


@pytest.mark.parametrize(
    "without", [serdes.time_windowed(None, size=FIVE_MINUTES), serdes.session_windowed(None)]
)
def test_the_inner_serde_can_be_filled_in_later(
    without: TimeWindowedSerde[Any] | SessionWindowedSerde[Any],
) -> None:
    window = Windowed("k", Window(0, 300_000))
    for call in (lambda: without.serialize(window), lambda: without.deserialize(bytes(17))):
        with pytest.raises(SerdeError, match="requires a serde for the inner key"):
            call()
    filled = without.with_inner_default(serdes.string)
    assert filled.deserialize(filled.serialize(window)) == window
    assert filled.with_inner_default(serdes.long) is filled


@pytest.mark.parametrize(
    ("serde", "value", "said"),
    [
        (minutes, "k", "cannot encode str; pass a Windowed"),
        (minutes, None, "pass a Windowed"),
        (minutes, ("k", Window(0, 300_000)), "cannot encode tuple"),
        (minutes, Windowed(None, Window(0, 300_000)), "null key in a window"),
        (minutes, Windowed("k", Window(0, 1)), "of 300000 ms, not a window from 0 to 1"),
        (minutes, Windowed("k", Window(-1, 299_999)), "not a window from -1"),
        (minutes, Windowed(5, Window(0, 300_000)), "serde 'string' cannot encode"),
        (sessions, Windowed("k", Window(2, 1)), "session from 2 to 1"),
        (sessions, Windowed("k", Window(-1, 1)), "session from -1 to 1"),
    ],
    ids=str,
)
def test_what_is_no_such_key_is_refused(serde: Serde[Any], value: Any, said: str) -> None:
    with pytest.raises(SerdeError, match=said):
        serde.serialize(value)


@pytest.mark.parametrize(
    ("serde", "data", "said"),
    [
        (minutes, bytes(7), "takes at least 8"),
        (minutes, b"k\xff" + bytes(7), "before 1970"),
        (sessions, bytes(15), "takes at least 16"),
        (sessions, bytes(15) + b"\x01", "after its end"),
        (minutes, b"\xff" + bytes(8), "serde 'string' cannot decode"),
        (minutes, None, "pass bytes"),
    ],
    ids=str,
)
def test_foreign_bytes_are_refused(serde: Serde[Any], data: Any, said: str) -> None:
    with pytest.raises(SerdeError, match=said):
        serde.deserialize(data)


@pytest.mark.parametrize("size", [timedelta(microseconds=1500), -MS])
def test_a_size_must_be_whole_milliseconds(size: timedelta) -> None:
    with pytest.raises(TopologyError, match="size must be"):
        serdes.time_windowed(serdes.string, size=size)


@pytest.mark.parametrize("serde", [minutes, sessions])
def test_a_serde_travels_to_another_process(serde: Serde[Any]) -> None:
    assert pickle.loads(pickle.dumps(serde)) == serde


def test_a_type_checker_knows_the_inner_key() -> None:
    assert_type(minutes, TimeWindowedSerde[str])
    assert_type(sessions, SessionWindowedSerde[str])
    plain: Serde[Windowed[str]] = minutes
    either: TimeWindowedSerde[str] | SessionWindowedSerde[str] = sessions
    assert_type(
        either.deserialize(plain.serialize(Windowed("k", Window(0, 300_000))) + bytes(8)),
        Windowed[str],
    )


def test_a_sliding_window_of_one_moment_reads_back() -> None:
    moments = serdes.time_windowed(serdes.string, size=timedelta(0))
    key = Windowed("a", Window(5, 5))
    assert moments.deserialize(moments.serialize(key)) == key
