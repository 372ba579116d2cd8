"""Queries as sources: rows in the order of a column, from any value of it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
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
    with pytest.raises(SourceError, match=said):
        read(Query(connect, sql, "id"), {})


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (
            "SELECT * FROM none",
            "rejects the query \\(OperationalError: no such table: none\\). Correct",
        ),
        ("SELECT * FRO", "rejects the query \\(OperationalError: .*syntax error"),
        ("SELECT abs(-9223372036854775808) AS id", "integer overflow"),
    ],
)
@pytest.mark.parametrize("positions", [{}, {"rows": 5}])
def test_what_the_database_refuses_is_said(
    connect: Callable[[], Any], sql: str, said: str, positions: dict[str, Any]
) -> None:
    with pytest.raises(SourceError, match=said):
        read(Query(connect, sql, "id"), positions)


def test_a_database_that_is_not_there_is_said_without_the_password() -> None:
    def unreached() -> Any:
        return psycopg.connect("postgresql://me:hunter2@127.0.0.1:1/shop", connect_timeout=5)

    def misspelt() -> Any:
        return psycopg.connect("postgres:/me:hunter2@127.0.0.1/shop password=hunter2 =")

    for connects in (unreached, misspelt):
        with pytest.raises(SourceError, match=r"no connection to the database \(") as refused:
            read(Query(connects, "SELECT 1 AS id", "id"), {})
        assert "hunter2" not in str(refused.value)
    with pytest.raises(
        SourceError, match="must return a connection of a DB-API driver, not a NoneType"
    ):
        read(Query(lambda: None, "SELECT 1 AS id", "id"), {})


def test_a_column_is_a_name(connect: Callable[[], Any]) -> None:
    with pytest.raises(SourceError, match="must be the name of a column"):
        Query(connect, "SELECT 1", "id; DROP TABLE orders")


def test_a_largest_value_that_went_back_is_refused(connect: Callable[[], Any]) -> None:
    source, positions = Query(connect, "SELECT * FROM orders", "id"), dict[str, Any]()
    read(source, positions)
    with connect() as connection:
        connection.execute("DELETE FROM orders WHERE id > 10")
    with pytest.raises(
        SourceError, match="the largest id is 10, although 2499 was read: the table"
    ):
        read(source, positions)
    with connect() as connection:
        connection.execute("DELETE FROM orders")
    assert read(source, positions) == []
    with connect() as connection:
        connection.execute("INSERT INTO orders VALUES (1, 'tea')")
    with pytest.raises(SourceError, match="the largest id is 1, although 2499 was read"):
        read(source, positions)
    with connect() as connection:
        connection.execute("INSERT INTO orders VALUES (3000, 'tea')")
    assert [row["id"] for row in read(source, positions)] == [3000]


@pytest.mark.parametrize("column", ["price", "day", "name"])
def test_a_largest_value_of_any_type_is_known_again(tmp_path: Path, column: str) -> None:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "any.db", detect_types=sqlite3.PARSE_DECLTYPES)

    with connect() as connection:
        connection.execute("CREATE TABLE t (price REAL, day TEXT, name TEXT)")
        rows = [(0.1 * n, f"2024-05-{n:02}", f"é{n:02}") for n in range(1, 9)]
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    source, positions = Query(connect, "SELECT * FROM t", column), dict[str, Any]()
    assert len(read(source, positions)) == 8
    assert read(source, json.loads(json.dumps(positions))) == []
