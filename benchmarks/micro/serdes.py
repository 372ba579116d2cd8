"""Serdes of records beside the library calls underneath: ``python -m benchmarks.micro.serdes``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import msgspec
import orjson
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from benchmarks.micro.timing import Comparison, compare
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


def bare_avro(value: dict[str, Any]) -> bytes:
    out = BytesIO()
    schemaless_writer(out, PARSED, value)
    return out.getvalue()


def from_bare_avro(data: bytes) -> object:
    return schemaless_reader(BytesIO(data), PARSED, None)


def each(function: Callable[[Any], object], values: Iterable[Any]) -> Callable[[], object]:
    kept = list(values)

    def run() -> None:
        for value in kept:
            function(value)

    return run


def both_ways(
    name: str,
    serde: Serde[Any],
    values: Iterable[Any],
    write: Callable[[Any], bytes],
    read: Callable[[bytes], object],
) -> list[Comparison]:
    """Compare a serde's two sides, as the compiled topology calls them, with a library's."""
    values = list(values)
    data = [serde.serialize(value) for value in values]
    plain = [write(value) for value in values]
    decode = getattr(serde, "decoder", None) or serde.deserialize
    return [
        Comparison(f"{name}, write", RECORDS, each(serde.serialize, values), each(write, values)),
        Comparison(f"{name}, read", RECORDS, each(decode, data), each(read, plain)),
    ]


def main() -> None:
    encode = msgspec.json.Encoder(order="sorted").encode
    decode = msgspec.json.Decoder(Payment).decode
    registered = avro.registered(SCHEMA, registry=avro.MemoryRegistry(), subject="s")
    compare(
        "serdes; plain: the library's call",
        [
            *both_ways("json", serdes.json, DICTS, orjson.dumps, orjson.loads),
            *both_ways("json_of", serdes.json_of(Payment), OBJECTS, encode, decode),
            *both_ways(
                "json_of, unchecked",
                serdes.json_of(Payment, checked=False),
                OBJECTS,
                encode,
                decode,
            ),
            *both_ways("avro", avro.serde(SCHEMA), DICTS, bare_avro, from_bare_avro),
            *both_ways(
                "avro, unchecked",
                avro.serde(SCHEMA, checked=False),
                DICTS,
                bare_avro,
                from_bare_avro,
            ),
            *both_ways("avro, registered", registered, DICTS, bare_avro, from_bare_avro),
        ],
    )
    objects = avro.serde(SCHEMA, into=Payment)
    data = [objects.serialize(value) for value in OBJECTS]
    compare(
        "avro into a class",
        [
            Comparison("write", RECORDS, each(objects.serialize, OBJECTS), None),
            Comparison("read", RECORDS, each(objects.deserialize, data), None),
        ],
    )


if __name__ == "__main__":
    main()
