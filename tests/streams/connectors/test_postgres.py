"""PostgresSink on a real server: that of DATABASE_URL, else one of our own, which is killed."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pytest

from headrace.streams.connectors.postgres import PostgresSink
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
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy

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
    server = PostgresServer()
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
        assert "app/keep" in connection.keepers()
    other = PostgresSink(url, f"{table}_other", COLUMNS, create=True)
    with closing(other.open("other/keep")) as connection:
        assert list(connection.keepers()) == [], "nothing was written into its table"
    assert sorted(run(url, f"SELECT * FROM {table}")) == [(1, "tea"), (2, "jam"), (2, "jam")]


def test_a_role_that_may_only_insert_still_sees_positions_of_others(url: str, table: str) -> None:
    role = f"writer_{table}"
    with closing(PostgresSink(url, table, COLUMNS, create=True).open("old/keep")) as connection:
        connection.write(batch(table, TEA))
    run(url, f"CREATE ROLE {role}")
    run(url, f"GRANT INSERT ON {table} TO {role}; GRANT SELECT ON headrace_positions TO {role}")
    try:
        with closing(PostgresSink(url, table, COLUMNS).open("new/keep")) as connection:
            connection._connection.execute(f"SET ROLE {role}")
            assert "old/keep" in connection.keepers()
    finally:
        run(url, f"DROP OWNED BY {role}; DROP ROLE {role}")


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


def test_odd_values_come_as_they_are_in_rows_with_keys(url: str, table: str) -> None:
    """Text that means something in an array, nothing, and what is no finite number."""
    types = {"id": int, "name": str | None, "share": float | None, "n": int | None}
    texts = ["", "NULL", 'a "b" {c}, d', "\\", "\\N", "\n\t", "é ☕", None]
    shares = [0.1, 1e300, -0.0, float("inf"), None, 5e-324, 2.5, 1 / 3]
    numbers = [0, -1, (1 << 63) - 1, -(1 << 63), None, 7, 8, 9]
    values = [
        {"name": name, "share": share, "n": n}
        for name, share, n in zip(texts, shares, numbers, strict=True)
    ]
    sink = PostgresSink(url, table, types, key="id", create=True)
    rows = [SinkRow(n, value, 0, n) for n, value in enumerate(values)]
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch(table, 0, None, 8, rows))
        found = run(url, f"SELECT * FROM {table} ORDER BY id")
        assert found == [(n, *value.values()) for n, value in enumerate(values)]
        for at, bad in enumerate(("a\x00b", "\ud800")):
            refused = [SinkRow(1, values[0], 0, 8), SinkRow(2, {**values[0], "name": bad}, 0, 9)]
            with pytest.raises(SinkRefusedError) as caught:
                connection.write(SinkBatch(table, 0, 8, 10, refused))
            assert (caught.value.column, caught.value.offset) == ("name", 9), at
    assert run(url, f"SELECT * FROM {table} ORDER BY id") == found


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
        ({"id": "secret", "name": "x"}, "id", "InvalidTextRepresentation (22P02); it is bigint"),
        ({"id": 1, "name": "a\x00b"}, "name", "text with a NUL, which PostgreSQL does not have"),
        (
            {"id": 1, "name": "\ud800"},
            "name",
            "text with a lone surrogate, which UTF-8 does not have",
        ),
        (
            {"id": 1, "name": object()},
            "name",
            "psycopg cannot write a object. Use a column of jsonb, or write row=",
        ),
        ({"id": 1}, "name", "the record has no value for this column"),
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


@dataclass(frozen=True)
class Address:
    city: str
    since: date


class Box(msgspec.Struct):
    width: Decimal


class Size(NamedTuple):
    high: int
    wide: int


@dataclass(frozen=True)
class Sent:
    id: int
    ship: Address | None
    box: Box
    size: Size


@pytest.mark.parametrize("key", [(), "id"])
def test_values_of_typed_classes_are_json(url: str, table: str, key: Any) -> None:
    sink = PostgresSink(url, table, Sent, key=key, create=True)
    sent = [
        Sent(1, Address("Bern", date(2026, 1, 2)), Box(Decimal("1.50")), Size(2, 3)),
        Sent(2, None, Box(Decimal(1)), Size(0, 0)),
    ]
    rows = [SinkRow(one.id, one, 0, at) for at, one in enumerate(sent)]
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch(table, 0, None, 2, rows))
    assert run(url, f"SELECT * FROM {table} ORDER BY id") == [
        (1, {"city": "Bern", "since": "2026-01-02"}, {"width": "1.50"}, [2, 3]),
        (2, None, {"width": "1"}, [0, 0]),
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": object()}, "TypeError as JSON: it has no type for a object"),
        (float("nan"), "TypeError as JSON: JSON cannot represent NaN or an infinity"),
        ("a\x00b", "UntranslatableCharacter (22P05)"),
    ],
)
@pytest.mark.parametrize("key", [(), "id"])
def test_what_json_has_nothing_for_is_refused_with_its_column(
    url: str, table: str, value: Any, reason: str, key: Any
) -> None:
    sink = PostgresSink(url, table, {"id": int, "more": object}, key=key, create=True)
    with closing(sink.open("app/keep")) as connection:
        with pytest.raises(SinkRefusedError) as caught:
            connection.write(
                SinkBatch(table, 0, None, 9, [SinkRow(1, {"id": 1, "more": value}, 0, 8)])
            )
        assert (caught.value.column, caught.value.reason) == ("more", reason)
        connection.write(SinkBatch(table, 0, None, 9, [SinkRow(1, {"id": 1, "more": 1}, 0, 8)]))


def test_a_value_with_a_key_that_the_server_cannot_read_is_named(url: str, table: str) -> None:
    sink = PostgresSink(url, table, {"id": int, "at": datetime}, key="id", create=True)
    with closing(sink.open("app/keep")) as connection:
        with pytest.raises(SinkRefusedError) as caught:
            connection.write(SinkBatch(table, 0, None, 1, [SinkRow(1, {"at": "secret"}, 0, 0)]))
        said = "InvalidDatetimeFormat (22007); it is timestamp with time zone"
        assert str(caught.value) == f"table {table}, column at: {said}"
        assert connection.positions(table, [0]) == {}


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
    with pytest.raises(SinkUnusableError, match=r"has no column price\. Use its columns id, name"):
        PostgresSink(url, table, {**COLUMNS, "price": float}).open("app/keep")
    keyed = PostgresSink(url, table, COLUMNS, key="id")
    connection = keyed.open("app/keep")
    needs = f"table {table} needs a primary key or a unique constraint on id.*no unique or excl"
    with pytest.raises(SinkUnusableError, match=needs):
        connection.write(SinkBatch(table, 0, None, 1, [SinkRow(1, "tea", 0, 0)]))
    connection.close()


def test_a_server_that_is_not_there_is_asked_again_later() -> None:
    sink = PostgresSink("postgresql://nobody@127.0.0.1:1/none", "t", COLUMNS, timeout=SOON)
    with pytest.raises(SinkUnavailableError, match="onnection"):
        sink.open("app/keep")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dbname": "no_such"}, 'database "no_such" does not exist. Create it, or name another'),
        ({"user": "nobody_here"}, 'role "nobody_here" does not exist. Create it, or name anot'),
    ],
)
def test_who_was_never_let_in_is_told_what_to_put_right(
    url: str, table: str, change: Any, said: str
) -> None:
    wrong = psycopg.conninfo.make_conninfo(url, **change)
    sink = PostgresSink(wrong, table, COLUMNS, timeout=SOON)
    with pytest.raises(SinkUnusableError, match=said):
        sink.open("app/keep")


def test_who_was_let_in_once_waits(url: str, table: str) -> None:
    given = [url, psycopg.conninfo.make_conninfo(url, dbname="no_such")]
    sink = PostgresSink(lambda: given.pop(0), table, COLUMNS, create=True, timeout=SOON)
    sink.open("app/keep").close()
    with pytest.raises(SinkUnavailableError, match='database "no_such" does not exist'):
        sink.open("app/keep")


@pytest.mark.parametrize(
    ("conninfo", "said"),
    [
        ("hunter2", "the address cannot be parsed. Write postgresql://USER@"),
        ("postgresql://u:hunter2@db/x?ssl=1", 'has an invalid URI query parameter: "ssl". '),
    ],
)
def test_an_address_that_is_none_is_not_tried_again(conninfo: str, said: str) -> None:
    with pytest.raises(SinkUnusableError) as caught:
        PostgresSink(conninfo, "t", COLUMNS).open("app/keep")
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_rights_that_are_needed_are_said(url: str, table: str) -> None:
    PostgresSink(url, table, COLUMNS, create=True).open("app/keep").close()
    run(url, f"DROP ROLE IF EXISTS {table}")
    run(url, f"CREATE ROLE {table}")
    try:
        run(url, f"GRANT SELECT, INSERT, UPDATE ON headrace_positions TO {table}")
        options = psycopg.conninfo.make_conninfo(url, options=f"-c role={table}")
        with (
            closing(PostgresSink(options, table, COLUMNS).open("app/keep")) as connection,
            pytest.raises(SinkUnusableError) as caught,
        ):
            connection.write(batch(table, TEA))
        assert f"permission denied for table {table}" in str(caught.value)
        assert f"Grant INSERT on {table}" in str(caught.value)
        run(url, f"REVOKE SELECT, INSERT, UPDATE ON headrace_positions FROM {table}")
        with (
            closing(PostgresSink(options, table, COLUMNS).open("app/keep")) as connection,
            pytest.raises(SinkUnusableError, match="INSERT and UPDATE on headrace_positions"),
        ):
            connection.positions(table, [0])
    finally:
        run(url, f"DROP OWNED BY {table}")
        run(url, f"DROP ROLE {table}")


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


def test_one_who_is_behind_is_fenced_where_its_rows_are_unique(url: str, table: str) -> None:
    """Its rows are there already, which is no fault of theirs."""
    run(url, f"CREATE TABLE {table} (id bigint PRIMARY KEY, name text)")
    sink = PostgresSink(url, table, COLUMNS)
    with closing(sink.open("app/keep")) as zombie, closing(sink.open("app/keep")) as other:
        zombie.write(batch(table, TEA))
        other.write(batch(table, JAM, begin=1))
        with pytest.raises(SinkFencedError):
            zombie.write(batch(table, JAM, begin=1))
        with pytest.raises(SinkRefusedError, match="UniqueViolation"):
            other.write(batch(table, TEA, begin=2))
    assert sorted(run(url, f"SELECT * FROM {table}")) == [(1, "tea"), (2, "jam")]


def test_a_connection_that_falls_silent_is_given_up() -> None:
    """Nobody cuts it, and nothing comes any more: as of a host that is gone, or stands still."""
    with closing(PostgresServer()) as server, closing(Proxy(server.socket)) as proxy:
        address = f"host=127.0.0.1 port={proxy.port} user=postgres dbname=postgres sslmode=disable"
        sink = PostgresSink(address, "goods", COLUMNS, create=True, timeout=SOON)
        with closing(sink.open("app/keep")) as connection:
            connection.write(batch("goods", TEA))
            proxy.fall_silent()
            with pytest.raises(SinkUnavailableError, match="no response within 3 s"):
                connection.write(batch("goods", JAM, begin=1))
            with pytest.raises(SinkUnavailableError, match="closed"):  # and not waited for again
                connection.write(batch("goods", JAM, begin=1))
        with closing(sink.open("app/keep")) as connection:
            assert connection.positions("goods", [0]) == {0: 1}


@pytest.mark.parametrize("loss", ["cut", "silence"])
def test_an_answer_to_a_commit_that_is_lost_leaves_all_or_nothing(loss: Any) -> None:
    with closing(PostgresServer()) as server, closing(Proxy(server.socket)) as proxy:
        address = f"host=127.0.0.1 port={proxy.port} user=postgres dbname=postgres sslmode=disable"
        sink = PostgresSink(address, "goods", COLUMNS, create=True, timeout=SOON)
        with closing(sink.open("app/keep")) as connection:
            proxy.lose_answer(loss)
            with pytest.raises(SinkUnavailableError):
                connection.write(batch("goods", TEA))
        assert proxy.wait_lost(0)
        with closing(sink.open("app/keep")) as connection:
            assert connection.positions("goods", [0]) == {0: 1}
            with pytest.raises(SinkFencedError):
                connection.write(batch("goods", TEA))
        assert run(server.url, "SELECT * FROM goods") == [(1, "tea")]


class Standing(str):
    """A value that stands still when it is written."""

    begun, goes_on = threading.Event(), threading.Event()


class StandingDumper(psycopg.adapt.Dumper):
    def dump(self, obj: Any) -> bytes:
        obj.begun.set()
        obj.goes_on.wait(60)
        return b"jam"


def test_a_writer_that_stands_still_in_its_rows_keeps_nobody(url: str, table: str) -> None:
    """No time-out of the server ends a COPY whose rows do not come."""
    sink = PostgresSink(url, table, COLUMNS, create=True, timeout=SOON)
    with closing(sink.open("app/keep")) as zombie, closing(sink.open("app/keep")) as other:
        zombie.write(batch(table, TEA))
        zombie._connection.adapters.register_dumper(Standing, StandingDumper)
        value = Standing("jam")
        heard: list[BaseException] = []

        def write() -> None:
            try:
                zombie.write(batch(table, {"id": 2, "name": value}, begin=1))
            except Exception as error:
                heard.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            assert value.begun.wait(20)
            other.write(batch(table, JAM, begin=1))
        finally:
            value.goes_on.set()
            thread.join(20)
        assert isinstance(heard[0], SinkFencedError), heard
    assert sorted(run(url, f"SELECT * FROM {table}")) == [(1, "tea"), (2, "jam")]


def test_a_server_that_is_killed_has_all_or_nothing_of_a_batch() -> None:
    with closing(PostgresServer()) as server:
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
