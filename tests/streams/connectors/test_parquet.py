"""ParquetSink: files whose names are the positions, on a disk and in a store of objects."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from headrace.streams.connectors import locations
from headrace.streams.connectors.parquet import COMPRESSIONS, ParquetSink
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "goods"


def batch(*values: Any, begin: int | None = None, partition: int = 0) -> SinkBatch:
    first = begin or 0
    rows = [SinkRow(None, value, 0, first + i) for i, value in enumerate(values)]
    return SinkBatch("t@1", partition, begin, first + len(values), rows)


def rows_of(path: Path) -> list[Any]:
    table = pyarrow.dataset.dataset(path, partitioning="hive").to_table(columns=["id", "name"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


def files_of(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


TEA, JAM, HAM = ({"id": n, "name": name} for n, name in ((1, "tea"), (2, "jam"), (3, "ham")))


def test_each_batch_is_a_file_and_its_name_is_the_position_before_it(path: Path) -> None:
    with closing(ParquetSink(path, COLUMNS).open("app/keep")) as connection:
        assert connection.positions("t@1", [0, 1]) == {}
        connection.write(batch(TEA, JAM))
        connection.write(batch(JAM, begin=2))
        connection.write(batch(HAM, partition=1))
        assert connection.positions("t@1", [0, 1, 2]) == {0: 3, 1: 1}
    assert rows_of(path) == [(1, "tea"), (2, "jam"), (2, "jam"), (3, "ham")]
    first, second, third = files_of(path)
    assert first.startswith("partition=0/00000000000000000002-keep-")
    assert second.startswith("partition=0/beginning-keep-")
    assert third.startswith("partition=1/beginning-keep-")
    metadata = pq.read_metadata(path / first).metadata
    assert metadata[b"headrace.source"] == b"t@1"
    assert metadata[b"headrace.next"] == b"3"


@pytest.mark.parametrize("expected", [None, 2])
def test_a_writer_that_is_wrong_about_the_position_is_fenced(
    path: Path, expected: int | None
) -> None:
    sink = ParquetSink(path, COLUMNS)
    with closing(sink.open("app/keep")) as first, closing(sink.open("app/keep")) as zombie:
        first.write(batch(TEA, JAM))
        first.write(batch(TEA, begin=2))
        with pytest.raises(SinkFencedError, match="another worker has written"):
            zombie.write(batch(HAM, HAM, HAM, begin=expected))
        assert zombie.positions("t@1", [0]) == {0: 3}
    assert len(rows_of(path)) == 3
    assert len(files_of(path)) == 2


def test_of_two_who_make_the_same_file_at_once_one_is_fenced(path: Path) -> None:
    sink = ParquetSink(path, COLUMNS)
    sink.open("app/keep").close()
    for at in range(20):
        told: list[str] = []
        start = threading.Barrier(2)

        def write(name: str, begin: int = at, told: list[str] = told, start: Any = start) -> None:
            with closing(sink.open("app/keep")) as connection:
                start.wait()
                try:
                    connection.write(batch({"id": begin, "name": name}, begin=begin or None))
                except SinkFencedError:
                    told.append(name)

        threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == 1
    assert [row[0] for row in rows_of(path)] == list(range(20))


def test_the_same_batch_is_the_same_file(tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        with closing(ParquetSink(tmp_path / name, COLUMNS).open("app/keep")) as connection:
            connection.write(batch(TEA, JAM))
        (file,) = files_of(tmp_path / name)
        contents.append((file, (tmp_path / name / file).read_bytes()))
    assert contents[0] == contents[1]


def test_positions_of_others_are_others(path: Path) -> None:
    sink = ParquetSink(path, COLUMNS)
    with closing(sink.open("a/keep")) as a, closing(sink.open("b/keep")) as b:
        a.write(batch(TEA))
        assert b.positions("t@1", [0]) == {}
        assert a.positions("t@2", [0]) == {}
        b.write(batch(JAM))
    assert rows_of(path) == [(1, "tea"), (2, "jam")]


def test_a_file_that_is_being_written_is_seen_by_nobody_and_deleted_when_it_is_old(
    path: Path,
) -> None:
    with closing(ParquetSink(path, COLUMNS).open("app/keep")) as connection:
        connection.write(batch(TEA))
        (name,) = files_of(path)
        begun = [path / "partition=0" / f".{Path(name).name}.{n}.tmp" for n in "ab"]
        for file in begun:
            file.write_bytes(b"PAR1")
        old = time.time() - 7_200
        os.utime(begun[0], (old, old))
        assert connection.positions("t@1", [0]) == {0: 1}
        assert [file.exists() for file in begun] == [False, True]
    assert rows_of(path) == [(1, "tea")]


def test_columns_of_later_are_in_later_files(path: Path) -> None:
    with closing(ParquetSink(path, COLUMNS).open("app/keep")) as connection:
        connection.write(batch(TEA))
    later = {**COLUMNS, "price": float | None, "at": datetime}
    now = datetime(2026, 1, 2, tzinfo=UTC)
    with closing(ParquetSink(path, later).open("app/keep")) as connection:
        connection.write(batch({**JAM, "at": now}, begin=1))
    assert rows_of(path) == [(1, "tea"), (2, "jam")]
    file, _ = files_of(path)
    assert pq.read_table(path / file, partitioning=None).to_pylist() == [
        {**JAM, "price": None, "at": now}
    ]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_files_are_compressed_as_told(compression: str, path: Path) -> None:
    sink = ParquetSink(path, COLUMNS, compression=compression)
    with closing(sink.open("app/keep")) as connection:
        connection.write(batch(TEA))
    (file,) = files_of(path)
    found = pq.read_metadata(path / file).row_group(0).column(0).compression
    assert found == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())


@dataclass(frozen=True)
class Nested:
    tags: list[str]


def test_nested_values_are_json_or_what_a_type_of_arrow_says(path: Path) -> None:
    columns = {"a": Nested, "b": pa.struct([("tags", pa.list_(pa.string()))])}
    with closing(ParquetSink(path, columns).open("app/keep")) as connection:
        connection.write(batch({"a": Nested(["x"]), "b": Nested(["x"])}))
    (file,) = files_of(path)
    assert pq.read_table(path / file, partitioning=None).to_pylist() == [
        {"a": '{"tags": ["x"]}', "b": {"tags": ["x"]}}
    ]


def test_all_refused_rows_of_a_batch_are_said_and_nothing_is_written(path: Path) -> None:
    with closing(ParquetSink(path, COLUMNS).open("app/keep")) as connection:
        with pytest.raises(SinkRefusedError) as caught:
            connection.write(batch(TEA, {"id": "x", "name": "a"}, JAM, {"id": 1}))
        assert str(caught.value).startswith(f"table {path}, column id: a str does not fit into i")
        assert caught.value.offset == 1
        assert caught.value.others is not None
        assert [(one.offset, one.column) for one in caught.value.others] == [(3, "name")]
        assert connection.positions("t@1", [0]) == {}
    assert files_of(path) == []


def test_where_no_file_can_be_is_said_once_and_for_all(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    for place, said in [
        (tmp_path / "no" / "goods", f"directory {tmp_path / 'no'} does not exist. Create it"),
        (tmp_path / "text", "is a file. Name a directory"),
    ]:
        with pytest.raises(SinkUnusableError, match=said):
            ParquetSink(place, COLUMNS).open("app/keep")


def test_a_directory_that_is_gone_later_is_waited_for(path: Path) -> None:
    sink = ParquetSink(path, COLUMNS)
    with closing(sink.open("app/keep")) as connection:
        connection.write(batch(TEA))
        shutil.rmtree(path)
        with pytest.raises(SinkUnavailableError, match="No such file or directory"):
            connection.write(batch(JAM, begin=1))
    with pytest.raises(SinkUnavailableError, match="was deleted"):
        sink.open("app/keep")
    assert not path.exists()


def test_a_file_system_without_links_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(locations.os, "link", no_links)
    with closing(ParquetSink(path, COLUMNS).open("app/keep")) as connection:
        with pytest.raises(SinkUnusableError, match="has no hard links"):
            connection.write(batch(TEA))
        assert connection.positions("t@1", [0]) == {}


def test_a_disk_that_is_full_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with closing(ParquetSink(path, COLUMNS).open("app/keep")) as connection:
        with monkeypatch.context() as patched:
            patched.setattr(locations.os, "fsync", full)
            with pytest.raises(SinkUnavailableError, match="No space left on device"):
                connection.write(batch(TEA))
        assert files_of(path) == []
        connection.write(batch(TEA))
    assert rows_of(path) == [(1, "tea")]


def test_a_newest_file_without_a_position_is_said(path: Path) -> None:
    with closing(ParquetSink(path, COLUMNS).open("app/keep")) as connection:
        connection.write(batch(TEA))
        (file,) = files_of(path)
        (path / file).write_bytes(b"torn")
        with pytest.raises(SinkUnusableError, match="has no position in its footer"):
            connection.positions("t@1", [0])


def test_a_footer_that_is_longer_than_what_is_read_at_first(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.streams.connectors.parquet.TAIL_BYTES", 20)
    with closing(ParquetSink(path, COLUMNS).open("app/keep")) as connection:
        connection.write(batch(TEA, JAM))
        assert connection.positions("t@1", [0]) == {0: 2}


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (COLUMNS, {"compression": "zip"}, "compression must be one of zstd, .*, not 'zip'"),
        (COLUMNS, {"every": 5}, "every must be a timedelta, not int"),
        (COLUMNS, {"max_rows": 0}, "max_rows must be a whole number of at least 1, not 0"),
        ({"partition": int}, {}, "is named partition, which readers take from the names"),
    ],
)
def test_what_it_is_given_is_looked_at(path: Path, columns: Any, options: Any, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        ParquetSink(path, columns, **options)


def _row(key: Any, value: Any) -> dict[str, Any]:
    return {"id": value, "name": key}


@pytest.mark.slow
@pytest.mark.faults
def test_workers_successors_and_zombies(path: Path) -> None:
    """And processes that are killed while they write."""
    check_sink(
        ParquetSink(path, COLUMNS, row=_row),
        records=RECORDS,
        read=lambda: rows_of(path),
        as_read=lambda key, value: (value, key),
        seeds=10,
        kills=5,
    )


# -- in a topology ---------------------------------------------------------------------------------


def driver_of(sink: ParquetSink, settings: Any) -> Any:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string, value=serdes.long).to_sink(sink, name="keep")
    return TopologyTestDriver(builder.build(), settings, partitions=1, real_sinks=True)


SETTINGS = {"processing.guarantee": "exactly_once_v2", "production.exception.handler": "continue"}


def narrow(path: Path) -> ParquetSink:
    return ParquetSink(path, {"id": "int8", "name": str}, row=_row)


def test_rows_of_a_minute_are_one_file(path: Path) -> None:
    driver = driver_of(narrow(path), SETTINGS)
    for n in range(30):
        driver.input("in").send("k", n)
        driver.advance(timedelta(seconds=1))
    assert files_of(path) == []
    driver.advance(timedelta(minutes=1))
    assert len(files_of(path)) == 1
    assert rows_of(path) == [(n, "k") for n in range(30)]


def test_refused_rows_leave_one_file_and_no_more(path: Path) -> None:
    with driver_of(narrow(path), SETTINGS) as driver:
        driver.input("in").send_many([("k", 1000 * (n % 3) + n) for n in range(30)])
        driver.advance(timedelta(minutes=1))
        assert driver.dropped == {("keep", "it cannot be written"): 20}
    assert len(files_of(path)) == 1
    assert [row[0] for row in rows_of(path)] == list(range(0, 30, 3))


def test_where_all_rows_are_refused_there_is_no_file(path: Path) -> None:
    with driver_of(narrow(path), SETTINGS) as driver:
        driver.input("in").send_many([("k", 1000)] * 3)
        driver.advance(timedelta(minutes=2))
        assert driver.committed_offsets("test-keep-repartition")[0] >= 3
    assert files_of(path) == []


def test_a_refused_row_stops_with_its_place(path: Path) -> None:
    driver = driver_of(narrow(path), {"processing.guarantee": "exactly_once_v2"})
    driver.input("in").send_many([("k", 1), ("k", 1000)])
    with pytest.raises(RecordError) as caught:
        driver.advance(timedelta(minutes=1))
    assert str(caught.value).startswith(
        f"table {path}, column id: a int does not fit into int8; convert it with row= "
        "(test-keep-repartition-0 offset 2"
    )


# -- a store of objects ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """An S3 of this process; what a store is made with."""
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
        "endpoint": url,
        "access_key_id": "a",
        "secret_access_key": "b",
        "region": "us-east-1",
        "client_options": {"allow_http": True, "timeout": "10s"},
        "retry_config": {"max_retries": 1, "retry_timeout": timedelta(seconds=5)},
    }
    server.stop()


def objects_of(s3: dict[str, Any], path: str) -> list[Any]:
    import obstore
    from obstore.store import S3Store

    store = S3Store("lake", **s3)
    found = []
    for meta in obstore.list(store, path).collect():
        if not meta["path"].endswith(".parquet"):
            continue
        content = obstore.get(store, meta["path"]).bytes()
        found += pq.read_table(pa.BufferReader(content)).to_pylist()
    return sorted((row["id"], row["name"]) for row in found)


@pytest.mark.slow
def test_objects_as_files(s3: dict[str, Any]) -> None:
    from obstore.store import S3Store

    sink = ParquetSink("a/goods", COLUMNS, row=_row, store=S3Store("lake", **s3))
    check_sink(
        sink,
        records=RECORDS,
        read=lambda: objects_of(s3, "a/goods"),
        as_read=lambda key, value: (value, key),
        seeds=5,
        kills=0,
    )


def test_the_address_of_a_store(s3: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", s3["endpoint"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with closing(ParquetSink("s3://lake/b/goods", COLUMNS).open("app/keep")) as connection:
        connection.write(batch(TEA, JAM))
        assert connection.positions("t@1", [0, 1]) == {0: 2}
        with pytest.raises(SinkFencedError):
            connection.write(batch(HAM))
    assert objects_of(s3, "b/goods") == [(1, "tea"), (2, "jam")]


def test_a_store_that_keeps_no_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore
    from obstore.store import MemoryStore

    put = obstore.put

    def over_another(*given: Any, **options: Any) -> Any:
        return put(*given, **{**options, "mode": "overwrite"})

    store = MemoryStore()
    monkeypatch.setattr(obstore, "put", over_another)
    with pytest.raises(SinkUnusableError, match=r"has overwritten goods/\.headrace"):
        ParquetSink("goods", COLUMNS, store=store).open("app/keep")
    monkeypatch.undo()
    ParquetSink("goods", COLUMNS, store=store).open("app/keep").close()


def test_a_store_that_is_not_there_or_says_no(s3: dict[str, Any]) -> None:
    from obstore.store import S3Store

    with pytest.raises(SinkUnusableError, match=r"does not exist\. Create the bucket"):
        ParquetSink("goods", COLUMNS, store=S3Store("nowhere", **s3)).open("app/keep")
    gone = {**s3, "endpoint": "http://127.0.0.1:1"}
    with pytest.raises(SinkUnavailableError, match="has failed: Connection refused"):
        ParquetSink("goods", COLUMNS, store=S3Store("lake", **gone)).open("app/keep")
    with pytest.raises(SinkUnusableError, match="is not the URL of an object store"):
        ParquetSink("nothing://lake/goods", COLUMNS).open("app/keep")


def test_an_object_that_is_gone_meanwhile_is_asked_for_again() -> None:
    from obstore.store import MemoryStore

    place = locations.Objects(MemoryStore(), "goods")
    place.prepare()
    with pytest.raises(SinkUnavailableError, match="goods/partition=0/x was deleted"):
        place.end("partition=0", "x", 8)


def test_a_directory_that_is_replaced_between_two_writes_gets_no_gap(path: Path) -> None:
    sink = ParquetSink(path, COLUMNS)
    with closing(sink.open("app/keep")) as connection:
        connection.write(batch({"id": 1, "name": "tea"}))
        shutil.copytree(path, path.with_name("backup"))
        connection.write(batch({"id": 2, "name": "jam"}, begin=1))
        shutil.rmtree(path)
        path.with_name("backup").rename(path)
        with pytest.raises(SinkUnavailableError, match="No such file"):
            connection.write(batch({"id": 3, "name": "ham"}, begin=2))
    with closing(sink.open("app/keep")) as again:
        with pytest.raises(SinkFencedError, match=r"is at 1 in .*, and not at 2"):
            again.write(batch({"id": 3, "name": "ham"}, begin=2))
        assert again.positions("t@1", [0]) == {0: 1}
    assert rows_of(path) == [(1, "tea")]
