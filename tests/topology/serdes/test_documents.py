"""What people write as JSON becomes the bytes that a producer would have written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from headrace import SerdeError, avro, serdes
from headrace.streams.cli.record_lines import record_line
from headrace.streams.queries.answers import StoreRow
from headrace.streams.queries.errors import QueryError
from headrace.streams.queries.parsing import row_document
from headrace.topology.serdes import Serde
from headrace.topology.serdes.documents import to_bytes, to_document


@dataclass(frozen=True)
class Place:
    """Its fields are in no order of letters."""

    shelf: str
    aisle: int
    box: float = 0.0


class Spot(msgspec.Struct, frozen=True):
    y: int
    x: int = 0


@pytest.mark.parametrize(
    ("serde", "value", "document"),
    [
        (serdes.json_of(Place), Place("b", 1, 2.0), {"shelf": "b", "aisle": 1, "box": 2.0}),
        (serdes.json_of(Place), Place("b", 1), {"aisle": 1, "shelf": "b"}),
        (serdes.json_of(Spot), Spot(y=2), {"y": 2, "x": 0}),
        (
            serdes.json_of(tuple[str, Place]),
            ("a", Place("b", 1)),
            ["a", {"shelf": "b", "aisle": 1}],
        ),
        (serdes.json, {"z": 1, "a": [2]}, {"z": 1, "a": [2]}),
    ],
)
def test_a_document_of_a_key_is_written_as_its_serde_writes_it(
    serde: Serde[object], value: object, document: object
) -> None:
    """Otherwise a row that is there would not be found."""
    assert to_bytes(document, serde) == serde.serialize(value)
    assert to_bytes(to_document(value), serde) == serde.serialize(value)


def test_a_document_that_is_no_such_value_is_refused() -> None:
    with pytest.raises(SerdeError, match="its JSON is not a valid value either"):
        to_bytes({"shelf": 7}, serdes.json_of(Place))


@dataclass(frozen=True)
class Item:
    shop: str
    number: int


@dataclass(frozen=True)
class Stamp:
    mark: bytes


ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [{"name": "shop", "type": "string"}, {"name": "number", "type": "long"}],
}
STAMP = {"type": "record", "name": "Stamp", "fields": [{"name": "mark", "type": "bytes"}]}


@pytest.mark.parametrize(
    "serde",
    [
        avro.serde(ITEM, into=Item),
        avro.registered(ITEM, registry=avro.MemoryRegistry(), into=Item).for_topic(
            "items", is_key=True
        ),
    ],
    ids=["bare", "registered"],
)
def test_a_document_of_a_class_in_avro_is_written_as_its_object(serde: Serde[Item]) -> None:
    item = Item("a", 7)
    assert to_bytes(to_document(item), serde) == serde.serialize(item)


def test_a_document_that_makes_no_object_of_the_class_says_why() -> None:
    with pytest.raises(SerdeError, match=r"cannot create Item from it: .*number"):
        to_bytes({"shop": "a"}, avro.serde(ITEM, into=Item))
    with pytest.raises(SerdeError, match="it must be of type Item"):
        to_bytes("a", avro.serde(ITEM, into=Item))


def test_text_that_would_be_taken_for_base64_of_bytes_is_refused() -> None:
    serde = avro.serde(STAMP, into=Stamp)
    with pytest.raises(SerdeError, match="converted to an object, it would be"):
        to_bytes({"mark": "abcd"}, serde)


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: Any = 1
    for _ in range(5_000):
        value = [value]
    with pytest.raises(SerdeError, match="nested too deeply"):
        to_document(value)
    assert "nested too deeply" in json.loads(record_line("k", value))["error"]
    # Java's clients write such bytes, and orjson reads them.
    deep = serdes.json.deserialize(b"[" * 1_020 + b"]" * 1_020)
    with pytest.raises(QueryError, match="nested too deeply"):
        row_document(StoreRow(key="k", value=deep, timestamp=0, partition=1))
