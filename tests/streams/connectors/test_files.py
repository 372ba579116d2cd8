"""Files as sources: whole rows alone, from any position, while they grow."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from headrace import serdes
from headrace.sources import Files, SourceError
from headrace.topology.errors import SerdeError


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
    source, positions = Files(str(tmp_path / "*.parquet")), dict[str, Any]({"a.parquet": 1200})
    assert [value["n"] for value in read(source, positions)] == list(range(1200, 2500))
    assert positions["a.parquet"]["at"] == 2500
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
    assert [len(batch.rows) for batch in batches] == [100] * 25
    for number, batch in enumerate(batches[:2]):
        rest = read(source, {batch.part: batch.position})
        assert rest == list(range(100 * (number + 1), 2500))


def test_large_rows_end_a_batch_early(tmp_path: Path) -> None:
    """A transaction takes whole batches, and on slow brokers little at a time."""
    (tmp_path / "a.jsonl").write_text("".join(f'{{"t": ["{"x" * 30_000}"]}}\n' for _ in range(7)))
    assert [len(batch.rows) for batch in Files(str(tmp_path / "*")).read({})] == [3, 3, 1]


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
        ("a.jsonl", "no json\n", {}, "a.jsonl, before byte 8: the line is not JSON"),
        ("a.jsonl", "{}\n\n{}\n[\n{}\n", {}, "line 4 of "),
        ("a.jsonl", '{"id": 1}\n{"x": 1}\n', {"key": "id"}, "line 2 of "),
        ("a.csv", 'a,b\n1,"2\n3"\n1\n', {}, "line 4 of "),
        ("a.jsonl", "{}\n", {"key": "id"}, "field 'id' is missing; fields: "),
        ("a.jsonl", '{"at": "soon"}\n', {"timestamp": "at"}, "field 'at' must be milliseconds"),
        ("a.csv", "a,b\n1\n", {}, "the row has 1 cells, and the first line 2"),
        ("a.txt", "", {}, "a.txt must end with .jsonl, .ndjson, .csv, .parquet"),
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
    with pytest.raises(SourceError, match="after 9 bytes were read \\(it has 2\\)"):
        list(Files(str(tmp_path / "*")).read({"a.jsonl": 9}))


def test_bad_lines_are_left_out_where_that_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"id": 1}\n[\n\xff\n{"x": 1}\n{"id": 2}\n')
    (batch,) = Files(str(tmp_path / "*"), key="id", skip_bad=True).read({})
    assert [row.key for row in batch.rows] == ["1", "2"]
    assert (batch.skipped, batch.position["at"]) == (3, file.stat().st_size)
    assert batch.reason == f"line 2 of {file}, before byte 12: the line is not JSON"


def test_a_position_moves_past_bad_lines_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1\n2\n")
    source = Files(str(tmp_path / "*"), skip_bad=True)
    (batch,) = source.read({})
    assert (batch.rows, batch.skipped) == ([], 2)
    assert list(source.read({"a.csv": batch.position})) == []


def write_lines(path: Path, begin: int, end: int) -> None:
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(begin, end)))


def write_csv(path: Path, begin: int, end: int) -> None:
    path.write_text("n\n" + "".join(f"{n}\n" for n in range(begin, end)))


def write_parquet(path: Path, begin: int, end: int) -> None:
    parquet.write_table(pa.table({"n": list(range(begin, end))}), path)


WRITERS = {"a.jsonl": write_lines, "a.csv": write_csv, "a.parquet": write_parquet}


def in_place(path: Path, write: Callable[[Path], None]) -> None:
    write(path)


def by_rename(path: Path, write: Callable[[Path], None]) -> None:
    new = path.with_name(f"new{path.suffix}x")
    write(new)
    new.replace(path)


def with_old_times(path: Path, write: Callable[[Path], None]) -> None:
    before = path.stat()
    write(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [in_place, by_rename, with_old_times])
@pytest.mark.parametrize("rows", [40, 100, 300])
@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_was_written_again_is_refused_or_read_from_its_beginning(
    tmp_path: Path, name: str, rows: int, change: Callable[..., None]
) -> None:
    write, file = WRITERS[name], tmp_path / name
    write(file, 1000, 1100)
    source, positions = Files(f"{tmp_path}/*{file.suffix}"), dict[str, Any]()
    assert len(read(source, positions)) == 100
    change(file, lambda path: write(path, 5000, 5000 + rows))
    for refusing in (source, Files(f"{tmp_path}/*{file.suffix}")):
        with pytest.raises(SourceError, match=r"was truncated or rewritten .* a new file, or read"):
            read(refusing, positions)
    taking = Files(f"{tmp_path}/*{file.suffix}", rewritten=True)
    assert [int(row["n"]) for row in read(taking, positions)] == list(range(5000, 5000 + rows))
    assert read(taking, positions) == []


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_comes_back_with_more_is_continued(tmp_path: Path, name: str) -> None:
    write, file = WRITERS[name], tmp_path / name
    write(file, 1000, 1100)
    source, positions = Files(str(file)), dict[str, Any]()
    assert len(read(source, positions)) == 100
    file.unlink()
    assert read(source, positions) == []
    write(file, 1000, 1150)
    assert [int(row["n"]) for row in read(source, positions)] == list(range(1100, 1150))


def test_positions_of_earlier_versions_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    write_lines(file, 0, 4)
    positions: dict[str, Any] = {"a.jsonl": 9}
    assert [row["n"] for row in read(Files(str(file)), positions)] == [1, 2, 3]
    write_lines(file, 10, 20)
    with pytest.raises(SourceError, match="was truncated or rewritten"):
        read(Files(str(file)), positions)


def test_a_file_that_is_written_again_while_it_is_read_gives_no_mixture(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    write_lines(file, 100_000, 103_000)
    batches = iter(Files(str(file)).read({}))
    next(batches)
    write_lines(file, 500_000, 503_000)
    with pytest.raises(SourceError, match="was rewritten while it was read"):
        list(batches)


CR = "a.{} ends lines with carriage returns only. Convert them to line feeds"


@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("skip_bad", [True, False])
@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.csv", b"a,b\r1,2\r3,4\r", CR.format("csv")),
        ("a.csv", b"a,b,a\n1,2,3\n", "line 1 of .*two columns have the name 'a'"),
        ("a.csv", b"a,,b,\n1,2,3,4\n", "two columns have the name ''"),
        ("a.csv", b"\xff\xfea\n1\n", "the names of the columns are not UTF-8"),
    ],
)
def test_what_makes_a_whole_file_unreadable_ends_a_feed(
    tmp_path: Path, name: str, data: bytes, said: str, grows: bool, skip_bad: bool
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=said):
        list(Files(str(tmp_path / name), grows=grows, skip_bad=skip_bad).read({}))


def test_carriage_returns_that_end_lines_of_json_are_said(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1}\r{"n": 2}\r')
    with pytest.raises(SourceError, match=CR.format("jsonl")):
        list(Files(str(tmp_path / "a.jsonl")).read({}))
    with pytest.raises(SourceError, match=r"line 1 .* not JSON; it has a carriage return"):
        list(Files(str(tmp_path / "a.jsonl"), grows=False).read({}))


def test_an_open_quote_waits_or_is_a_bad_row(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('a,b\n1,2\n3,"4\n5,6\n7,8\n')
    source = Files(str(file), skip_bad=True)
    (batch,) = source.read({})
    assert [row.value["a"] for row in batch.rows] == ["1"]
    assert source.waiting == {"a.csv": f"line 3 of {file}, before byte 21: a quote is not closed"}
    with pytest.raises(SourceError, match=r"line 3 of .*: a quote is not closed"):
        list(Files(str(file), grows=False).read({}))
    (batch,) = Files(str(file), grows=False, skip_bad=True).read({})
    assert [row.value["a"] for row in batch.rows] == ["1", "5", "7"]
    assert batch.skipped == 1


def test_text_after_a_closing_quote_makes_a_bad_row_in_place_of_a_merged_one(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.csv"
    file.write_text('user,page,n\nann,/tea,1\nbob,"/cup,2\ncy,"/x,3\ndee,/y,4\n')
    after = r"text follows a closing quote \(a quote may be too many, or missing\)"
    with pytest.raises(SourceError, match=rf"line 3 of {file}, before byte \d+: {after}"):
        list(Files(str(file)).read({}))
    (batch,) = Files(str(file), grows=False, skip_bad=True).read({})
    assert [row.value["user"] for row in batch.rows] == ["ann", "dee"]
    assert batch.skipped == 2

    file.write_text(
        'user,page,n\nbob,"/cup,2\ncy,"/x",3\ndee,"a ""b""\nc",4\neve,"x" ,5\nf,"","6"\n'
    )
    (batch,) = Files(str(file), skip_bad=True).read({})
    assert [tuple(row.value.values()) for row in batch.rows] == [
        ("cy", "/x", "3"),
        ("dee", 'a "b"\nc', "4"),
        ("f", "", "6"),
    ]
    assert batch.skipped == 2

    file.write_text('user,"page" x,n\nbob,/cup,2\n')
    with pytest.raises(SourceError, match=rf"line 1 of {file}.*: {after}; correct the first line"):
        list(Files(str(file), skip_bad=True).read({}))


def test_a_quote_that_is_open_for_long_is_a_bad_row_of_a_file_that_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.streams.connectors.files.ROW_BYTES", 1000)
    file = tmp_path / "a.csv"
    file.write_text('a,b\n1,"2\n' + "3,4\n" * 1000 + "5," + "6" * 1000 + "\n7,8\n")
    found, skipped = [], 0
    for batch in Files(str(file), skip_bad=True).read({}):
        found += [row.value["a"] for row in batch.rows]
        skipped += batch.skipped
    assert (len(found), found[-1], skipped) == (1001, "7", 2)


def test_large_fields_are_read_and_deep_ones_are_bad(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n" + "x" * 2_000_000 + "\n")
    (batch,) = Files(str(tmp_path / "a.csv")).read({})
    assert len(batch.rows[0].value["a"]) == 2_000_000
    deep = "[" * 100_000 + "]" * 100_000
    (tmp_path / "a.jsonl").write_text(f'{deep}\n{{"n": {"9" * 5000}}}\n{{"n": 1}}\n')
    (batch,) = Files(str(tmp_path / "a.jsonl"), skip_bad=True).read({})
    assert ([row.value for row in batch.rows], batch.skipped) == ([{"n": 1}], 2)
    assert "nested too deeply" in batch.reason


def test_a_file_that_may_not_be_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("1\n")

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SourceError, match=r"a.jsonl cannot be read \(Permission denied"):
        list(Files(str(file)).read({}))


# -- random bytes --------------------------------------------------------------------------------

PIECES = [
    b"a", b"b,c", b",", b",", b'"', b'""', b"\n", b"\n", b"\n", b"\r\n", b"\r", b"\0", b"\xff",
    b" ", "é".encode(), b"\xef\xbb\xbf", b"x" * 3000, b"1,2\n", b"1,2\n", b'"q,\nr",2\n',
    b"\xed\xa0\x80", b"[" * 2000, b"]" * 2000, b"[", b"]", b'{"a":', b"}", b'{"a": 1}\n',
    b'"\\ud800"\n', b"NaN\n", b"9" * 5000, b"1e999\n", b'{"a":1,"a":2}\n', b"null\n",
]  # fmt: skip
BYTES = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join)


def everything(source: Files) -> tuple[list[Any], int]:
    """All rows, and how many were skipped; each batch is read from a position as it is stored."""
    found, skipped, positions = list[Any](), 0, dict[str, Any]()
    while True:
        batch = next(iter(source.read(json.loads(json.dumps(positions)))), None)
        if batch is None:
            return found, skipped
        positions[batch.part] = batch.position
        found += [row.value for row in batch.rows]
        skipped += batch.skipped


class _OfFileError(Exception):
    """The whole file cannot be read, and the error names it."""


@contextmanager
def _named(file: Path) -> Iterator[None]:
    try:
        yield
    except SourceError as error:
        if str(file) in str(error):
            raise _OfFileError from error
        raise


@given(
    st.tuples(st.sampled_from([b"", b"a,b\n", b"\xef\xbb\xbfa\n"]), BYTES).map(b"".join),
    st.integers(1, 5),
)
def test_random_bytes_of_csv_are_rows_or_skipped_or_an_error(data: bytes, many: int) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.streams.connectors.files.BATCH_ROWS", many)
        file = Path(place) / "a.csv"
        file.write_bytes(data)
        found, skipped = [], -1
        with suppress(_OfFileError), _named(file):
            found, skipped = everything(Files(str(file), grows=False, skip_bad=True))
        if skipped < 0:
            return
        lines = data.decode("utf-8-sig", errors="replace").splitlines(keepends=True)
        text = io.StringIO(data.decode("utf-8-sig", errors="replace"), newline="")
        try:
            independent = [row for row in csv.reader(text, strict=False) if row][1:]
        except csv.Error:  # a carriage return alone, or a field that is too large
            return
        is_open = data.count(b'"') % 2 == 1
        if not is_open and "\r" not in "".join(lines).replace("\r\n", ""):
            # After text behind a closing quote, reading continues at the next line: more rows.
            assert len(found) + skipped >= len(independent)
            if _is_strict(text):
                assert len(found) + skipped == len(independent)


def _is_strict(text: io.StringIO) -> bool:
    text.seek(0)
    try:
        list(csv.reader(text, strict=True))
        return True
    except csv.Error:
        return False


@given(st.sampled_from(["a.csv", "a.jsonl"]), st.sampled_from([b"", b"a,b\n"]), BYTES)
def test_what_a_growing_file_keeps_back_is_said(name: str, head: bytes, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / name
        file.write_bytes(head + data)
        with suppress(_OfFileError), _named(file):
            growing = Files(str(file), skip_bad=True)
            found, skipped = everything(growing)
            whole, bad = everything(Files(str(file), grows=False, skip_bad=True))
            assert growing.waiting or len(found) + skipped == len(whole) + bad
            for row in whole:
                with suppress(SerdeError, RecursionError):
                    serdes.json.serialize(row)


@given(BYTES, st.integers(1, 5))
def test_random_bytes_of_json_lines_are_rows_or_skipped(data: bytes, many: int) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.streams.connectors.files.BATCH_ROWS", many)
        file = Path(place) / "a.jsonl"
        file.write_bytes(data)
        found, skipped = everything(Files(str(file), grows=False, skip_bad=True))
        first, *others = data.split(b"\n")
        lines = [first.removeprefix(b"\xef\xbb\xbf"), *others]
        text = [line.decode(errors="replace") for line in lines]
        assert len(found) + skipped == sum(bool(line.strip()) for line in text)
