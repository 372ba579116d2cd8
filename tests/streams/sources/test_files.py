"""Files as sources: whole rows alone, from any position, while they grow."""

from __future__ import annotations

from datetime import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace import serdes
from headrace.sources import Files, SourceError


def read(source: Files, positions: dict[str, Any]) -> list[Any]:
    """What is there now; positions move on."""
    values = []
    for batch in source.read(dict(positions)):
        positions[batch.part] = batch.position
        values += [row.value for row in batch.rows]
    return values


def test_lines_are_read_once_and_half_a_line_waits_for_its_rest(tmp_path: Path) -> None:
    source, positions = Files(str(tmp_path / "*.jsonl")), dict[str, Any]()
    file = tmp_path / "a.jsonl"
    file.write_text('{"n": 1}\n\n{"n": 2}\n{"n"')
    assert read(source, positions) == [{"n": 1}, {"n": 2}]
    assert read(source, positions) == []
    with file.open("a") as more:
        more.write(': 3}\n{"n": 4}')
    (tmp_path / "b.jsonl").write_text("5\n")
    assert read(source, positions) == [{"n": 3}, 5]
    assert read(Files(str(tmp_path / "*.jsonl"), grows=False), positions) == [{"n": 4}]


def test_cells_may_have_line_feeds_and_wait_for_the_end_of_their_quotes(tmp_path: Path) -> None:
    source, positions = Files(str(tmp_path / "*.csv"), key="id"), dict[str, Any]()
    file = tmp_path / "a.csv"
    file.write_text("id,te")
    assert read(source, positions) == []
    file.write_text('id,text\r\n1,"two\nlines"\r\n2,"half\n')
    assert read(source, positions) == [{"id": "1", "text": "two\nlines"}]
    with file.open("a", newline="") as more:
        more.write('of it"\r\n3,é\r\n')
    assert read(source, positions) == [
        {"id": "2", "text": "half\nof it"}, {"id": "3", "text": "é"}
    ]  # fmt: skip
    assert read(source, positions) == []


def test_parquet_is_read_from_any_row(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"n": list(range(2500))}), tmp_path / "a.parquet")
    source, positions = Files(str(tmp_path / "*.parquet")), {"a.parquet": 1200}
    assert [value["n"] for value in read(source, positions)] == list(range(1200, 2500))
    assert positions == {"a.parquet": 2500}
    (tmp_path / "b.parquet").write_bytes(b"PAR1")  # its end is not written yet
    assert read(source, positions) == []


def test_what_json_has_no_word_for_is_written_in_another_way(tmp_path: Path) -> None:
    columns = {
        "data": [b"\xff\x00", b"text"],
        "ratio": [float("nan"), 0.5],
        "at": [time(9, 30), None],
    }
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = read(Files(str(tmp_path / "*.parquet")), {})
    assert found == [
        {"data": {"base64": "/wA="}, "ratio": None, "at": "09:30:00"},
        {"data": {"base64": "dGV4dA=="}, "ratio": 0.5, "at": None},
    ]
    assert [serdes.json.deserialize(serdes.json.serialize(value)) for value in found] == found
    (batch,) = Files(str(tmp_path / "*.parquet"), key="data").read({})
    assert [row.key for row in batch.rows] == ["/wA=", "dGV4dA=="]


def test_batches_go_on_from_each_of_their_positions(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f"{n}\n" for n in range(2500)))
    source = Files(str(tmp_path / "*.jsonl"))
    batches = list(source.read({}))
    assert [len(batch.rows) for batch in batches] == [1000, 1000, 500]
    for number, batch in enumerate(batches[:2]):
        rest = read(source, {batch.part: batch.position})
        assert rest == list(range(1000 * (number + 1), 2500))


def test_a_part_is_named_below_what_has_no_wildcard(tmp_path: Path) -> None:
    (tmp_path / "x" / "y").mkdir(parents=True)
    (tmp_path / "x" / "y" / "a.jsonl").write_text("1\n")
    (batch,) = Files(f"{tmp_path}/x/**/*.jsonl").read({})
    assert batch.part == "y/a.jsonl"


def test_key_and_time_are_fields(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 7, "at": "1970-01-01T00:00:05Z"}\n')
    (batch,) = Files(str(tmp_path / "*"), key="id", timestamp="at").read({})
    (row,) = batch.rows
    assert (row.key, row.timestamp_ms) == ("7", 5000)


@pytest.mark.parametrize(
    ("name", "text", "options", "said"),
    [
        ("a.jsonl", "no json\n", {}, "a.jsonl, before byte 8: the line is no JSON"),
        ("a.jsonl", "{}\n\n{}\n[\n{}\n", {}, "line 4 of "),
        ("a.jsonl", '{"id": 1}\n{"x": 1}\n', {"key": "id"}, "line 2 of "),
        ("a.csv", 'a,b\n1,"2\n3"\n1\n', {}, "line 4 of "),
        ("a.jsonl", "{}\n", {"key": "id"}, "there is no field 'id'; there are: "),
        ("a.jsonl", '{"at": "soon"}\n', {"timestamp": "at"}, "field 'at' is no time"),
        ("a.csv", "a,b\n1\n", {}, "the row has 1 cells, and the first line 2"),
        ("a.txt", "", {}, "a.txt is none of .jsonl, .ndjson, .csv, .parquet"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(
    tmp_path: Path, name: str, text: str, options: dict[str, Any], said: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError) as raised:
        list(Files(str(tmp_path / "*"), **options).read({}))
    assert said in str(raised.value)


def test_a_file_that_became_shorter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("1\n")
    with pytest.raises(SourceError, match="has 2 bytes, and 9 were read already"):
        list(Files(str(tmp_path / "*")).read({"a.jsonl": 9}))


def test_bad_lines_are_left_out_where_that_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"id": 1}\n[\n\xff\n{"x": 1}\n{"id": 2}\n')
    (batch,) = Files(str(tmp_path / "*"), key="id", skip_bad=True).read({})
    assert [row.key for row in batch.rows] == ["1", "2"]
    assert (batch.skipped, batch.position) == (3, file.stat().st_size)
    assert batch.reason == f"line 2 of {file}, before byte 12: the line is no JSON"


def test_a_position_moves_past_bad_lines_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1\n2\n")
    source = Files(str(tmp_path / "*"), skip_bad=True)
    (batch,) = source.read({})
    assert (batch.rows, batch.skipped) == ([], 2)
    assert list(source.read({"a.csv": batch.position})) == []
