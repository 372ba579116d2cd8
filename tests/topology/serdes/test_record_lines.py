"""Lines of files that stand for records, with serdes of every kind."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import serdes
from headrace.streams.cli.record_lines import (
    LineError,
    LineRecord,
    read_records,
    record_line,
    text_of,
)
from headrace.topology.serdes import Serde, avro
from headrace.topology.windows import Window, Windowed


@dataclass(frozen=True)
class Order:
    id: str
    price: float


SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "price", "type": "double"}],
}


def read(line: str, key: Serde[Any], value: Serde[Any]) -> LineRecord:
    (record,) = read_records([line], "in.jsonl", key=key, value=value)
    return record


@pytest.mark.parametrize(
    ("serde", "line", "meant"),
    [
        (serdes.json, '{"id": 1}', {"id": 1}),
        (serdes.json, "[1, null]", [1, None]),
        (serdes.json, '{"key": "a", "price": 1}', {"key": "a", "price": 1}),
        (serdes.string, "to be, or not to be", "to be, or not to be"),
        (serdes.string, '"quoted"', '"quoted"'),
        (serdes.string, "42", "42"),
        (serdes.string, '{"id": 1}', '{"id": 1}'),
        (serdes.long, "42", 42),
        (serdes.double, "2.5", 2.5),
        (serdes.bytes, '"text"', b"text"),
        (serdes.bytes, '{"base64": "/w=="}', b"\xff"),
        (serdes.json_of(Order), '{"id": "a", "price": 2.5}', Order("a", 2.5)),
        (avro.serde(SCHEMA), '{"id": "a", "price": 2.5}', {"id": "a", "price": 2.5}),
    ],
)
def test_a_line_is_what_a_producer_would_write(serde: Serde[Any], line: str, meant: object) -> None:
    record = read(line, serdes.string, serde)
    assert record.key is None
    assert record.value is not None
    assert serde.deserialize(record.value) == meant


@pytest.mark.parametrize(
    ("serde", "line", "said"),
    [
        (serdes.json, "{", "is not JSON"),
        (serdes.long, '"seven"', "serde long"),
        (serdes.long, '{"a": 12}', "serde long"),
        (serdes.double, '{"a": 12}', "serde double"),
        (serdes.json_of(Order), '{"id": "a"}', "price"),
        (serdes.json_of(Order), "7", "serde"),
        (avro.serde(SCHEMA), '{"id": "a"}', "price"),
        (serdes.json, '{"value": 1, "timestamp": "soon"}', "timestamp is 'soon'"),
        (serdes.json, '{"value": 1, "timestamp": -5}', "timestamp is -5"),
        (serdes.json, '{"value": 1, "timestamp": true}', "timestamp is True"),
        (serdes.json, '{"value": 1, "partition": "x"}', "partition is 'x'"),
        (serdes.json, '{"value": 1, "headers": 7}', "headers must be an object or pairs"),
        (serdes.json, '{"value": 1, "key": 7}', "the key does not match"),
    ],
)
def test_a_line_that_is_no_record_is_named(serde: Serde[Any], line: str, said: str) -> None:
    with pytest.raises(LineError, match=r"^in\.jsonl, line 1: ") as caught:
        read(line, serdes.string, serde)
    assert said in str(caught.value)


def test_a_whole_record_has_all_its_parts() -> None:
    line = (
        '{"topic": "t", "offset": 9, "key": 7, "value": null, "partition": 2, '
        '"timestamp": "1970-01-01T00:00:01Z", "headers": {"trace": "ab", "none": null}}'
    )
    record = read(line, serdes.long, serdes.json)
    assert record == LineRecord(
        1, serdes.long.serialize(7), None, 1000, 2, (("trace", b"ab"), ("none", None))
    )


def test_empty_lines_are_passed_over_and_counted() -> None:
    lines = ["", "1\r\n", "  \n", "2\n"]
    found = read_records(lines, "f", key=serdes.string, value=serdes.json)
    assert [(record.line, record.value) for record in found] == [(2, b"1"), (4, b"2")]


@pytest.mark.parametrize(
    ("value", "document"),
    [
        (None, None),
        (Order("a", 2.5), {"id": "a", "price": 2.5}),
        (Windowed("a", Window(0, 10)), {"key": "a", "window": {"start_ms": 0, "end_ms": 10}}),
        ({"a": [b"x", b"\xff"]}, {"a": ["x", {"base64": "/w=="}]}),
        (2**70, 2**70),
        (complex(1, 2), "(1+2j)"),
    ],
)
def test_what_is_printed_says_what_it_is(value: object, document: object) -> None:
    line = record_line("k", value, timestamp=5, partition=0, headers=[("h", b"x")])
    found = json.loads(line)
    assert found["value"] == document
    assert found["headers"] == [["h", "x"]]


@pytest.mark.parametrize("serde", [serdes.json, serdes.json_of(Order), avro.serde(SCHEMA)])
def test_what_is_printed_can_be_read_again(serde: Serde[Any]) -> None:
    data = b'{"id":"a","price":2.5}'
    value = serde.deserialize(
        avro.serde(SCHEMA).serialize(json.loads(data)) if serde.name.startswith("avro") else data
    )
    line = record_line(7, value, timestamp=5, partition=1, headers=[("h", b"x")])
    record = read(line, serdes.long, serde)
    assert record.value is not None
    assert serde.deserialize(record.value) == value
    assert (record.key, record.timestamp, record.partition) == (serdes.long.serialize(7), 5, 1)
    assert record.headers == (("h", b"x"),)


def test_a_header_that_is_bytes_is_printed_and_read_again() -> None:
    headers = [("gr\udcf6\udcdfe", b"\xff"), ("größe", None), ("n", b"1")]
    line = record_line("k", "v", headers=headers)
    assert json.loads(line)["headers"] == [
        [{"base64": "Z3L232U="}, {"base64": "/w=="}], ["größe", None], ["n", "1"]
    ]  # fmt: skip
    (read,) = read_records([line], "x", key=serdes.string, value=serdes.string)
    assert list(read.headers) == headers


PIECES = [
    b"a", b'"', b"\n", b"\n", b"\r\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"[", b"]", b'{"a":',
    b"}", b'{"a": 1}\n', b'"\\ud800"\n', b"NaN", b"9" * 5000, b"1e999\n", b"[" * 100_000, b"null\n",
    b'{"key": "k", "value": 1}\n', b'{"value": 1, "headers": {"\\ud800": "x"}}\n', b"123456789" * 9,
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))
@pytest.mark.parametrize("serde", [serdes.json, serdes.string, serdes.long], ids=str)
def test_random_bytes_are_records_or_an_error_with_its_line(serde: Serde[Any], data: bytes) -> None:
    count = 0
    lines = text_of(io.BytesIO(data))
    with suppress(LineError):
        for record in read_records(lines, "x", key=serdes.string, value=serde):
            count += 1
            assert record.value is None or isinstance(record.value, bytes)
        text = data.decode(errors="replace").removeprefix("\ufeff")
        written = io.StringIO(text, newline=None).readlines()
        assert count == sum(bool(line.strip()) for line in written)
