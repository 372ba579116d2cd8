"""IcebergSink: rows and positions in one commit of the table, with a catalog of our own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from headrace.streams.connectors.iceberg import IcebergSink
from headrace.streams.testing.check_sink import check_sink
from headrace.topology import (
    SinkBatch,
    SinkFencedError,
    SinkRefusedError,
    SinkRow,
    SinkUnavailableError,
    SinkUnusableError,
    TopologyError,
)

pa = pytest.importorskip("pyarrow")
catalogs = pytest.importorskip("pyiceberg.catalog")

COLUMNS = {"id": int, "name": str}
TABLE = "shop.goods"


@pytest.fixture
def catalog(tmp_path: Path) -> dict[str, str]:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    return {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/lake"}


def table_of(catalog: dict[str, str]) -> Any:
    return catalogs.load_catalog(**catalog).load_table(TABLE)


def rows_of(catalog: dict[str, str]) -> list[Any]:
    found = table_of(catalog).scan().to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def ids_of(catalog: dict[str, str]) -> list[int]:
    return sorted(row[0] for row in rows_of(catalog))


def batch(*values: Any, begin: int | None = None) -> SinkBatch:
    first = begin or 0
    rows = [SinkRow(None, value, 0, first + i) for i, value in enumerate(values)]
    return SinkBatch("t@1", 0, begin, first + len(values), rows)


def good(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"good {number}"}


def row(number: int, offset: int = 0) -> SinkRow:
    return SinkRow(number, good(number), 0, offset)


def test_rows_are_appended_and_the_position_moves_with_them(catalog: dict[str, str]) -> None:
    sink = IcebergSink(catalog, TABLE, COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        assert connection.positions("t@1", [0, 1]) == {}
        connection.write(batch(good(1), good(2)))
        connection.write(batch(good(2), begin=2))
        connection.write(SinkBatch("t@1", 0, 3, 9, []))
        assert connection.positions("t@1", [0, 1]) == {0: 9}
    assert rows_of(catalog) == [(1, "good 1"), (2, "good 2"), (2, "good 2")]
    sink = IcebergSink(lambda: catalogs.load_catalog(**catalog), TABLE, COLUMNS)
    with closing(sink.open("app/keep")) as connection:
        assert connection.positions("t@1", [0, 1]) == {0: 9}
        assert connection.positions("t@2", [0, 1]) == {}
    with closing(sink.open("other/keep")) as connection:
        assert connection.positions("t@1", [0, 1]) == {}


def test_rows_take_the_place_of_those_with_their_key_and_are_deleted(
    catalog: dict[str, str],
) -> None:
    columns = {"Id of it": int, "name": str | None}
    sink = IcebergSink(catalog, TABLE, columns, key="Id of it", create=True)
    rows = [SinkRow(1, "tea", 0, 0), SinkRow(2, "jam", 0, 1), SinkRow(1, "cha", 0, 2)]
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch("t@1", 0, None, 3, rows))
        assert rows_of(catalog) == [(1, "cha"), (2, "jam")]
        gone = [SinkRow(1, None, 0, 3), SinkRow(2, "ham", 0, 4), SinkRow(9, None, 0, 5)]
        connection.write(SinkBatch("t@1", 0, 3, 6, gone))
        assert rows_of(catalog) == [(2, "ham")]
        connection.write(SinkBatch("t@1", 0, 6, 7, [SinkRow(2, None, 0, 6)]))
        assert connection.positions("t@1", [0]) == {0: 7}
    assert rows_of(catalog) == []


def test_the_position_moves_where_no_row_changes(catalog: dict[str, str]) -> None:
    sink = IcebergSink(catalog, TABLE, COLUMNS, key="id", create=True)
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch("t@1", 0, None, 1, [SinkRow(9, None, 0, 0)]))
        connection.write(SinkBatch("t@1", 0, 1, 2, [row(1, 1)]))
        connection.write(SinkBatch("t@1", 0, 2, 3, [SinkRow(9, None, 0, 2)]))
        connection.write(SinkBatch("t@1", 0, 3, 4, [row(1, 3)]))
        assert connection.positions("t@1", [0]) == {0: 4}
    assert ids_of(catalog) == [1]


def test_rows_may_have_keys_of_several_columns(catalog: dict[str, str]) -> None:
    columns = {"id": int, "at": datetime, "n": int}
    sink = IcebergSink(catalog, TABLE, columns, key=["id", "at"], create=True)
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    keys = [(1, early), (1, late), (2, early), (2, late)]
    rows = [SinkRow(key, {"n": n}, 0, n) for n, key in enumerate(keys)]
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch("t@1", 0, None, 4, rows))
        changed = [SinkRow((1, early), {"n": 10}, 0, 4), SinkRow((2, late), None, 0, 5)]
        connection.write(SinkBatch("t@1", 0, 4, 6, changed))
    assert [(i, n) for i, _, n in rows_of(catalog)] == [(1, 10), (1, 1), (2, 2)]


# -- who is wrong about the position ---------------------------------------------------------------


@pytest.mark.parametrize("key", [(), "id"])
@pytest.mark.parametrize("expected", [None, 1, 3])
def test_a_writer_that_is_wrong_about_the_position_is_fenced(
    catalog: dict[str, str], expected: int | None, key: Any
) -> None:
    sink = IcebergSink(catalog, TABLE, COLUMNS, create=True)
    wrong = IcebergSink(catalog, TABLE, COLUMNS, key=key)
    rows = [row(9, expected or 0)]
    with closing(sink.open("app/keep")) as first, closing(wrong.open("app/keep")) as second:
        first.write(batch(good(1), good(2)))
        with pytest.raises(SinkFencedError, match=f"partition 0 of t@1 is not at {expected} in"):
            second.write(SinkBatch("t@1", 0, expected, 8, rows))
        assert second.positions("t@1", [0]) == {0: 2}
    assert ids_of(catalog) == [1, 2]


def meanwhile(connection: Any, act: Callable[[], None]) -> None:
    """Do something once between the look at the position and the commit."""
    refresh = connection.table.refresh
    waiting = [act]

    def refreshed() -> Any:
        refresh()
        if waiting:
            waiting.pop()()

    connection.table.refresh = refreshed


@pytest.mark.parametrize("key", [(), "id"])
def test_the_commit_itself_finds_another_writer(catalog: dict[str, str], key: Any) -> None:
    sink = IcebergSink(catalog, TABLE, COLUMNS, key=key, create=True)
    with closing(sink.open("app/keep")) as first, closing(sink.open("app/keep")) as second:
        meanwhile(second, lambda: first.write(SinkBatch("t@1", 0, None, 1, [row(1)])))
        with pytest.raises(SinkFencedError, match="partition 0 of t@1 is not at None in"):
            # At the same position, as one whose answer was lost; the rows differ to be told apart.
            second.write(SinkBatch("t@1", 0, None, 1, [row(7)]))
        assert second.positions("t@1", [0]) == {0: 1}
    assert ids_of(catalog) == [1]


@pytest.mark.parametrize("key", [(), "id"])
def test_a_commit_goes_behind_those_of_other_partitions(catalog: dict[str, str], key: Any) -> None:
    sink = IcebergSink(catalog, TABLE, COLUMNS, key=key, create=True)
    with closing(sink.open("app/keep")) as first, closing(sink.open("app/keep")) as second:
        first.write(SinkBatch("t@1", 1, None, 1, [row(1)]))
        meanwhile(second, lambda: first.write(SinkBatch("t@1", 1, 1, 2, [row(2, 1)])))
        second.write(SinkBatch("t@1", 0, None, 1, [row(3)]))
        assert second.positions("t@1", [0, 1]) == {0: 1, 1: 2}
    assert ids_of(catalog) == [1, 2, 3]


@pytest.mark.parametrize("key", [(), "id"])
@pytest.mark.parametrize("answer", ["unknown", "lost", "refused"])
def test_a_commit_whose_answer_is_lost_is_there_once(
    catalog: dict[str, str], key: Any, answer: str
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

    said = {
        "unknown": CommitStateUnknownException("the server had a trouble"),
        "lost": ConnectionResetError("the connection was lost"),
        # As a transport does that sends a request once more.
        "refused": CommitFailedException("the table has changed"),
    }

    class Lossy(SqlCatalog):
        def commit_table(self, *given: Any) -> Any:
            super().commit_table(*given)
            raise said[answer]

    IcebergSink(catalog, TABLE, COLUMNS, create=True).open("app/keep").close()
    sink = IcebergSink(lambda: Lossy("default", **catalog), TABLE, COLUMNS, key=key)
    with closing(sink.open("app/keep")) as connection:
        with suppress(SinkUnavailableError, SinkFencedError):
            connection.write(SinkBatch("t@1", 0, None, 1, [row(1)]))
        assert connection.positions("t@1", [0]) == {0: 1}
        with pytest.raises(SinkFencedError):
            connection.write(SinkBatch("t@1", 0, None, 1, [row(1)]))
    assert ids_of(catalog) == [1]


def test_a_commit_that_others_get_ahead_of_all_the_time_is_given_up(
    catalog: dict[str, str],
) -> None:
    sink = IcebergSink(
        catalog, TABLE, COLUMNS, key="id", create=True, timeout=timedelta(milliseconds=100)
    )
    with closing(sink.open("app/keep")) as first, closing(sink.open("app/keep")) as second:
        first.write(SinkBatch("t@1", 1, None, 1, [row(1)]))
        offsets = iter(range(1, 1000))
        refresh = second.table.refresh

        def ahead() -> Any:
            refresh()
            n = next(offsets)
            first.write(SinkBatch("t@1", 1, n, n + 1, [row(1, n)]))

        second.table.refresh = ahead
        with pytest.raises(SinkUnavailableError, match=r"conflict with this commit for 0\.1 s"):
            second.write(SinkBatch("t@1", 0, None, 1, [row(2)]))
        assert first.positions("t@1", [0, 1]) == {1: next(offsets)}


def test_writers_of_many_partitions_do_not_hinder_each_other(catalog: dict[str, str]) -> None:
    sink = IcebergSink(catalog, TABLE, COLUMNS, create=True)
    sink.open("app/keep").close()
    failed: list[BaseException] = []

    def write(partition: int) -> None:
        try:
            with closing(sink.open("app/keep")) as connection:
                for n in range(5):
                    rows = [row(partition * 100 + n, n)]
                    connection.write(SinkBatch("t@1", partition, n or None, n + 1, rows))
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=write, args=(p,)) for p in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert ids_of(catalog) == [p * 100 + n for p in range(3) for n in range(5)]


# -- the table's own maintenance -------------------------------------------------------------------


def expire_all_but_the_newest(catalog: dict[str, str]) -> None:
    table = table_of(catalog)
    old = [s.snapshot_id for s in table.snapshots() if s != table.current_snapshot()]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert len(table_of(catalog).snapshots()) == 1


def test_positions_last_when_snapshots_expire_and_others_write(catalog: dict[str, str]) -> None:
    sink = IcebergSink(catalog, TABLE, COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch("t@1", 0, None, 1, [row(0)]))
        connection.write(SinkBatch("t@1", 1, None, 7, [row(1)]))
        table_of(catalog).append(table_of(catalog).scan().to_arrow().slice(0, 1))
        assert connection.positions("t@1", [0, 1]) == {0: 1, 1: 7}
        expire_all_but_the_newest(catalog)
        assert connection.positions("t@1", [0, 1]) == {0: 1, 1: 7}
        connection.write(SinkBatch("t@1", 0, 1, 2, [row(2, 1)]))
        expire_all_but_the_newest(catalog)
        assert connection.positions("t@1", [0, 1]) == {0: 2, 1: 7}
    assert len(rows_of(catalog)) == 4


def test_a_table_that_is_rolled_back_takes_its_positions_back(catalog: dict[str, str]) -> None:
    sink = IcebergSink(catalog, TABLE, COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch("t@1", 1, None, 7, [row(0)]))
        connection.write(SinkBatch("t@1", 0, None, 1, [row(1)]))
        before = table_of(catalog).current_snapshot().snapshot_id
        connection.write(SinkBatch("t@1", 0, 1, 2, [row(2, 1)]))
        table_of(catalog).manage_snapshots().rollback_to_snapshot(before).commit()
        assert connection.positions("t@1", [0, 1]) == {0: 1, 1: 7}
        with pytest.raises(SinkFencedError):
            connection.write(SinkBatch("t@1", 0, 2, 3, [row(3, 2)]))
        connection.write(SinkBatch("t@1", 0, 1, 2, [row(2, 1)]))
    assert ids_of(catalog) == [0, 1, 2]


def test_a_table_that_is_rolled_back_to_before_its_positions_has_none(
    catalog: dict[str, str],
) -> None:
    sink = IcebergSink(catalog, TABLE, COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        schema = table_of(catalog).schema().as_arrow()
        others = pa.Table.from_pylist([good(100)], schema)
        table_of(catalog).append(others)
        before = table_of(catalog).current_snapshot().snapshot_id
        table_of(catalog).append(others)
        later = table_of(catalog).current_snapshot().snapshot_id
        connection.write(SinkBatch("t@1", 0, None, 1, [row(1)]))
        table = table_of(catalog)
        table.manage_snapshots().rollback_to_snapshot(later).commit()
        assert connection.positions("t@1", [0]) == {}
        # Where what is before has expired, too.
        table_of(catalog).maintenance.expire_snapshots().by_ids([before]).commit()
        assert connection.positions("t@1", [0]) == {}
        connection.write(SinkBatch("t@1", 0, None, 1, [row(1)]))
        assert connection.positions("t@1", [0]) == {0: 1}
    assert ids_of(catalog) == [1, 100, 100]


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "column", "reason"),
    [
        ({"id": None, "name": "tea"}, "id", "it is null, and the column must not be"),
        ({"id": 1 << 70, "name": "tea"}, "id", "a number has more bits than int64"),
        ({"id": 1, "name": object()}, "name", "a object does not fit into string"),
        ({"id": 1, "name": "\ud800"}, "name", "text with a lone surrogate"),
        ({"id": 1}, "name", "the record has no value for this column"),
    ],
)
def test_what_a_row_is_refused_for_is_said_and_nothing_is_written(
    catalog: dict[str, str], value: Any, column: str | None, reason: str
) -> None:
    sink = IcebergSink(catalog, TABLE, COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        with pytest.raises(SinkRefusedError) as caught:
            connection.write(batch(good(1), value))
        assert caught.value.table == TABLE
        assert caught.value.column == column
        assert caught.value.reason.startswith(reason)
        assert connection.positions("t@1", [0]) == {}
        connection.write(batch(good(1)))
    assert ids_of(catalog) == [1]


def test_a_table_or_column_that_is_not_there_is_said(catalog: dict[str, str]) -> None:
    with pytest.raises(
        SinkUnusableError,
        match=r"table shop\.goods does not exist in the catalog. Create it, or give create=",
    ):
        IcebergSink(catalog, TABLE, COLUMNS).open("app/keep")
    IcebergSink(catalog, TABLE, COLUMNS, create=True).open("app/keep").close()
    with pytest.raises(
        SinkUnusableError, match=r"goods has no column price. Use its columns id, name"
    ):
        IcebergSink(catalog, TABLE, {**COLUMNS, "price": float}).open("app/keep")
    with pytest.raises(SinkUnusableError, match=r"has a column name that may not be null. Add it"):
        IcebergSink(catalog, TABLE, {"id": int}).open("app/keep")
    with pytest.raises(
        SinkUnusableError, match=r"Iceberg has no type for a duration .*column took"
    ):
        IcebergSink(catalog, "shop.other", {"took": timedelta}, create=True).open("app/keep")
    with pytest.raises(TopologyError, match="create must be True or False"):
        IcebergSink(catalog, TABLE, COLUMNS, create=1)  # type: ignore[arg-type]


def test_a_catalog_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    for given, reason in [
        ({"type": "sql", "uri": f"sqlite:///{tmp_path}/no/catalog.db"}, "unable to open database"),
        ({"type": "none-of-these"}, "is not a valid CatalogType"),
        ("nobody-has-configured-this", "URI missing"),
    ]:
        with pytest.raises(SinkUnusableError, match=reason):
            IcebergSink(given, TABLE, COLUMNS, create=True).open("app/keep")
    with pytest.raises(SinkUnavailableError, match="Connection refused"):
        IcebergSink({"type": "rest", "uri": "http://127.0.0.1:9"}, TABLE, COLUMNS).open("app/keep")


def test_a_catalog_that_is_locked_is_asked_again_later(
    catalog: dict[str, str], tmp_path: Path
) -> None:
    import sqlite3

    own = {**catalog, "uri": catalog["uri"] + "?timeout=0.1"}
    with closing(IcebergSink(own, TABLE, COLUMNS, create=True).open("app/keep")) as connection:
        connection.write(batch(good(1)))
        with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(SinkUnavailableError, match="database is locked"):
                connection.write(batch(good(2), begin=1))
        connection.write(batch(good(2), begin=1))
    assert ids_of(catalog) == [1, 2]


def test_columns_have_the_types_that_the_table_has(catalog: dict[str, str]) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int32(), False),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("more", pa.string()),
        ]
    )
    server = catalogs.load_catalog(**catalog)
    server.create_namespace("shop")
    server.create_table(TABLE, schema)
    with closing(IcebergSink(catalog, TABLE, {"id": int, "tags": list}).open("app/k")) as writer:
        writer.write(batch({"id": 1, "tags": ["a", "b"]}))
        with pytest.raises(SinkRefusedError) as caught:
            writer.write(batch({"id": 1 << 40, "tags": []}, begin=1))
        assert caught.value.column == "id"
    assert rows_of(catalog) == [(1, ["a", "b"], None)]


def test_values_have_the_types_of_iceberg(catalog: dict[str, str]) -> None:
    types = {"at": datetime, "day": date, "hour": time_of_day, "more": dict, "sold": bool}
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    hour = time_of_day(3, 4)
    values = {"at": at, "day": at.date(), "hour": hour, "more": {"a": 1}, "sold": True}
    with closing(IcebergSink(catalog, TABLE, types, create=True).open("app/keep")) as connection:
        connection.write(batch(values))
    assert rows_of(catalog) == [(at, at.date(), hour, '{"a": 1}', True)]


def test_columns_that_change_under_a_connection_are_looked_at_again(
    catalog: dict[str, str],
) -> None:
    from pyiceberg.types import DoubleType

    sink = IcebergSink(catalog, TABLE, COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        connection.write(batch(good(1)))
        with table_of(catalog).update_schema() as change:
            change.add_column("price", DoubleType())
        with pytest.raises(SinkUnavailableError, match=r"the columns of shop\.goods have changed"):
            connection.write(batch(good(2), begin=1))
    with closing(sink.open("app/keep")) as connection:
        connection.write(batch(good(2), begin=1))
    assert rows_of(catalog) == [(1, "good 1", None), (2, "good 2", None)]


# -- by seeds --------------------------------------------------------------------------------------

RECORDS = [(f"k{n % 5}", n) for n in range(16)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "seeds"),
    [((), 1), ("id", 1), pytest.param("id", 6, marks=pytest.mark.long)],
)
def test_it_does_what_is_asked_of_sinks(catalog: dict[str, str], key: Any, seeds: int) -> None:
    records = [(k, None if key and n % 7 == 3 else n) for k, n in RECORDS]
    check_sink(
        IcebergSink(catalog, TABLE, {"id": str, "n": int}, key=key, row=event, create=True),
        records=records,
        read=lambda: rows_of(catalog),
        as_read=lambda key, value: (key, value),
        seeds=seeds,
        kills=seeds,
        start="spawn",
    )


def event(key: Any, value: Any) -> dict[str, Any]:
    return {"id": key, "n": value}


def test_a_table_that_is_dropped_and_made_again_gets_no_row(catalog: dict[str, str]) -> None:
    sink = IcebergSink(catalog, TABLE, COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        connection.write(batch(good(1)))
        catalogs.load_catalog(**catalog).drop_table(TABLE)
        with closing(IcebergSink(catalog, TABLE, COLUMNS, create=True).open("other/keep")) as other:
            other.write(batch(good(9)))
        with pytest.raises(SinkUnavailableError, match="was dropped and re-created"):
            connection.write(batch(good(2), begin=1))
    with closing(sink.open("app/keep")) as again:
        assert again.positions("t@1", [0]) == {}
    assert ids_of(catalog) == [9]
