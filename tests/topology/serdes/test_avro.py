"""`avro.serde` writes Avro as others do, refuses what would be coerced, and follows schemas."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from io import BytesIO
from typing import Any, assert_type

import pytest
from avro.io import BinaryDecoder, BinaryEncoder, DatumReader, DatumWriter
from avro.schema import parse
from hypothesis import given
from hypothesis import strategies as st

from headrace.topology.errors import SerdeError, TopologyError
from headrace.topology.serdes import Serde, avro

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": "double"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "map", "values": "int"}, "default": {}},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Item",
                    "fields": [{"name": "sku", "type": "string"}],
                },
            },
            "default": [],
        },
    ],
}
LOGICAL: dict[str, Any] = {
    "type": "record",
    "name": "Sale",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}},
    ],
}


class Side(Enum):
    BUY = "BUY"
    SELL = "SELL"


@dataclass(frozen=True)
class Item:
    sku: str


@dataclass
class Order:
    id: int
    amount: float
    note: str | None
    tags: dict[str, int]
    items: list[Item]


@dataclass(frozen=True)
class Sale:
    at: datetime
    price: Decimal
    side: Side


def record(*fields: tuple[Any, ...], name: str = "R", **more: Any) -> dict[str, Any]:
    """A record schema; each field is its name, its type and perhaps more."""
    made = [{"name": n, "type": t, **(rest[0] if rest else {})} for n, t, *rest in fields]
    return {"type": "record", "name": name, "fields": made, **more}


INT_64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.fixed_dictionaries(
    {
        "id": INT_64,
        "amount": st.floats(allow_nan=False),
        "note": st.none() | st.text(),
        "tags": st.dictionaries(st.text(), st.integers(-9, 9), max_size=3),
        "items": st.lists(st.fixed_dictionaries({"sku": st.text()}), max_size=3),
    }
)
dicts = avro.serde(ORDER)
objects = avro.serde(ORDER, into=Order)


@given(VALUES)
def test_records_are_the_bytes_of_apache_avro(value: dict[str, Any]) -> None:
    """Apache's own implementation writes the same, and each reads the other."""
    schema = parse(json.dumps(ORDER))
    out = BytesIO()
    DatumWriter(schema).write(value, BinaryEncoder(out))
    data = dicts.serialize(value)
    assert data == out.getvalue()
    assert DatumReader(schema).read(BinaryDecoder(BytesIO(data))) == value
    assert dicts.deserialize(data) == value


@given(VALUES)
def test_a_dataclass_has_the_bytes_of_its_record(value: dict[str, Any]) -> None:
    order = Order(**{**value, "items": [Item(**item) for item in value["items"]]})
    data = objects.serialize(order)
    assert data == dicts.serialize(value)
    assert objects.deserialize(data) == order


def test_logical_types_are_python_s_own() -> None:
    sale = Sale(datetime(2024, 2, 29, tzinfo=UTC), Decimal("12.50"), Side.SELL)
    serde = avro.serde(LOGICAL, into=Sale)
    assert serde.deserialize(serde.serialize(sale)) == sale


def test_fields_that_are_left_out_take_the_schema_s_defaults() -> None:
    data = dicts.serialize({"id": 1, "amount": 2})
    assert dicts.deserialize(data) == {
        "id": 1,
        "amount": 2.0,
        "note": None,
        "tags": {},
        "items": [],
    }


@pytest.mark.parametrize("schema", ['"long"', "long", {"type": "long"}], ids=str)
def test_a_schema_is_text_or_what_it_loads(schema: Any) -> None:
    serde = avro.serde(schema)
    assert (serde.serialize(-2), serde.name) == (b"\x03", "avro(long)")
    assert serde.deserialize(b"\x03") == -2
    assert avro.serde(json.dumps(ORDER)) == dicts


@pytest.mark.parametrize("schema", ["hunter", "{", {"type": "record"}, 5, {"type": "R"}], ids=str)
def test_what_is_no_schema_is_refused_at_once(schema: Any) -> None:
    with pytest.raises(TopologyError, match="schema"):
        avro.serde(schema).serialize(1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "hunter2"}, "field 'shop.Order.id' is not long"),
        ({"id": True}, "field 'shop.Order.id' is not long"),
        ({"id": 1.5}, "field 'shop.Order.id' is not long"),
        ({"id": 2**70}, "field 'shop.Order.id' is not long"),
        ({"id": None}, "field 'shop.Order.id' is not long"),
        ({"note": 5}, "field 'shop.Order.note' is not null or string"),
        ({"tags": {"hunter2": "hunter2"}}, "field 'shop.Order.tags' is not int"),
        ({"items": [{"sku": 5}]}, "field 'shop.Item.sku' is not string"),
        ({"items": 5}, "field 'shop.Order.items' is not array"),
        ({"more": 1}, "more fields than the schema specifies: more"),
    ],
    ids=str,
)
def test_what_would_be_coerced_or_left_out_is_refused_with_the_field(
    change: dict[str, Any], said: str
) -> None:
    with pytest.raises(SerdeError) as caught:
        dicts.serialize({"id": 1, "amount": 1.0, **change})
    assert "serde 'avro(shop.Order)' cannot encode a value of type dict" in str(caught.value)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", [None, 5, "x", {}, {"id": 1}, {"amount": 1.0}], ids=repr)
def test_what_is_no_record_of_the_schema_is_refused(value: Any) -> None:
    with pytest.raises(SerdeError, match="cannot encode"):
        dicts.serialize(value)


