"""DuckDbSink: rows and positions in one file, which is open for the moment of a write alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pytest

from headrace.streams.connectors.duckdb import DuckDbSink
from headrace.streams.errors import RecordError
from headrace.streams.testing.check_sink import check_sink
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    SinkBatch,
    SinkFencedError,
    SinkRefusedError,
    SinkRow,
    SinkUnavailableError,
    SinkUnusableError,
    StreamsBuilder,
    TopologyError,
    serdes,
)

COLUMNS = {"id": int, "name": str}
RECORDS = [(f"k{n % 4}", n) for n in range(12)]
CHANGES = [*RECORDS, ("k1", None), ("k2", 20), ("k3", None)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.duckdb"


def batch(*values: Any, begin: int | None = None, key: Any = None) -> SinkBatch:
    first = begin or 0
    rows = [SinkRow(key, value, 0, first + i) for i, value in enumerate(values)]
    return SinkBatch("t@1", 0, begin, first + len(values), rows)


def rows_of(path: Path, what: str = "FROM goods ORDER BY 1") -> list[Any]:
    with closing(duckdb.connect(path)) as database:
        return database.execute(what).fetchall()


TEA, JAM, HAM = ({"id": n, "name": name} for n, name in ((1, "tea"), (2, "jam"), (3, "ham")))


def test_rows_are_appended_and_the_position_moves_with_them(path: Path) -> None:
    sink = DuckDbSink(path, "goods", COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        assert connection.positions("t@1", [0, 1]) == {}
        connection.write(batch(TEA, JAM))
        connection.write(batch(JAM, begin=2))
        connection.write(batch(begin=3))
        assert connection.positions("t@1", [0, 1]) == {0: 3}
    assert rows_of(path) == [(1, "tea"), (2, "jam"), (2, "jam")]


def test_rows_take_the_place_of_those_with_their_key_and_are_deleted(path: Path) -> None:
    sink = DuckDbSink(path, "goods", COLUMNS, key="id", create=True)
    rows = [SinkRow(1, "tea", 0, 0), SinkRow(2, "jam", 0, 1), SinkRow(1, "cha", 0, 2)]
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch("t@1", 0, None, 3, rows))
        assert rows_of(path) == [(1, "cha"), (2, "jam")]
        gone = [SinkRow(1, None, 0, 3), SinkRow(2, "ham", 0, 4), SinkRow(9, None, 0, 5)]
        connection.write(SinkBatch("t@1", 0, 3, 6, gone))
    assert rows_of(path) == [(2, "ham")]


def test_keys_of_several_columns(path: Path) -> None:
    columns = {"shop": str, "item": str, "count": int}
    sink = DuckDbSink(path, "goods", columns, key=["shop", "item"], create=True)
    with closing(sink.open("app/keep")) as connection:
        keys = [("a", "tea"), ("b", "tea"), ("a", "jam")]
        connection.write(
            SinkBatch("t@1", 0, None, 3, [SinkRow(k, n, 0, n) for n, k in enumerate(keys)])
        )
        connection.write(SinkBatch("t@1", 0, 3, 4, [SinkRow(("a", "tea"), None, 0, 3)]))
    assert rows_of(path) == [("a", "jam", 2), ("b", "tea", 1)]


@pytest.mark.parametrize("expected", [None, 1, 3])
def test_a_writer_that_is_wrong_about_the_position_is_fenced(
    path: Path, expected: int | None
) -> None:
    sink = DuckDbSink(path, "goods", COLUMNS, create=True)
    with closing(sink.open("app/keep")) as first, closing(sink.open("app/keep")) as second:
        first.write(batch(TEA, JAM))
        with pytest.raises(SinkFencedError, match=f"partition 0 of t@1 is not at {expected} in"):
            second.write(batch(HAM, begin=expected))
        assert second.positions("t@1", [0]) == {0: 2}
    assert len(rows_of(path)) == 2


def test_positions_of_others_are_others(path: Path) -> None:
    sink = DuckDbSink(path, "goods", COLUMNS, create=True)
    with closing(sink.open("a/keep")) as a, closing(sink.open("b/keep")) as b:
        a.write(batch(TEA))
        assert b.positions("t@1", [0]) == {}
        assert a.positions("t@2", [0]) == {}
        b.write(batch(JAM))
        assert set(a.keepers()) == {"a/keep", "b/keep"}
        other = DuckDbSink(path, "others", COLUMNS, create=True)
        with closing(other.open("c/keep")) as c:
            assert list(c.keepers()) == [], "nothing was written into its table"
    assert len(rows_of(path)) == 2


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
    path: Path, value: Any, column: str | None, reason: str
) -> None:
    sink = DuckDbSink(path, "goods", COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        with pytest.raises(SinkRefusedError) as caught:
            connection.write(batch(TEA, value))
        assert caught.value.table == "goods"
        assert caught.value.column == column
        assert caught.value.reason.startswith(reason)
        assert connection.positions("t@1", [0]) == {}
        connection.write(batch(TEA))
    assert rows_of(path) == [(1, "tea")]


@pytest.mark.parametrize(
    ("definition", "value", "column", "reason"),
    [
        ("id BIGINT PRIMARY KEY, name VARCHAR", {"id": 1, "name": "a secret"}, None, "PRIMARY KEY"),
        ("id BIGINT, name VARCHAR CHECK (len(name) < 4)", {"id": 2, "name": "a secret"}, None,
         "CHECK constraint failed on table "),
        ("id BIGINT, name UUID", {"id": 2, "name": "a secret"}, None, "ConversionException"),
        ("id TINYINT, name VARCHAR", {"id": 1000, "name": "a secret"}, "id", "a int does not"),
        ("id BIGINT, name VARCHAR NOT NULL", {"id": 2, "name": None}, "name", "NOT NULL"),
    ],
)  # fmt: skip
def test_what_the_table_itself_refuses_is_said_without_the_value(
    path: Path, definition: str, value: Any, column: str | None, reason: str
) -> None:
    rows_of(path, f"CREATE TABLE goods ({definition})")
    sink = DuckDbSink(path, "goods", {"id": int, "name": str | None})
    with closing(sink.open("app/keep")) as connection:
        if "PRIMARY" in definition:
            connection.write(batch({"id": 1, "name": "tea"}))
        before = connection.positions("t@1", [0])
        with pytest.raises(SinkRefusedError) as caught:
            connection.write(batch(value, begin=before.get(0)))
        assert (caught.value.table, caught.value.column) == ("goods", column)
        assert caught.value.reason.startswith(reason)
        assert "secret" not in str(caught.value)
        assert connection.positions("t@1", [0]) == before


@dataclass(frozen=True)
class Address:
    city: str


def test_values_have_the_types_of_duckdb(path: Path) -> None:
    types = {
        "at": datetime,
        "day": date,
        "hour": time_of_day,
        "span": timedelta,
        "price": Decimal,
        "id": UUID,
        "tags": "VARCHAR[]",
        "part": "DECIMAL(5, 2)",
        "ship": Address,
        "more": object,
        "small": "TINYINT",
    }
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    values = {
        "at": now.replace(tzinfo=None),
        "day": now.date(),
        "hour": now.time(),
        "span": timedelta(hours=1),
        "price": Decimal("9.5"),
        "id": UUID(int=7),
        "tags": ["a", "b"],
        "part": 1.25,
        "ship": Address("Bern"),
        "more": None,
        "small": 5,
    }
    with closing(DuckDbSink(path, "goods", types, create=True).open("app/keep")) as connection:
        connection.write(batch(values))
    (found,) = rows_of(path)
    expected = [*values.values()]
    expected[0], expected[7], expected[8] = now, Decimal("1.25"), '{"city": "Bern"}'
    assert list(found) == [*expected]


def test_where_no_file_can_be_is_said_once_and_for_all(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, for " + "long " * 3000)
    for place, said in [
        (tmp_path / "no" / "rows.db", f"directory {tmp_path / 'no'} does not exist. Create it"),
        (tmp_path, "is a directory. Name a file"),
        (tmp_path / "text", "not a valid DuckDB database file.*. Name another file"),
    ]:
        with pytest.raises(SinkUnusableError, match=said):
            DuckDbSink(place, "goods", COLUMNS, create=True).open("app/keep")


def test_a_place_that_is_gone_later_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    sink = DuckDbSink(tmp_path / "mount" / "rows.db", "goods", COLUMNS, create=True)
    sink.open("app/keep").close()
    shutil.rmtree(tmp_path / "mount")
    with pytest.raises(SinkUnavailableError, match="No such file or directory"):
        sink.open("app/keep")


def test_a_table_or_column_that_is_not_there_is_said(path: Path) -> None:
    with pytest.raises(
        SinkUnusableError, match=r"table goods does not exist in .*. Create it, or give create="
    ):
        DuckDbSink(path, "goods", COLUMNS).open("app/keep")
    DuckDbSink(path, "goods", COLUMNS, create=True).open("app/keep").close()
    with pytest.raises(SinkUnusableError, match=r'"price" not found'):
        DuckDbSink(path, "goods", {**COLUMNS, "price": float}).open("app/keep")
    with closing(DuckDbSink(path, "goods", COLUMNS, key="id").open("app/keep")) as connection:
        said = "table goods needs a primary key or a unique index on id"
        with pytest.raises(SinkUnusableError, match=said):
            connection.write(SinkBatch("t@1", 0, None, 1, [SinkRow(1, "tea", 0, 0)]))


HOLDS = """
import duckdb, sys
database = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "reads")
print("open", flush=True)
sys.stdin.readline()
"""


READS = """
import duckdb, sys
database = duckdb.connect(sys.argv[1], read_only=True)
print(database.execute("FROM goods").fetchall())
"""


@pytest.mark.parametrize("how", ["writes", "reads"])
def test_a_file_that_another_process_has_open_is_tried_again_later(path: Path, how: str) -> None:
    sink = DuckDbSink(path, "goods", COLUMNS, create=True, timeout=timedelta(milliseconds=50))
    with closing(sink.open("app/keep")) as connection:
        command = [sys.executable, "-c", HOLDS, str(path), how]
        with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "open\n"
            begun = time.monotonic()
            with pytest.raises(SinkUnavailableError, match="another process or thread has it open"):
                connection.write(batch(TEA))
            assert time.monotonic() - begun < 5
            other.communicate("\n")
        connection.write(batch(TEA))
    assert rows_of(path) == [(1, "tea")]


def test_others_read_between_writes(path: Path) -> None:
    sink = DuckDbSink(path, "goods", COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        connection.write(batch(TEA))
        done = subprocess.run(
            [sys.executable, "-c", READS, path], capture_output=True, text=True, check=False
        )
        assert done.stdout == "[(1, 'tea')]\n", done.stderr
        connection.write(batch(JAM, begin=1))
    assert len(rows_of(path)) == 2


def test_threads_of_one_process_write_in_turns(path: Path) -> None:
    """As `app.add_worker()` has them; who comes into another's way is told to try again."""
    sink = DuckDbSink(path, "goods", COLUMNS, key="id", create=True)
    sink.open("app/keep").close()
    failures: list[BaseException] = []

    def write(partition: int) -> None:
        position, connection = 0, None
        try:
            while position != 20:
                with suppress(SinkUnavailableError):  # of all three calls
                    connection = connection or sink.open("app/keep")
                    known = connection.positions("t", [partition]).get(partition)
                    begin = known or 0
                    row = SinkRow(100 * partition + begin, "x", 0, begin)
                    if begin < 20:
                        connection.write(SinkBatch("t", partition, known, begin + 1, [row]))
                        begin += 1
                    position = begin
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [row[0] for row in rows_of(path)] == [100 * p + n for p in range(3) for n in range(20)]


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (COLUMNS, {"timeout": 5}, "timeout must be a timedelta, not int"),
        (COLUMNS, {"create": "yes"}, "create must be True or False, not a str"),
        (COLUMNS, {"every": 5}, "every must be a timedelta, not int"),
        (COLUMNS, {"key": "no"}, "has no column no, .* columns: id, name"),
    ],
)
def test_what_it_is_given_is_looked_at(path: Path, columns: Any, options: Any, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        DuckDbSink(path, "goods", columns, **options)


def test_what_ends_with_the_process_is_no_place_for_positions() -> None:
    with pytest.raises(TopologyError, match="would be lost with the process, with its positions"):
        DuckDbSink(":memory:", "goods", COLUMNS)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("key", [(), "id"])
def test_workers_successors_and_zombies(key: Any, path: Path) -> None:
    """And processes that are killed while they write."""
    sink = DuckDbSink(path, "goods", {"id": str, "n": int}, key=key, row=_row, create=True)
    check_sink(
        sink,
        records=CHANGES if key else RECORDS,
        read=lambda: rows_of(path),
        as_read=lambda key, value: (key, value),
        seeds=6,
        kills=5,
    )


def _row(key: Any, value: Any) -> dict[str, Any]:
    return {"id": key, "n": value}


def test_a_refused_row_stops_with_its_place_or_is_left_out(path: Path) -> None:
    rows_of(path, "CREATE TABLE goods (id VARCHAR, n BIGINT CHECK (n < 5))")
    sink = DuckDbSink(path, "goods", {"id": str, "n": int}, row=_row)
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string, value=serdes.long).to_sink(sink, name="keep")
    topology = builder.build()
    driver = TopologyTestDriver(topology, partitions=1, real_sinks=True)
    driver.input("in").send_many([("k", n) for n in range(8)])
    with pytest.raises(RecordError, match="table goods: CHECK constraint failed on table "):
        driver.advance(timedelta(seconds=1))
    settings = {"production.exception.handler": "continue", "application.id": "other"}
    with TopologyTestDriver(topology, settings, partitions=1, real_sinks=True) as driver:
        driver.input("in").send_many([("k", n) for n in range(8)])
        driver.advance(timedelta(seconds=1))
        assert driver.dropped == {("keep", "it cannot be written"): 3}
    assert [row[1] for row in rows_of(path, "FROM goods WHERE n < 5 ORDER BY n")][-5:]


def test_a_file_that_is_replaced_or_deleted_gets_no_row(path: Path) -> None:
    sink = DuckDbSink(path, "goods", COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        connection.write(batch({"id": 1, "name": "tea"}))
        shutil.copy(path, f"{path}.old")
        connection.write(batch({"id": 2, "name": "jam"}, begin=1))
        Path(f"{path}.old").replace(path)
        with pytest.raises(SinkFencedError, match="is not at 2"):
            connection.write(batch({"id": 3, "name": "ham"}, begin=2))
        path.unlink()
        with pytest.raises(SinkUnavailableError, match="was deleted"):
            connection.write(batch({"id": 3, "name": "ham"}, begin=2))
        assert not path.exists()
    with closing(sink.open("app/keep")) as again:
        assert again.positions("t@1", [0]) == {}
