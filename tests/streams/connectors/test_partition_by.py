"""Tables of Delta and Iceberg that are made with their files divided by columns."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.streams.connectors.delta import DeltaSink
from headrace.streams.connectors.iceberg import IcebergSink
from headrace.topology import SinkBatch, SinkRow, TopologyError

COLUMNS = {"id": int, "kind": str, "size": float}


class Delta:
    """A table of Delta, and what another reader says of it."""

    def __init__(self, directory: Path) -> None:
        pytest.importorskip("deltalake")
        self._path = str(directory / "goods")

    def sink(self, **options: Any) -> Any:
        return DeltaSink(self._path, COLUMNS, **options)

    def rows(self) -> list[Any]:
        from deltalake import DeltaTable

        return list(DeltaTable(self._path).to_pyarrow_table().to_pylist())

    def parts(self) -> set[tuple[str, ...]]:
        """The values of the columns by which files are divided."""
        from deltalake import DeltaTable

        table = DeltaTable(self._path)
        names = table.metadata().partition_columns
        return {tuple(part[name] for name in names) for part in table.partitions()}


class Iceberg:
    """The same of Iceberg."""

    def __init__(self, directory: Path) -> None:
        pytest.importorskip("pyiceberg")
        uri = f"sqlite:///{directory}/catalog.db"
        self.catalog = {"type": "sql", "uri": uri, "warehouse": f"file://{directory}/lake"}

    def sink(self, **options: Any) -> Any:
        return IcebergSink(self.catalog, "shop.goods", COLUMNS, **options)

    def _table(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog(**self.catalog).load_table("shop.goods")

    def rows(self) -> list[Any]:
        return list(self._table().scan().to_arrow().to_pylist())

    def parts(self) -> set[tuple[str, ...]]:
        table = self._table()
        names = [field.name for field in table.spec().fields]
        found = table.inspect.partitions().to_pylist()
        return {tuple(part["partition"][name] for name in names) for part in found}


@pytest.fixture(params=[Delta, Iceberg])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return request.param(tmp_path)


def row(number: int, kind: str, offset: int, size: float = 1.0) -> SinkRow:
    return SinkRow(number, {"id": number, "kind": kind, "size": size}, 0, offset)


@pytest.mark.parametrize("key", [{}, {"key": "id"}, {"key": ["id", "kind"]}])
def test_files_are_divided_and_rows_are_there_once(key: dict[str, Any], lake: Any) -> None:
    def keyed(number: int, kind: str, offset: int, size: float = 1.0) -> SinkRow:
        made = row(number, kind, offset, size)
        return made._replace(key=(number, kind)) if key.get("key") == ["id", "kind"] else made

    rows = [keyed(n, "ab"[n % 2], n) for n in range(6)]
    with closing(lake.sink(create=True, partition_by="kind", **key).open("app/keep")) as sink:
        sink.write(SinkBatch("t@1", 0, None, 6, rows))
        assert lake.parts() == {("a",), ("b",)}
        sink.write(SinkBatch("t@1", 0, 6, 7, [keyed(2, "a", 6, 9.0)]))
        assert sink.positions("t@1", [0]) == {0: 7}
    sizes = sorted(found["size"] for found in lake.rows() if found["id"] == 2)
    assert sizes == ([9.0] if key else [1.0, 9.0])
    assert len(lake.rows()) == (6 if key else 7)


def test_a_row_may_go_to_another_part(lake: Any) -> None:
    options = {"create": True, "partition_by": ["kind"], "key": "id"}
    with closing(lake.sink(**options).open("app/keep")) as sink:
        sink.write(SinkBatch("t@1", 0, None, 2, [row(1, "a", 0), row(2, "a", 1)]))
        sink.write(SinkBatch("t@1", 0, 2, 3, [row(1, "b", 2)]))
    found = sorted((one["id"], one["kind"]) for one in lake.rows())
    assert found == [(1, "b"), (2, "a")]


@pytest.mark.parametrize("parts", [(), "kind"])
def test_a_table_that_another_worker_has_just_made_is_taken(parts: Any, tmp_path: Path) -> None:
    lake = Iceberg(tmp_path)
    lake.sink(create=True, partition_by=parts).open("app/keep").close()

    def too_early() -> Any:
        """A catalog that was asked before the table was there."""
        from pyiceberg.catalog import load_catalog

        catalog: Any = load_catalog(**lake.catalog)
        catalog.table_exists = lambda _: False
        return catalog

    sink = IcebergSink(too_early, "shop.goods", COLUMNS, create=True, partition_by=parts)
    with closing(sink.open("app/keep")) as connection:
        connection.write(SinkBatch("t@1", 0, None, 1, [row(1, "a", 0)]))
    assert len(lake.rows()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition_by": "kind"}, "requires create=True"),
        ({"partition_by": "sort", "create": True}, "names sort, which is none of its columns id,"),
        ({"partition_by": list(COLUMNS), "create": True}, "names all of its columns id, kind,"),
    ],
)
def test_what_cannot_be_divided_is_refused(options: Any, message: str, lake: Any) -> None:
    with pytest.raises(TopologyError, match=message):
        lake.sink(**options)
