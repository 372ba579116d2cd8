"""examples/orders_into_postgres.py, into a server: without a broker, and on a real one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.orders_into_postgres import orders_into_postgres
from headrace.streams import TopologyTestDriver
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.postgres import PostgresServer
from tests.support.topics import Topics

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.slow

ORDERS = [
    ("o1", {"customer": "ann", "item": "tea", "cents": 250}),
    ("o2", {"customer": "bob", "item": "cup", "cents": 900}),
    ("o3", {"customer": "ann", "item": "jam", "cents": 100}),
]
ROWS = [("o1", "ann", "tea", 250), ("o2", "bob", "cup", 900), ("o3", "ann", "jam", 100)]
SUMS = [("ann", 2, 350), ("bob", 1, 900)]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    made = PostgresServer()
    yield made.url
    made.close()


@pytest.fixture
def database(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"shop_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url: str = psycopg.conninfo.make_conninfo(server, dbname=name)
    monkeypatch.setenv("ORDERS_DATABASE", url)
    return url


def rows(url: str, table: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        found: list[Any] = connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
        return found


def test_orders_and_sums_are_rows(database: str) -> None:
    with TopologyTestDriver(orders_into_postgres(), real_sinks=True) as driver:
        driver.input("orders-to-keep").send_many(ORDERS)
    assert rows(database, "orders") == ROWS
    assert rows(database, "customers") == SUMS


def test_each_order_is_there_once_on_kafka(database: str, topics: Topics, tmp_path: Path) -> None:
    source = topics.create("orders", partitions=2)
    kafka.write(
        topics.bootstrap,
        source,
        [(key.encode(), json.dumps(order).encode()) for key, order in ORDERS],
    )
    for _ in range(2):  # it goes on where it was
        with live(orders_into_postgres(source), settings_of(topics, tmp_path)) as app:
            app.wait(lambda: _is_complete(database), what="all rows")
    assert rows(database, "orders") == ROWS
    assert rows(database, "customers") == SUMS


def _is_complete(url: str) -> bool:
    try:
        return len(rows(url, "orders")) == len(ROWS) and rows(url, "customers") == SUMS
    except psycopg.errors.UndefinedTable:
        return False  # nobody has made them yet
