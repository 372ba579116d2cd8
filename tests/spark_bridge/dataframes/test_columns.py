"""What serdes' objects become in Spark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pytest

from headrace.spark_bridge.dataframes.columns import column_of, ddl_of, declared_column, times
from headrace.topology import serdes
from headrace.topology.errors import SerdeError


@dataclass(frozen=True)
class Line:
    sku: str
    count: int


@dataclass(frozen=True)
class Order:
    id: int
    price: float
    lines: list[Line]
    notes: dict[str, str]
    at: datetime | None = None


@dataclass(frozen=True)
class Either:
    one: int | str


@dataclass(frozen=True)
class Tree:
    children: list[Tree]


ORDER = serdes.json_of(Order)


@pytest.mark.parametrize(
    ("serde", "value", "ddl"),
    [
        (serdes.string, "é", "string"),
        (serdes.bytes, b"\x00", "binary"),
        (serdes.integer, -1, "int"),
        (serdes.long, 2**40, "bigint"),
        (serdes.double, 0.5, "double"),
        (serdes.list_of(serdes.long), [1, 2], "array<bigint>"),
        (serdes.list_of(serdes.string, nulls=True), ["a", None], "array<string>"),
    ],
)
def test_plain_serdes_have_types_of_their_own(serde: object, value: object, ddl: str) -> None:
    column = column_of(serde)  # type: ignore[arg-type]
    assert ddl_of(column.type) == ddl
    data = serde.serialize(value)  # type: ignore[attr-defined]
    assert column.array([data, None]).to_pylist() == [value, None]


def test_a_class_becomes_a_struct() -> None:
    column = column_of(ORDER)
    assert ddl_of(column.type) == (
        "struct<`id`:bigint,`price`:double,`lines`:array<struct<`sku`:string,`count`:bigint>>,"
        "`notes`:map<string,string>,`at`:string>"
    )
    order = Order(1, 2.0, [Line("a", 3)], {"n": "x"})
    (found,) = column.array([ORDER.serialize(order)]).to_pylist()
    assert found["lines"] == [{"sku": "a", "count": 3}]
    assert (found["notes"], found["at"]) == ([("n", "x")], None)


@pytest.mark.parametrize("cls", [Either, Tree])
def test_a_class_without_one_type_is_json_text(cls: type) -> None:
    serde = serdes.json_of(cls)
    value = cls([]) if cls is Tree else cls(1)
    column = column_of(serde)
    assert ddl_of(column.type) == "string"
    assert column.array([serde.serialize(value)]).to_pylist() == [serde.serialize(value).decode()]


def test_json_is_text_until_a_type_is_said() -> None:
    data = serdes.json.serialize({"b": [1], "a": "x"})
    assert column_of(serdes.json).array([data]).to_pylist() == ['{"a":"x","b":[1]}']
    kind = pa.struct([pa.field("b", pa.list_(pa.int64()))])
    assert declared_column(serdes.json, kind).array([data]).to_pylist() == [{"b": [1]}]
    assert declared_column(serdes.json, pa.binary()).array([data]).to_pylist() == [data]


def test_a_json_key_said_to_be_a_string_has_no_quotes() -> None:
    column = declared_column(serdes.json, pa.string())
    assert column.array([b'"fr"', b"1"]).to_pylist() == ["fr", "1"]


def test_another_type_than_that_of_the_objects_is_refused_with_the_way_out() -> None:
    column = declared_column(serdes.string, pa.int64())
    with pytest.raises(SerdeError, match=r"serde 'string' .* Spark type bigint.*value_type="):
        column.array([b"x"])


def test_objects_that_are_no_json_are_refused_with_the_way_out() -> None:
    serde = serdes.serde_from(serialize=lambda _: b"", deserialize=lambda _: object(), name="odd")
    with pytest.raises(SerdeError, match="'binary' for the bytes"):
        column_of(serde).array([b"x"])


def test_times_behind_the_year_9999_are_null() -> None:
    """Unlimited windows end at the largest long."""
    assert times([0, 2**63 - 1, None]).is_valid().to_pylist() == [True, False, False]
    assert times([1_700_000_000_123])[0].as_py().microsecond == 123_000
