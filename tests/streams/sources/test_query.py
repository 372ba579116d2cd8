"""Queries as sources: rows in the order of a column, from any value of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.sources import Query, SourceError


@pytest.fixture
def connect(tmp_path: Path) -> Callable[[], sqlite3.Connection]:
    def made() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "shop.db")

    with made() as connection:
        connection.execute("CREATE TABLE orders (id INTEGER, item TEXT)")
        rows = [(n, f"item {n}") for n in range(2500)]
        connection.executemany("INSERT INTO orders VALUES (?, ?)", rows)
    connection.close()
    return made


def read(source: Query, positions: dict[str, Any]) -> list[Any]:
    values = []
    for batch in source.read(dict(positions)):
        positions[batch.part] = batch.position
        values += [row.value for row in batch.rows]
    return values


def test_rows_are_read_once_and_new_ones_behind_them(connect: Callable[[], Any]) -> None:
    source, positions = Query(connect, "SELECT * FROM orders", "id"), dict[str, Any]()
    assert [value["id"] for value in read(source, positions)] == list(range(2500))
    assert read(source, positions) == []
    with connect() as connection:
        connection.execute("INSERT INTO orders VALUES (9000, 'tea')")
    assert read(source, positions) == [{"id": 9000, "item": "tea"}]
    assert positions == {"rows": 9000}


@pytest.mark.parametrize("style", ["qmark", "numeric", "named"])
def test_drivers_mark_parameters_as_they_like(connect: Callable[[], Any], style: str) -> None:
    source = Query(connect, "SELECT * FROM orders", "id", paramstyle=style)
    assert len(read(source, {"rows": 2490})) == 9


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT 1 AS id UNION ALL SELECT 1", "id has 1 twice"),
        ("SELECT NULL AS id", "id is null in a row"),
        ("SELECT 1 AS n", "no such column|has no column"),
    ],
)
def test_what_has_no_order_is_refused(connect: Callable[[], Any], sql: str, said: str) -> None:
    with pytest.raises((SourceError, sqlite3.Error), match=said):
        read(Query(connect, sql, "id"), {})


def test_a_column_is_a_name(connect: Callable[[], Any]) -> None:
    with pytest.raises(SourceError, match="must be the name of a column"):
        Query(connect, "SELECT 1", "id; DROP TABLE orders")
