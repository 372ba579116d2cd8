"""SqliteSink: rows and positions in one file."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from headrace.streams.connectors.sqlite import SqliteSink
from headrace.topology import (
    SinkBatch,
    SinkFencedError,
    SinkRefusedError,
    SinkRow,
    SinkUnavailableError,
    SinkUnusableError,
    TopologyError,
)

COLUMNS = {"id": int, "name": str}
NEEDS_A_KEY = (
    "table goods needs a primary key or a unique index on id: "
    "ON CONFLICT clause does not match any PRIMARY KEY"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.db"


def batch(*values: Any, begin: int | None = None, key: Any = None) -> SinkBatch:
    first = begin or 0
    rows = [SinkRow(key, value, 0, first + i) for i, value in enumerate(values)]
    return SinkBatch("t@1", 0, begin, first + len(values), rows)


def rows_of(path: Path, table: str = "goods") -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


def test_rows_are_appended_and_the_position_moves_with_them(path: Path) -> None:
    sink = SqliteSink(path, "goods", COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        assert connection.positions("t@1", [0, 1]) == {}
        connection.write(batch({"id": 1, "name": "tea"}, {"id": 2, "name": "jam"}))
        connection.write(batch({"id": 2, "name": "jam"}, begin=2))
        assert connection.positions("t@1", [0, 1]) == {0: 3}
    assert rows_of(path) == [(1, "tea"), (2, "jam"), (2, "jam")]


def test_rows_take_the_place_of_those_with_their_key_and_are_deleted(path: Path) -> None:
    sink = SqliteSink(path, "goods", COLUMNS, key="id", create=True)
    rows = [SinkRow(1, "tea", 0, 0), SinkRow(2, "jam", 0, 1), SinkRow(1, "cha", 0, 2)]
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch("t@1", 0, None, 3, rows))
        assert rows_of(path) == [(1, "cha"), (2, "jam")]
        gone = [SinkRow(1, None, 0, 3), SinkRow(2, "ham", 0, 4), SinkRow(9, None, 0, 5)]
        connection.write(SinkBatch("t@1", 0, 3, 6, gone))
    assert rows_of(path) == [(2, "ham")]


@pytest.mark.parametrize("expected", [None, 1, 3])
def test_a_writer_that_is_wrong_about_the_position_is_fenced(
    path: Path, expected: int | None
) -> None:
    sink = SqliteSink(path, "goods", COLUMNS, create=True)
    with closing(sink.open("app/keep")) as first, closing(sink.open("app/keep")) as second:
        first.write(batch({"id": 1, "name": "tea"}, {"id": 2, "name": "jam"}))
        with pytest.raises(SinkFencedError, match=f"partition 0 of t@1 is not at {expected} in"):
            second.write(batch({"id": 9, "name": "ham"}, begin=expected))
        assert second.positions("t@1", [0]) == {0: 2}
    assert len(rows_of(path)) == 2


def test_positions_of_others_are_others(path: Path) -> None:
    sink = SqliteSink(path, "goods", COLUMNS, create=True)
    with closing(sink.open("a/keep")) as a, closing(sink.open("b/keep")) as b:
        a.write(batch({"id": 1, "name": "tea"}))
        assert b.positions("t@1", [0]) == {}
        assert a.positions("t@2", [0]) == {}
        b.write(batch({"id": 2, "name": "jam"}))
        assert set(a.keepers()) == {"a/keep", "b/keep"}
        other = SqliteSink(path, "others", COLUMNS, create=True)
        with closing(other.open("c/keep")) as c:
            assert list(c.keepers()) == [], "nothing was written into its table"
    assert len(rows_of(path)) == 2


@pytest.mark.parametrize(
    ("value", "column", "reason"),
    [
        ({"id": None, "name": "tea"}, "id", "NOT NULL constraint failed: goods.id"),
        ({"id": 1 << 70, "name": "tea"}, "id", "a number has more than 64 bits"),
        ({"id": 1, "name": object()}, "name", "SQLite has no type for a object"),
        ({"id": 1, "name": [object()]}, "name", "TypeError as JSON"),
        ({"id": 1, "name": "\ud800"}, "name", "text with a lone surrogate"),
        ({"id": 1, "name": [float("nan")]}, "name", "TypeError as JSON: JSON cannot represent NaN"),
        ({"id": 1}, "name", "the record has no value for this column"),
        (None, "id", "the value is null; filter the record out, or pass key="),
        (
            {"id": "x", "name": "tea"},
            "id",
            "a str that is not a number does not fit into INTEGER; ",
        ),
        ({"id": "1_0", "name": "tea"}, "id", "a str that is not a number"),
        (
            {"id": b"1", "name": "tea"},
            "id",
            "a bytes that is not a number does not fit into INTEGER",
        ),
    ],
)
def test_what_a_row_is_refused_for_is_said_and_nothing_is_written(
    path: Path, value: Any, column: str | None, reason: str
) -> None:
    sink = SqliteSink(path, "goods", COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        with pytest.raises(SinkRefusedError) as caught:
            connection.write(batch({"id": 1, "name": "tea"}, value))
        assert caught.value.table == "goods"
        assert caught.value.column == column
        assert caught.value.reason.startswith(reason)
        assert connection.positions("t@1", [0]) == {}
        connection.write(batch({"id": 1, "name": "tea"}))
    assert rows_of(path) == [(1, "tea")]


class Color(Enum):
    RED = "red"


@dataclass(frozen=True)
class Address:
    city: str
    since: date


class Size(NamedTuple):
    high: int
    color: Color


def test_values_of_typed_classes_are_json(path: Path) -> None:
    types = {"ship": object, "size": object, "color": object, "tags": object}
    values = {
        "ship": Address("Bern", date(2026, 1, 2)),
        "size": Size(2, Color.RED),
        "color": Color.RED,
        "tags": {"new"},
    }
    with closing(SqliteSink(path, "goods", types, create=True).open("app/keep")) as connection:
        connection.write(batch(values))
    assert rows_of(path) == [
        ('{"city": "Bern", "since": "2026-01-02"}', '[2, "red"]', "red", '["new"]')
    ]


def test_a_key_that_cannot_be_compared_is_refused(path: Path) -> None:
    sink = SqliteSink(path, "goods", {"id": list, "name": str}, key="id", create=True)
    with (
        closing(sink.open("app/keep")) as connection,
        pytest.raises(SinkRefusedError, match="its key cannot be compared"),
    ):
        connection.write(SinkBatch("t@1", 0, None, 1, [SinkRow([1], "tea", 0, 0)]))


def test_where_no_file_can_be_is_said_once_and_for_all(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, for " + "long " * 300)
    for place, said in [
        (tmp_path / "no" / "rows.db", f"directory {tmp_path / 'no'} does not exist. Create it"),
        (tmp_path, "is a directory. Name a file"),
        (tmp_path / "text", "file is not a database. Name another file"),
    ]:
        with pytest.raises(SinkUnusableError, match=said):
            SqliteSink(place, "goods", COLUMNS, create=True).open("app/keep")


def test_a_place_that_is_gone_later_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    sink = SqliteSink(tmp_path / "mount" / "rows.db", "goods", COLUMNS, create=True)
    sink.open("app/keep").close()
    shutil.rmtree(tmp_path / "mount")
    with pytest.raises(SinkUnavailableError, match="unable to open database file"):
        sink.open("app/keep")


def test_an_attempt_at_a_locked_file_holds_the_worker_for_a_moment(path: Path) -> None:
    sink = SqliteSink(path, "goods", COLUMNS, create=True)
    with (
        closing(sink.open("app/keep")) as connection,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        with pytest.raises(SinkUnavailableError, match="database is locked"):
            connection.write(batch({"id": 1, "name": "tea"}))
        assert time.monotonic() - begun < 2


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (COLUMNS, {"timeout": 5}, "timeout must be a timedelta, not int"),
        (COLUMNS, {"create": "yes"}, "create must be True or False, not a str"),
        ({"id": 5}, {}, "column id of table goods must have a type such as int"),
    ],
)
def test_what_it_is_given_is_looked_at(path: Path, columns: Any, options: Any, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        SqliteSink(path, "goods", columns, **options)


def test_a_file_that_another_one_writes_to_is_tried_again_later(path: Path) -> None:
    sink = SqliteSink(path, "goods", COLUMNS, create=True, timeout=timedelta(milliseconds=50))
    with closing(sink.open("app/keep")) as connection:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(SinkUnavailableError, match="database is locked"):
                connection.write(batch({"id": 1, "name": "tea"}))
        connection.write(batch({"id": 1, "name": "tea"}))
    assert rows_of(path) == [(1, "tea")]


def test_a_table_or_column_that_is_not_there_is_said(path: Path) -> None:
    with pytest.raises(
        SinkUnusableError, match=r"table goods does not exist in .*. Create it, or give create="
    ):
        SqliteSink(path, "goods", COLUMNS).open("app/keep")
    SqliteSink(path, "goods", COLUMNS, create=True).open("app/keep").close()
    with pytest.raises(SinkUnusableError, match=r"has no column price. Use its columns id, name"):
        SqliteSink(path, "goods", {**COLUMNS, "price": float}).open("app/keep")
    keyed = SqliteSink(path, "goods", COLUMNS, key="id")
    with (
        closing(keyed.open("app/keep")) as connection,
        pytest.raises(SinkUnusableError, match=NEEDS_A_KEY),
    ):
        connection.write(SinkBatch("t@1", 0, None, 1, [SinkRow(1, "tea", 0, 0)]))


def test_what_sqlite_has_no_type_for_is_text(path: Path) -> None:
    types = {"at": datetime, "price": Decimal, "id": UUID, "tags": list, "sold": bool}
    values = {
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "price": Decimal("9.50"),
        "id": UUID(int=7),
        "tags": ["a", "b"],
        "sold": True,
    }
    with closing(SqliteSink(path, "goods", types, create=True).open("app/keep")) as connection:
        connection.write(batch(values))
    assert rows_of(path) == [
        ("2026-01-02T03:04:05+00:00", "9.50", str(UUID(int=7)), '["a", "b"]', 1)
    ]


def test_text_that_is_a_number_is_one(path: Path) -> None:
    types = {"id": int, "price": float}
    with closing(SqliteSink(path, "goods", types, create=True).open("app/keep")) as connection:
        connection.write(batch({"id": "12", "price": "9.5"}))
    assert rows_of(path) == [(12, 9.5)]


def test_a_key_of_another_type_is_refused(path: Path) -> None:
    sink = SqliteSink(path, "goods", COLUMNS, key="id", create=True)
    with closing(sink.open("app/keep")) as connection:
        for value in ({"name": "tea"}, None):
            with pytest.raises(SinkRefusedError, match="does not fit into INTEGER"):
                connection.write(batch(value, key="x"))


@pytest.fixture(autouse=True)
def _no_connection_is_left(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    yield
    assert not [w for w in recwarn if issubclass(w.category, ResourceWarning)]


def test_what_is_no_number_is_not_taken_for_null(path: Path) -> None:
    sink = SqliteSink(path, "goods", {"id": int, "price": float | None}, create=True)
    with closing(sink.open("app/keep")) as connection:
        with pytest.raises(SinkRefusedError, match=r"SQLite has no NaN, .* with row=") as error:
            connection.write(batch({"id": 1, "price": 0.5}, {"id": 2, "price": float("nan")}))
        assert (error.value.column, error.value.offset) == ("price", 1)
        connection.write(batch({"id": 1, "price": float("inf")}, {"id": 2, "price": None}))
    assert rows_of(path) == [(1, float("inf")), (2, None)]


def deleted(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(f"{path}.new")) as new:
        old.backup(new)
    Path(f"{path}.new").replace(path)


def log_deleted(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def directory_renamed(path: Path) -> None:
    path.parent.rename(path.parent.with_name("away"))


def link_moved(path: Path) -> None:
    other = path.with_name("other.db")
    SqliteSink(other, "goods", COLUMNS, create=True).open("app/keep").close()
    path.unlink()
    path.symlink_to(other)


@pytest.mark.parametrize(
    "change", [deleted, replaced, log_deleted, directory_renamed, link_moved],
    ids=lambda change: change.__name__,
)  # fmt: skip
def test_a_file_that_is_replaced_while_it_is_open_gets_no_row(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "first.db").touch()
    path = tmp_path / "data" / "rows.db"
    path.symlink_to(tmp_path / "data" / "first.db") if change is link_moved else path.touch()
    sink = SqliteSink(path, "goods", COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        connection.write(batch({"id": 1, "name": "tea"}))
        change(path)
        kind = "replaced" if change in (replaced, link_moved) else "deleted"
        with pytest.raises(SinkUnavailableError, match=f"was {kind} while it was open"):
            connection.write(batch({"id": 2, "name": "jam"}, begin=1))
        with pytest.raises(SinkUnavailableError, match=f"was {kind} while it was open"):
            connection.positions("t@1", [0])
    if change is not directory_renamed:
        with closing(sink.open("app/keep")) as again:
            kept = {} if change in (deleted, link_moved) else {0: 1}
            assert again.positions("t@1", [0]) == kept
