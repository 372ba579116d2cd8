"""Serdes, compared with the library calls that they use: ``python -m benchmarks.micro.serdes``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import msgspec
import orjson
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from benchmarks.micro.timing import TimedPair, print_times
from headrace import avro, serdes
from headrace.topology.serdes import Serde

RECORDS = 1000
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "account", "type": "string"},
        {"name": "amount", "type": "long"},
        {"name": "currency", "type": "string"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


@dataclass(frozen=True)
class Payment:
    account: str
    amount: int
    currency: str
    note: str | None = None


DICTS = [
    {"account": f"account-{i:06}", "amount": i, "currency": "EUR", "note": None}
    for i in range(RECORDS)
]
OBJECTS = [Payment(f"account-{i:06}", i, "EUR") for i in range(RECORDS)]
PARSED = parse_schema(SCHEMA)


def plain_avro(value: dict[str, Any]) -> bytes:
    out = BytesIO()
    schemaless_writer(out, PARSED, value)
    return out.getvalue()


def from_plain_avro(data: bytes) -> object:
    return schemaless_reader(BytesIO(data), PARSED, None)


def each(function: Callable[[Any], object], values: Iterable[Any]) -> Callable[[], object]:
    items = list(values)

    def run() -> None:
        for value in items:
            function(value)

    return run


def write_and_read(
    name: str,
    serde: Serde[Any],
    values: Iterable[Any],
    write: Callable[[Any], bytes],
    read: Callable[[bytes], object],
) -> list[TimedPair]:
    """Compare both directions of a serde, as generated code calls it, with a library."""
    values = list(values)
    data = [serde.serialize(value) for value in values]
    plain = [write(value) for value in values]
    decode = getattr(serde, "decoder", None) or serde.deserialize
    return [
        TimedPair(f"{name}, write", RECORDS, each(serde.serialize, values), each(write, values)),
        TimedPair(f"{name}, read", RECORDS, each(decode, data), each(read, plain)),
    ]


def main() -> None:
    """Time serdes."""
    encode = msgspec.json.Encoder(order="sorted").encode
    decode = msgspec.json.Decoder(Payment).decode
    registered = avro.registered(SCHEMA, registry=avro.MemoryRegistry(), subject="s")
    print_times(
        "serdes, ns per value; plain Python is the library call",
        [
            *write_and_read("json", serdes.json, DICTS, orjson.dumps, orjson.loads),
            *write_and_read("json_of", serdes.json_of(Payment), OBJECTS, encode, decode),
            *write_and_read(
                "json_of, unchecked",
                serdes.json_of(Payment, checked=False),
                OBJECTS,
                encode,
                decode,
            ),
            *write_and_read("avro", avro.serde(SCHEMA), DICTS, plain_avro, from_plain_avro),
            *write_and_read(
                "avro, unchecked",
                avro.serde(SCHEMA, checked=False),
                DICTS,
                plain_avro,
                from_plain_avro,
            ),
            *write_and_read("avro, registered", registered, DICTS, plain_avro, from_plain_avro),
        ],
    )
    objects = avro.serde(SCHEMA, into=Payment)
    data = [objects.serialize(value) for value in OBJECTS]
    print_times(
        "avro into a class",
        [
            TimedPair("write", RECORDS, each(objects.serialize, OBJECTS), None),
            TimedPair("read", RECORDS, each(objects.deserialize, data), None),
        ],
    )


if __name__ == "__main__":
    main()
