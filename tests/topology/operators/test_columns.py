"""Columns: what of a record goes into which of them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

from headrace.topology import SinkRefusedError, SinkRow, TopologyError
from headrace.topology.operators.columns import Columns
from headrace.topology.windows import Window, Windowed


@dataclass(frozen=True)
class AsDataclass:
    id: int
    name: str | None


class AsStruct(msgspec.Struct):
    id: int
    name: str | None


class AsTuple(NamedTuple):
    id: int
    name: str | None


class AsDict(TypedDict):
    id: int
    name: str | None


def row(key: Any, value: Any) -> SinkRow:
    return SinkRow(key, value, 5, 7)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (AsDataclass, AsDataclass(1, "tea")),
        (AsStruct, AsStruct(1, "tea")),
        (AsTuple, AsTuple(1, "tea")),
        (AsDict, {"id": 1, "name": "tea", "more": True}),
    ],
)
def test_a_class_names_columns_and_its_objects_fill_them(kind: type, value: Any) -> None:
    columns = Columns("goods", kind)
    assert columns.types == {"id": int, "name": str}
    assert columns.nullable == {"name"}
    assert columns.values(row(None, value)) == (1, "tea")


def test_columns_of_the_key_come_from_the_key() -> None:
    columns = Columns("goods", AsDict, key="id")
    assert columns.values(row(3, {"name": "tea"})) == (3, "tea")
    assert columns.values(row(3, {"id": "3", "name": "tea"})) == (3, "tea")
    assert columns.key_of(row(3, None)) == (3,)


def test_a_plain_value_goes_into_the_only_column_that_is_left() -> None:
    columns = Columns("counts", {"shop": str, "item": str, "count": int}, key=["shop", "item"])
    assert columns.values(row(("a", "tea"), 3)) == ("a", "tea", 3)
    assert columns.values(row({"item": "tea", "shop": "a"}, 3)) == ("a", "tea", 3)


def test_a_windowed_key_has_the_ends_of_its_window() -> None:
    names = ["word", "window_start", "window_end"]
    columns = Columns("counts", {**dict.fromkeys(names, str), "count": int}, key=names)
    window = Window(60_000, 120_000)
    values = columns.values(row(Windowed("tea", window), 3))
    assert values == ("tea", window.start, window.end, 3)


def test_a_function_says_what_is_looked_at() -> None:
    columns = Columns("t", {"id": int, "twice": int}, row=lambda k, v: {"id": k, "twice": 2 * v})
    assert columns.values(row(1, 4)) == (1, 8)


def test_a_record_without_something_is_refused_by_its_place_and_column() -> None:
    columns = Columns("goods", AsDict)
    with pytest.raises(SinkRefusedError, match="table goods, column id: the record has no value"):
        columns.values(row(None, {"name": "tea"}))
    assert columns.values(row(None, {"id": 1})) == (1, None)


def test_a_null_key_names_no_row() -> None:
    with pytest.raises(SinkRefusedError, match="it is part of the key and must not be null"):
        Columns("goods", AsDict, key="id").key_of(row(None, None))


def test_an_error_of_the_function_does_not_show_what_it_was_given() -> None:
    columns = Columns("goods", AsDict, row=lambda key, value: value["none"])
    with pytest.raises(SinkRefusedError) as caught:
        columns.values(row(None, {"a secret": 1}))
    message = str(caught.value)
    assert message.startswith("table goods: row= raised KeyError (")
    assert "test_columns.py" in message
    assert "secret" not in message
    assert caught.value.offset == 7


def test_the_last_row_of_each_key_counts() -> None:
    columns = Columns("counts", {"word": str, "count": int}, key="word")
    rows = [row("a", 1), row("b", 1), row("a", None), row("b", 2), row("c", None)]
    there, gone = columns.last_of_each_key(rows)
    assert [(one.key, one.value) for one in there] == [("b", 2)]
    assert sorted(one.key for one in gone) == ["a", "c"]


def test_columns_and_key_must_fit() -> None:
    with pytest.raises(TopologyError, match=r"has no column id, .* columns: name"):
        Columns("t", {"name": str}, key="id")
    with pytest.raises(TopologyError, match="table t has no columns"):
        Columns("t", {})
    with pytest.raises(TopologyError, match=r"table t must be a dataclass, .* not a str"):
        Columns("t", "id")  # type: ignore[arg-type]


KINDS: list[tuple[Any, Any]] = [
    ({"id": int, "name": str}, {"id": 1, "name": "tea"}),
    ({"id": int, "name": str}, {"name": "tea"}),
    ({"id": int, "name": str | None}, {"id": 1}),
    (AsDataclass, AsDataclass(1, "tea")),
    (AsStruct, AsStruct(1, "tea")),
    (AsTuple, AsTuple(1, "tea")),
    ({"id": int, "name": str}, "tea"),
    ({"id": int}, 1),
]


@pytest.mark.parametrize(("kind", "value"), KINDS)
@pytest.mark.parametrize("given_key", [1, "k", None, (1,), ("k", 2), {"id": 1}, AsTuple(1, "x")])
@pytest.mark.parametrize("key", ["", "id"])
def test_what_is_taken_at_once_is_what_would_be_looked_for(
    kind: Any, value: Any, given_key: Any, key: str
) -> None:
    columns = Columns("goods", kind, key or ())
    one = row(given_key, value)
    found: list[Any] = []
    for look in (columns.values, lambda one: columns._values_by_name(one, one.value)):
        try:
            found.append(look(one))
        except SinkRefusedError as error:
            found.append(str(error))
    assert found[0] == found[1]


@pytest.mark.parametrize("types", [{"id": int}, {"id": int, "item": str}])
@pytest.mark.parametrize("key", [(), ("id",)])
def test_columns_that_have_filled_a_row_go_to_other_processes(
    types: dict[str, type], key: tuple[str, ...]
) -> None:
    columns = Columns("orders", types, key=key)
    one = row(1, {"id": 1, "item": "tea"})
    filled = columns.values(one)
    assert pickle.loads(pickle.dumps(columns)).values(one) == filled


@pytest.mark.parametrize(
    "value",
    [
        {"id": "o1", "name": "tea"},
        {"id": None, "name": "tea"},
        {"name": "tea", "id": "o1", "more": 1},
    ],
)
@pytest.mark.parametrize("wrap", [dict, lambda value: MappingProxyType(value)])
def test_a_value_with_another_key_than_the_record_s_is_refused(value: Any, wrap: Any) -> None:
    """Rows of all orders of a customer would replace each other."""
    columns = Columns("orders", {"id": str, "name": str}, key="id")
    with pytest.raises(SinkRefusedError, match=r"differ in this column; .*select_key") as error:
        columns.values(row("customer-7", wrap(value)))
    assert "customer-7" not in str(error.value)
    assert "o1" not in str(error.value)
    assert columns.values(row("o1", wrap({"id": "o1", "name": "tea"}))) == ("o1", "tea")
    assert columns.values(row("o1", wrap({"name": "tea"}))) == ("o1", "tea")


def test_so_is_one_of_a_class_of_several_parts_or_of_row() -> None:
    @dataclass(frozen=True)
    class Order:
        shop: str
        id: int
        name: str

    columns = Columns("orders", Order, key=("shop", "id"))
    order = Order("west", 7, "tea")
    assert columns.values(row(("west", 7), order)) == ("west", 7, "tea")
    assert columns.values(row(("west", "7"), order)) == ("west", "7", "tea")
    with pytest.raises(SinkRefusedError, match="select_key"):
        columns.values(row(("west", 8), order))
    made = Columns("orders", Order, key=("shop", "id"), row=lambda key, value: value)
    with pytest.raises(SinkRefusedError, match="select_key"):
        made.values(row(("east", 7), order))
    assert "id" not in Columns("t", {"id": int, "n": int}, key="id").advice("n")
    assert "select_key" in Columns("t", {"id": int, "n": int}, key="id").advice("id")
