"""Rows as a table that is there takes them, and what is said of errors."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from headrace.streams.connectors.arrow import ArrowColumns, ArrowTableConverter, message_of
from headrace.topology import SinkRefusedError, SinkRow, SinkUnusableError

pa = pytest.importorskip("pyarrow")


def rows(*values: Any, key: Any = None) -> list[SinkRow]:
    return [SinkRow(key, value, 0, n) for n, value in enumerate(values)]


def test_the_table_says_types_order_and_what_may_be_null() -> None:
    schema = pa.schema(
        [
            pa.field("more", pa.string()),
            pa.field("price", pa.decimal128(9, 2)),
            pa.field("id", pa.int16(), False),
        ]
    )
    made = ArrowTableConverter(ArrowColumns("goods", {"id": int | None, "price": float}), schema)
    table = made.table(rows({"id": 1, "price": 9.5}, {"id": 2, "price": None}))
    assert table.schema == schema
    assert table.to_pylist() == [
        {"more": None, "price": Decimal("9.50"), "id": 1},
        {"more": None, "price": None, "id": 2},
    ]
    for value, reason in [(None, "it is null"), (1 << 20, "does not fit into int16")]:
        with pytest.raises(SinkRefusedError, match=reason) as caught:
            made.table(rows({"id": 1, "price": 0.0}, {"id": value, "price": 0.0}))
        assert (caught.value.column, caught.value.offset) == ("id", 1)


def test_what_is_declared_as_json_is_json_in_a_column_of_text() -> None:
    schema = pa.schema([pa.field("word", pa.large_string()), pa.field("more", pa.large_string())])
    made = ArrowTableConverter(ArrowColumns("goods", {"word": str, "more": object}), schema)
    table = made.table(rows({"word": "tea", "more": "tea"}, {"word": "jam", "more": {"a": [1]}}))
    assert table.to_pylist() == [
        {"word": "tea", "more": '"tea"'},
        {"word": "jam", "more": '{"a": [1]}'},
    ]


def test_keys_are_those_of_the_table() -> None:
    schema = pa.schema([pa.field("n", pa.int64()), pa.field("id", pa.int32(), False)])
    made = ArrowTableConverter(ArrowColumns("goods", {"id": int, "n": int}, "id"), schema)
    assert made.keys(rows(None, key=7)).schema == pa.schema([pa.field("id", pa.int32(), False)])


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"id": int, "price": float}, "table goods has no column price. Use its columns id, name"),
        ({"name": str}, "table goods has a column id that may not be null. Add it to"),
    ],
)
def test_columns_that_do_not_fit_are_said(columns: Any, reason: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())])
    with pytest.raises(SinkUnusableError, match=reason):
        ArrowTableConverter(ArrowColumns("goods", columns), schema)


def test_what_is_said_of_an_error_has_no_secret_and_one_line() -> None:
    text = "\x1b[31m↳\x1b[0m GET https://a:b@host/x?sig=secret&se=1\n  HTTP error " + "long " * 99
    found = message_of(OSError(text))
    assert found.startswith("GET https://***@host/x?*** HTTP error long")
    assert len(found) <= 300
    assert message_of(OSError()) == "OSError"
