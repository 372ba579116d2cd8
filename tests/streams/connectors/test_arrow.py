"""Rows as Arrow: types of columns, and values that are either what the record says or refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from headrace.streams.connectors.arrow import ArrowColumns, ArrowRows
from headrace.streams.connectors.sqlite import require
from headrace.topology import SinkRefusedError, SinkRow, SinkUnusableError, TopologyError


class Color(Enum):
    RED = "red"


@dataclass(frozen=True)
class Address:
    city: str
    since: date


class Size(msgspec.Struct):
    high: int


def rows_of(types: Any, *values: Any) -> list[dict[str, Any]]:
    rows = [SinkRow(None, value, 0, 7 + at) for at, value in enumerate(values)]
    found: list[dict[str, Any]] = ArrowRows(ArrowColumns("goods", types)).table(rows).to_pylist()
    return found


def written(kind: Any, value: Any) -> Any:
    (row,) = rows_of({"it": kind}, {"it": value})
    return row["it"]


NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
IN_BERN = NOW.astimezone(timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (bool, True, True),
        (int, 1 << 62, 1 << 62),
        (int, True, 1),
        (int, 2.0, 2),
        (float, 3, 3.0),
        (float, Decimal("1.5"), 1.5),
        (str, "a\0b", "a\0b"),
        (str, Color.RED, "red"),
        (str, UUID(int=7), str(UUID(int=7))),
        (str, NOW, NOW.isoformat()),
        (str, {"a": [1]}, '{"a": [1]}'),
        (bytes, bytearray(b"x"), b"x"),
        (datetime, NOW.replace(tzinfo=None), NOW),
        (datetime, IN_BERN, NOW),
        (date, NOW, NOW.date()),
        (time, time(1, 2), time(1, 2)),
        (timedelta, timedelta(minutes=1), timedelta(minutes=1)),
        (Decimal, 1.5, Decimal("1.500000000")),
        (UUID, UUID(int=7), str(UUID(int=7))),
        (list, [1, {"a": None}], '[1, {"a": null}]'),
        (Address, Address("Bern", date(2026, 1, 2)), '{"city": "Bern", "since": "2026-01-02"}'),
        (object, "tea", '"tea"'),
        (object, {"new"}, '["new"]'),
        (object, None, None),
        (int | None, None, None),
        ("int32", 5, 5),
        ("decimal(5, 2)", Decimal("1.5"), Decimal("1.50")),
        ("timestamp[ms]", IN_BERN.replace(microsecond=0), NOW.replace(microsecond=0, tzinfo=None)),
        (pa.list_(pa.string()), ("a", Color.RED, None), ["a", "red", None]),
        (pa.struct([("high", pa.int64()), ("no", pa.int64())]), Size(2), {"high": 2, "no": None}),
        (pa.map_(pa.string(), pa.float64()), {"a": 1}, [("a", 1.0)]),
        (pa.int64(), None, None),
    ],
)
def test_a_value_is_written_as_it_is(kind: Any, value: Any, expected: Any) -> None:
    assert written(kind, value) == expected


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (int, 1.5, "a float does not fit into int64; convert it with row="),
        (int, "5", "a str does not fit into int64"),
        (int, 1 << 70, "a number has more bits than int64"),
        ("int8", 200, "a int does not fit into int8"),
        (float, 1 << 60 | 1, None),
        (bool, 1, "a int does not fit into bool"),
        (str, 5, "a int does not fit into string"),
        (str, "\ud800", "text with a lone surrogate"),
        (bytes, "x", "a str does not fit into binary"),
        (datetime, 5, r"a int does not fit into timestamp\[us, tz=UTC\]"),
        (date, 5, "a int does not fit into date32"),
        (time, 5, "a int does not fit into time64"),
        (timedelta, 5, "a int does not fit into duration"),
        (Decimal, Decimal("0.1234567891"), "a Decimal does not fit into decimal128"),
        (Decimal, Decimal("NaN"), "a Decimal does not fit into decimal128"),
        (Decimal, "1.5", "a str does not fit into decimal128"),
        (object, {"a": object()}, "TypeError as JSON: it has no type for a object"),
        (int, None, "it is null, and the column must not be"),
        (pa.list_(pa.int64()), [1, 1.5], "a list does not fit into list"),
        (pa.struct([("a", pa.int64())]), 5, "a int does not fit into struct"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_its_row(
    kind: Any, value: Any, reason: str | None
) -> None:
    if reason is None:  # what Python itself makes of it
        assert written(kind, value) == float(value)
        return
    fitting = {"it": {bool: True, str: "a", bytes: b"a"}.get(kind)}
    rows = [fitting, {"it": value}] if fitting["it"] is not None else [{"it": value}]
    with pytest.raises(SinkRefusedError, match=f"table goods, column it: {reason}") as caught:
        rows_of({"it": kind}, *rows)
    assert caught.value.offset == 7 + len(rows) - 1


def test_no_refusal_quotes_a_value() -> None:
    with pytest.raises(SinkRefusedError) as caught:
        rows_of({"it": "decimal(5, 2)"}, {"it": "a secret"})
    assert "secret" not in str(caught.value)


def test_columns_may_be_null_where_they_say_so() -> None:
    types = {"id": int, "name": str | None, "more": object, "tags": pa.list_(pa.string())}
    schema = ArrowRows(ArrowColumns("goods", types)).schema
    assert {field.name: field.nullable for field in schema} == {
        "id": False,
        "name": True,
        "more": True,
        "tags": True,
    }


def test_what_arrow_does_not_know_is_said() -> None:
    said = "column id of table goods is given 'bigint', which Arrow does not know; give a type of"
    with pytest.raises(SinkUnusableError, match=said):
        ArrowRows(ArrowColumns("goods", {"id": "bigint"}))
    with pytest.raises(TopologyError, match="column id of table goods must have a type"):
        ArrowColumns("goods", {"id": 5})  # type: ignore[dict-item]


def test_the_columns_of_the_key_alone() -> None:
    rows = ArrowRows(ArrowColumns("counts", {"word": str, "count": int}, key="word"))
    gone = [SinkRow("a", None, 0, 1), SinkRow("b", None, 0, 2)]
    assert rows.keys(gone).to_pylist() == [{"word": "a"}, {"word": "b"}]
    assert rows.keys([]).num_rows == 0
    assert rows.table([]).schema == rows.schema


def test_an_extra_that_is_not_installed_is_named() -> None:
    said = r"ParquetSink requires nowhere\. Run: pip install 'headrace\[parquet\]'"
    with pytest.raises(SinkUnusableError, match=said):
        require("nowhere.at_all", "ParquetSink", "parquet")