def test_an_object_of_another_class_is_refused() -> None:
    for other in ({"id": 1}, Item("a"), None):
        with pytest.raises(SerdeError, match="must be of type Order"):
            objects.serialize(other)  # type: ignore[arg-type]


def test_an_object_with_a_wrong_field_is_refused_with_the_field() -> None:
    with pytest.raises(SerdeError, match=r"field 'shop\.Order\.id' is not long") as caught:
        objects.serialize(Order("hunter2", 1.0, None, {}, []))  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused_with_an_error_of_the_serde(data: bytes) -> None:
    for serde in (dicts, objects):
        with suppress(SerdeError):
            serde.deserialize(data)


def test_bytes_that_are_cut_off_or_go_on_are_refused() -> None:
    data = dicts.serialize({"id": 1, "amount": 2.0, "note": "hunter2"})
    for wrong in (*(data[:i] for i in range(len(data))), data + b"x"):
        with pytest.raises(SerdeError, match="cannot decode") as caught:
            dicts.deserialize(wrong)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(SerdeError, match="type str"):
        dicts.deserialize("text")  # type: ignore[arg-type]


def test_data_that_the_class_does_not_take_is_refused_with_the_field() -> None:
    @dataclass
    class Wrong:
        id: str

    data = avro.serde(record(("id", "long"))).serialize({"id": 7})
    with pytest.raises(SerdeError, match=r"Expected `str`, got `int` at `\$\.id` for Wrong"):
        avro.serde(record(("id", "long")), into=Wrong).deserialize(data)


A = record(("a", "int"), ("b", "string"))


@pytest.mark.parametrize(
    ("newer", "read"),
    [
        (
            record(("a", "int"), ("b", "string"), ("c", "int", {"default": 5})),
            {"a": 1, "b": "x", "c": 5},
        ),
        (record(("a", "int")), {"a": 1}),
        (record(("z", "int", {"aliases": ["a"]}), ("b", "string")), {"z": 1, "b": "x"}),
        (record(("a", "long"), ("b", "string")), {"a": 1, "b": "x"}),
        (record(("a", ["null", "int"]), ("b", "string")), {"a": 1, "b": "x"}),
        (record(("a", "int"), ("b", "string"), name="Q", aliases=["R"]), {"a": 1, "b": "x"}),
    ],
    ids=["added with default", "removed", "alias", "int to long", "to a union", "record alias"],
)
def test_older_data_is_read_in_a_newer_shape(newer: dict[str, Any], read: dict[str, Any]) -> None:
    data = avro.serde(A).serialize({"a": 1, "b": "x"})
    assert avro.serde(A, reader=newer).deserialize(data) == read


@pytest.mark.parametrize(
    ("newer", "said"),
    [
        (record(("a", "int"), ("b", "string"), ("c", "int")), "default value: c"),
        (record(("a", "string"), ("b", "string")), "reader type: string"),
        (record(("z", "int"), ("b", "string")), "default value: z"),
        (record(("a", "int"), ("b", "string"), name="Q"), "name mismatch"),
    ],
    ids=["added without default", "int to string", "renamed", "another record"],
)
def test_a_shape_that_cannot_read_the_data_is_refused_at_once(
    newer: dict[str, Any], said: str
) -> None:
    with pytest.raises(TopologyError, match=said):
        avro.serde(A, reader=newer)


def test_a_serde_with_another_reader_schema_does_not_write() -> None:
    with pytest.raises(SerdeError, match="cannot write"):
        avro.serde(A, reader=A).serialize({"a": 1, "b": "x"})


def test_an_unchecked_serde_coerces_as_fastavro_does() -> None:
    serde = avro.serde(record(("a", "int")), checked=False)
    assert serde.deserialize(serde.serialize({"a": 1.5, "more": 1})) == {"a": 1}


@pytest.mark.parametrize(
    ("serde", "immutable"),
    [
        (avro.serde("string"), True),
        (avro.serde("long"), True),
        (dicts, False),
        (objects, False),
        (avro.serde(LOGICAL, into=Sale), True),
        (avro.serde({"type": "array", "items": "int"}), False),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_only_plain_values_and_frozen_classes_are_immutable(
    serde: Serde[Any], immutable: bool
) -> None:
    assert serde.immutable is immutable
    assert not serde.canonical


def test_a_serde_travels_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(objects)) == objects


def test_a_type_checker_knows_the_class() -> None:
    assert_type(avro.serde(ORDER, into=Order), Serde[Order])
    assert_type(avro.serde(ORDER), Serde[Any])


def test_importing_the_topology_loads_no_avro() -> None:
    code = (
        "import sys, headrace.topology, headrace.streams.testing.driver\n"
        "print({'fastavro', 'avro'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@dataclass(frozen=True)
class Longer:
    id: int
    note: str
    more: int = 0


def test_a_class_that_requires_what_the_schema_lacks_is_refused_when_the_serde_is_made() -> None:
    schema = record(("id", "long"))
    lacking = "Longer requires note, which the schema of .* does not have"
    with pytest.raises(TopologyError, match=lacking):
        avro.serde(schema, into=Longer)
    with pytest.raises(TopologyError, match=lacking):
        avro.registered(schema, registry=avro.MemoryRegistry(), into=Longer)
    whole = record(("id", "long"), ("note", "string"))
    with pytest.raises(TopologyError, match=lacking):
        avro.serde(whole, reader=schema, into=Longer)
    made = avro.serde(whole, into=Longer)
    assert made.deserialize(b"\x06\x02a") == Longer(3, "a")
