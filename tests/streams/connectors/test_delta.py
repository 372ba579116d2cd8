"""DeltaSink: rows and positions in one commit of the table's log."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from headrace.streams.connectors.delta import DeltaSink
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

deltalake = pytest.importorskip("deltalake")
pa = pytest.importorskip("pyarrow")

COLUMNS = {"id": int, "name": str}
SOON = timedelta(seconds=1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "goods")


def batch(*values: Any, begin: int | None = None, partition: int = 0) -> SinkBatch:
    first = begin or 0
    rows = [SinkRow(None, value, 0, first + i) for i, value in enumerate(values)]
    return SinkBatch("t@1", partition, begin, first + len(values), rows)


def good(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"good {number}"}


def rows_of(path: str) -> list[Any]:
    """As another reader has them: Arrow, of the files that the log names."""
    found = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def ids_of(path: str) -> list[int]:
    return sorted(row[0] for row in rows_of(path))


def test_rows_are_appended_and_the_position_moves_with_them(path: str) -> None:
    sink = DeltaSink(path, COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        assert connection.positions("t@1", [0, 1]) == {}
        connection.write(batch(good(1), good(2)))
        connection.write(batch(good(2), begin=2))
        connection.write(SinkBatch("t@1", 0, 3, 9, []))
        assert connection.positions("t@1", [0, 1]) == {0: 9}
    assert rows_of(path) == [(1, "good 1"), (2, "good 2"), (2, "good 2")]
    with closing(DeltaSink(path, COLUMNS).open("app/keep")) as connection:
        assert connection.positions("t@1", [0, 1]) == {0: 9}
        assert connection.positions("t@2", [0, 1]) == {}
    with closing(DeltaSink(path, COLUMNS).open("other/keep")) as connection:
        assert connection.positions("t@1", [0, 1]) == {}


def test_rows_take_the_place_of_those_with_their_key_and_are_deleted(path: str) -> None:
    columns = {"Id of it": int, 'na"me`': str | None}
    sink = DeltaSink(path, columns, key="Id of it", create=True)
    rows = [SinkRow(1, "tea", 0, 0), SinkRow(2, "jam", 0, 1), SinkRow(1, "cha", 0, 2)]
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch("t@1", 0, None, 3, rows))
        assert rows_of(path) == [(1, "cha"), (2, "jam")]
        gone = [SinkRow(1, None, 0, 3), SinkRow(2, "ham", 0, 4), SinkRow(9, None, 0, 5)]
        connection.write(SinkBatch("t@1", 0, 3, 6, gone))
        assert rows_of(path) == [(2, "ham")]
        connection.write(SinkBatch("t@1", 0, 6, 7, [SinkRow(2, None, 0, 6)]))
        assert connection.positions("t@1", [0]) == {0: 7}
    assert rows_of(path) == []


def test_the_position_moves_where_no_row_changes(path: str) -> None:
    sink = DeltaSink(path, COLUMNS, key="id", create=True)
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch("t@1", 0, None, 1, [SinkRow(9, None, 0, 0)]))
        connection.write(SinkBatch("t@1", 0, 1, 2, [row(1, 1)]))
        connection.write(SinkBatch("t@1", 0, 2, 3, [SinkRow(9, None, 0, 2)]))
        connection.write(SinkBatch("t@1", 0, 3, 4, [row(1, 3)]))
        assert connection.positions("t@1", [0]) == {0: 4}
    assert ids_of(path) == [1]


def test_rows_may_have_keys_of_several_columns(path: str) -> None:
    columns = {"id": int, "at": datetime, "n": int}
    sink = DeltaSink(path, columns, key=["id", "at"], create=True)
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    keys = [(1, early), (1, late), (2, early), (2, late)]
    rows = [SinkRow(key, {"n": n}, 0, n) for n, key in enumerate(keys)]
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch("t@1", 0, None, 4, rows))
        changed = [SinkRow((1, early), {"n": 10}, 0, 4), SinkRow((2, late), None, 0, 5)]
        connection.write(SinkBatch("t@1", 0, 4, 6, changed))
    assert [(i, n) for i, _, n in rows_of(path)] == [(1, 10), (1, 1), (2, 2)]


# -- who is wrong about the position ---------------------------------------------------------------


@pytest.mark.parametrize("key", [(), "id"])
@pytest.mark.parametrize("expected", [None, 1, 3])
def test_a_writer_that_is_wrong_about_the_position_is_fenced(
    path: str, expected: int | None, key: Any
) -> None:
    sink = DeltaSink(path, COLUMNS, create=True)
    wrong = DeltaSink(path, COLUMNS, key=key, row=lambda _, value: value)
    rows = [SinkRow(9, good(9), 0, expected or 0)]
    with closing(sink.open("app/keep")) as first, closing(wrong.open("app/keep")) as second:
        first.write(batch(good(1), good(2)))
        with pytest.raises(SinkFencedError, match=f"partition 0 of t@1 is not at {expected} in"):
            second.write(SinkBatch("t@1", 0, expected, 8, rows))
        assert second.positions("t@1", [0]) == {0: 2}
    assert ids_of(path) == [1, 2]


def meanwhile(connection: Any, act: Callable[[], None]) -> None:
    """Do something once between the look at the position and the commit."""
    require = connection._require
    waiting = [act]

    def looked_at(batch: SinkBatch) -> None:
        require(batch)
        if waiting:
            waiting.pop()()

    connection._require = looked_at


@pytest.mark.parametrize("key", [(), "id"])
def test_the_commit_itself_finds_another_writer(path: str, key: Any) -> None:
    sink = DeltaSink(path, COLUMNS, key=key, create=True)
    with closing(sink.open("app/keep")) as first, closing(sink.open("app/keep")) as second:
        meanwhile(second, lambda: first.write(SinkBatch("t@1", 0, None, 1, [row(1)])))
        with pytest.raises(SinkFencedError, match="partition 0 of t@1 is not at None in"):
            # At the same position, as one whose answer was lost; the rows differ to be told apart.
            second.write(SinkBatch("t@1", 0, None, 1, [row(7)]))
        assert second.positions("t@1", [0]) == {0: 1}
    assert ids_of(path) == [1]


def row(number: int, offset: int = 0) -> SinkRow:
    return SinkRow(number, {"id": number, "name": f"good {number}"}, 0, offset)


@pytest.mark.parametrize("key", [(), "id"])
def test_a_commit_goes_behind_those_of_other_partitions(path: str, key: Any) -> None:
    sink = DeltaSink(path, COLUMNS, key=key, create=True)
    with closing(sink.open("app/keep")) as first, closing(sink.open("app/keep")) as second:
        meanwhile(second, lambda: first.write(SinkBatch("t@1", 1, None, 1, [row(1)])))
        second.write(SinkBatch("t@1", 0, None, 1, [row(2)]))
        assert second.positions("t@1", [0, 1]) == {0: 1, 1: 1}
    assert ids_of(path) == [1, 2]


def test_a_commit_that_others_get_ahead_of_all_the_time_is_given_up(path: str) -> None:
    sink = DeltaSink(path, COLUMNS, key="id", create=True, timeout=timedelta(milliseconds=100))
    with closing(sink.open("app/keep")) as first, closing(sink.open("app/keep")) as second:
        offsets = iter(range(1000))

        def ahead(_: SinkBatch) -> None:
            n = next(offsets)
            first.write(SinkBatch("t@1", 1, n or None, n + 1, [row(5, n)]))

        second._require = ahead
        with pytest.raises(SinkUnavailableError, match=r"conflict with this commit for 0.1 s"):
            second.write(SinkBatch("t@1", 0, None, 1, [row(5)]))
        assert first.positions("t@1", [0, 1]) == {1: next(offsets)}


@pytest.mark.slow
def test_writers_of_many_partitions_do_not_hinder_each_other(path: str) -> None:
    sink = DeltaSink(path, COLUMNS, create=True)
    sink.open("app/keep").close()
    failed: list[BaseException] = []

    def write(partition: int) -> None:
        try:
            with closing(sink.open("app/keep")) as connection:
                for n in range(15):
                    number = partition * 100 + n
                    connection.write(
                        SinkBatch("t@1", partition, n or None, n + 1, [row(number, n)])
                    )
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=write, args=(p,)) for p in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert ids_of(path) == [p * 100 + n for p in range(4) for n in range(15)]


# -- the table's own maintenance -------------------------------------------------------------------


@pytest.mark.slow
def test_positions_last_over_checkpoints_and_whatever_is_cleaned_up(path: str) -> None:
    sink = DeltaSink(path, COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        for n in range(3):
            connection.write(batch(good(n), begin=n or None))
        table = deltalake.DeltaTable(path)
        table.alter.set_table_properties(
            {
                "delta.setTransactionRetentionDuration": "interval 0 seconds",
                "delta.logRetentionDuration": "interval 0 seconds",
            }
        )
        time.sleep(1.1)  # of a resolution of seconds
        table.optimize.compact()
        table.vacuum(0, enforce_retention_duration=False, dry_run=False)
        table.create_checkpoint()
        table.cleanup_metadata()
        assert not os.path.exists(f"{path}/_delta_log/{0:020}.json")
        assert connection.positions("t@1", [0]) == {0: 3}
        connection.write(batch(good(3), begin=3))
    with closing(DeltaSink(path, COLUMNS).open("app/keep")) as connection:
        assert connection.positions("t@1", [0]) == {0: 4}
    assert ids_of(path) == [0, 1, 2, 3]


def test_a_table_that_is_restored_keeps_its_position(path: str) -> None:
    """As the page says: rows that the restore took away are not written again."""
    sink = DeltaSink(path, COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        connection.write(batch(good(0)))
        version = deltalake.DeltaTable(path).version()
        connection.write(batch(good(1), begin=1))
        deltalake.DeltaTable(path).restore(version)
        assert connection.positions("t@1", [0]) == {0: 2}
    assert ids_of(path) == [0]


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "column", "reason"),
    [
        ({"id": None, "name": "tea"}, "id", "it is null, and the column must not be"),
        ({"id": 1 << 70, "name": "tea"}, "id", "a number has more bits than int64"),
        ({"id": 1, "name": object()}, "name", "a object does not fit into string"),
        ({"id": 1, "name": "\ud800"}, "name", "text with a lone surrogate"),
        ({"id": 1}, "name", "the record has no value for this column"),
        ({"id": -1, "name": "tea"}, None, "a constraint of the table is not met"),
    ],
)
def test_what_a_row_is_refused_for_is_said_and_nothing_is_written(
    path: str, value: Any, column: str | None, reason: str
) -> None:
    sink = DeltaSink(path, COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        deltalake.DeltaTable(path).alter.add_constraint({"positive": "id > 0"})
        with pytest.raises(SinkRefusedError) as caught:
            connection.write(batch(good(1), value))
        assert caught.value.table == path
        assert caught.value.column == column
        assert caught.value.reason.startswith(reason)
        assert connection.positions("t@1", [0]) == {}
        connection.write(batch(good(1)))
    assert ids_of(path) == [1]


def test_a_table_or_column_that_is_not_there_is_said(path: str) -> None:
    with pytest.raises(
        SinkUnusableError, match=r"Delta table .* does not exist\. Create it, or give"
    ):
        DeltaSink(path, COLUMNS).open("app/keep")
    DeltaSink(path, COLUMNS, create=True).open("app/keep").close()
    with pytest.raises(
        SinkUnusableError, match=r"goods has no column price. Use its columns id, name"
    ):
        DeltaSink(path, {**COLUMNS, "price": float}).open("app/keep")
    with pytest.raises(SinkUnusableError, match=r"has a column name that may not be null. Add it"):
        DeltaSink(path, {"id": int}).open("app/keep")
    with pytest.raises(
        SinkUnusableError, match=r"Delta has no type for a duration \(table .*, column took"
    ):
        DeltaSink(path + "2", {"took": timedelta}, create=True).open("app/keep")
    with pytest.raises(TopologyError, match="create must be True or False"):
        DeltaSink(path, COLUMNS, create=1)  # type: ignore[arg-type]


def test_a_table_that_rows_are_only_appended_to_has_no_keys(path: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())])
    deltalake.DeltaTable.create(path, schema, configuration={"delta.appendOnly": "true"})
    with closing(DeltaSink(path, COLUMNS).open("app/keep")) as connection:
        connection.write(batch(good(1)))
    with pytest.raises(SinkUnusableError, match=r"goods is set to delta.appendOnly. Omit key"):
        DeltaSink(path, COLUMNS, key="id").open("app/keep")


@pytest.mark.parametrize(
    "protocol",
    [
        {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["ofTomorrow"]},
        {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["ofTomorrow"],
            "writerFeatures": ["ofTomorrow"],
        },
    ],
)
@pytest.mark.parametrize("key", [(), "id"])
def test_a_table_that_is_made_by_newer_rules_is_left_alone(
    path: str, protocol: Any, key: Any
) -> None:
    DeltaSink(path, COLUMNS, create=True).open("app/keep").close()
    Path(path, "_delta_log", f"{1:020}.json").write_text(json.dumps({"protocol": protocol}))
    with pytest.raises(SinkUnusableError, match=r"ofTomorrow.*Name a table that deltalake can"):
        DeltaSink(path, COLUMNS, key=key).open("app/keep").write(
            SinkBatch("t@1", 0, None, 1, [row(1)])
        )


def test_columns_have_the_types_that_the_table_has(path: str) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int32(), False),
            pa.field("price", pa.decimal128(9, 2)),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("more", pa.string()),
        ]
    )
    deltalake.DeltaTable.create(path, schema)
    columns = {"id": int, "price": float, "tags": list}
    with closing(DeltaSink(path, columns).open("app/keep")) as connection:
        connection.write(batch({"id": 1, "price": 9.5, "tags": ["a", "b"]}))
        with pytest.raises(SinkRefusedError) as caught:
            connection.write(batch({"id": 1 << 40, "price": 9.5, "tags": []}, begin=1))
        assert caught.value.column == "id"
    assert rows_of(path) == [(1, Decimal("9.50"), ["a", "b"], None)]


def test_what_delta_has_no_type_for_is_text(path: str) -> None:
    types = {"at": datetime, "day": date, "hour": time_of_day, "more": dict, "sold": bool}
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    values = {
        "at": moment,
        "day": moment.date(),
        "hour": time_of_day(3, 4),
        "more": {"a": 1},
        "sold": True,
    }
    with closing(DeltaSink(path, types, create=True).open("app/keep")) as connection:
        connection.write(batch(values))
    assert rows_of(path) == [(moment, moment.date(), "03:04:00", '{"a": 1}', True)]


def test_columns_that_change_under_a_connection_are_looked_at_again(path: str) -> None:
    sink = DeltaSink(path, COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        connection.write(batch(good(1)))
        more = deltalake.Schema.from_arrow(pa.schema([("price", pa.float64())])).fields
        deltalake.DeltaTable(path).alter.add_columns(more)
        with pytest.raises(SinkUnavailableError, match=r"the columns of .* have changed"):
            connection.write(batch(good(2), begin=1))
    with closing(sink.open("app/keep")) as connection:
        connection.write(batch(good(2), begin=1))
    assert rows_of(path) == [(1, "good 1", None), (2, "good 2", None)]


# -- stores that do not answer ---------------------------------------------------------------------


def test_a_store_that_does_not_answer_is_asked_again_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "never-shown",
            "AWS_REGION": "none",
            "AWS_ALLOW_HTTP": "true",
        }
        sink = DeltaSink(
            "s3://bucket/goods", COLUMNS, create=True, storage_options=lambda: options, timeout=SOON
        )
        with pytest.raises(SinkUnavailableError, match="s3://bucket/goods: ") as caught:
            sink.open("app/keep")
    assert "never-shown" not in f"{caught.value} {sink!r}"


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    logging.getLogger("werkzeug").setLevel("ERROR")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    given = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=url, **given).create_bucket(Bucket="lake")
    yield {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    server.stop()


@pytest.mark.slow
def test_the_log_in_a_store_of_objects_tells_writers_of_each_other(s3: dict[str, str]) -> None:
    sink = DeltaSink("s3://lake/goods", COLUMNS, create=True, storage_options=s3)
    with closing(sink.open("app/keep")) as first, closing(sink.open("app/keep")) as second:
        meanwhile(second, lambda: first.write(SinkBatch("t@1", 0, None, 1, [row(1)])))
        with pytest.raises(SinkFencedError, match="partition 0 of t@1 is not at None in"):
            second.write(SinkBatch("t@1", 0, None, 1, [row(7)]))
        second.write(SinkBatch("t@1", 1, None, 1, [row(2)]))
        first.write(SinkBatch("t@1", 0, 1, 2, [row(3)]))
        assert second.positions("t@1", [0, 1]) == {0: 2, 1: 1}
    found = deltalake.DeltaTable("s3://lake/goods", storage_options=s3).to_pyarrow_table()
    assert sorted(found["id"].to_pylist()) == [1, 2, 3]
    nowhere = DeltaSink("s3://none/goods", COLUMNS, create=True, storage_options=s3)
    with pytest.raises(
        SinkUnusableError, match=r"NoSuchBucket.*Correct the address, the permissions"
    ):
        nowhere.open("app/keep")


def test_a_table_that_is_gone_later_is_waited_for(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "mount" / "goods", COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        connection.write(batch(good(1)))
        (tmp_path / "mount").rename(tmp_path / "elsewhere")
        with pytest.raises(SinkUnavailableError):
            sink.open("app/keep")
        with pytest.raises(SinkUnavailableError):
            connection.write(batch(good(2), begin=1))
        (tmp_path / "elsewhere").rename(tmp_path / "mount")
    with closing(sink.open("app/keep")) as connection:
        connection.write(batch(good(2), begin=1))
    assert ids_of(str(tmp_path / "mount" / "goods")) == [1, 2]


# -- by seeds --------------------------------------------------------------------------------------

RECORDS = [(f"k{n % 5}", n) for n in range(30)]


@pytest.mark.slow
@pytest.mark.parametrize("key", [(), "id"])
def test_it_does_what_is_asked_of_sinks(path: str, key: Any) -> None:
    records = [(k, None if key and n % 7 == 3 else n) for k, n in RECORDS]
    check_sink(
        DeltaSink(path, {"id": str, "n": int}, key=key, row=event, create=True),
        records=records,
        read=lambda: rows_of(path),
        as_read=lambda key, value: (key, value),
        seeds=3,
        kills=2,
        start="spawn",
    )


def event(key: Any, value: Any) -> dict[str, Any]:
    return {"id": key, "n": value}


@pytest.mark.parametrize("commits", [1, 6])
def test_a_table_that_is_made_again_while_it_is_open_gets_no_row(path: str, commits: int) -> None:
    sink = DeltaSink(path, COLUMNS, create=True)
    with closing(sink.open("app/keep")) as connection:
        for number in range(3):
            connection.write(batch(good(number), begin=number or None))
        shutil.rmtree(path)
        with closing(DeltaSink(path, COLUMNS, create=True).open("other/keep")) as other:
            for number in range(commits):
                other.write(batch(good(100 + number), begin=number or None))
        with pytest.raises((SinkFencedError, SinkUnavailableError)):
            connection.write(batch(good(3), begin=3))
    with closing(sink.open("app/keep")) as again:
        assert again.positions("t@1", [0]) == {}
    assert len(rows_of(path)) == commits
