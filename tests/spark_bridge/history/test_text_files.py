"""CSV as the programs write it that people have, and JSON by lines: the same bytes come in."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headrace.spark_bridge.cli.backfill import FileSource, kind_of, open_source
from headrace.spark_bridge.errors import CannotBackfillError

COLUMNS = ("key", "value", "timestamp")
START_MS = 1_700_000_000_000
TEXTS = (
    "plain",
    'a "quoted" word',
    '"',
    '""',
    "one, two; three\tfour",
    'a backslash \\ and \\" and \\n and the end \\',
    "two\nlines",
    "two\r\nlines",
    " spaces around ",
    "Åse, 東京, 🎉",
    '{"id": 7, "name": "Ann \\"A\\" \\u00e5", "list": [1, 2]}',
    "'single'",
    "#no comment",
    "\\.",
    "NULL",
    "last",
)
Row = tuple["str | None", "str | None", int]
ROWS: list[Row] = [(f"k{n}", text, START_MS + n) for n, text in enumerate(TEXTS)]
WITH_NULL: list[Row] = [*ROWS, ("gone", None, START_MS), (None, "no key", START_MS)]


def python_csv(path: Path, rows: Sequence[Row], **options: Any) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, **options)
        writer.writerow(COLUMNS)
        writer.writerows(rows)


def pandas_csv(path: Path, rows: Sequence[Row]) -> None:
    pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(path, index=False)


def psql_copy(path: Path, rows: Sequence[Row]) -> None:
    r"""As ``\copy ... csv header`` does: null is nothing, and empty text is in quotes."""

    def field(value: Any) -> str:
        if value is None:
            return ""
        text = str(value)
        quoted = text in ("", "\\.") or any(one in text for one in ',"\r\n')
        return '"' + text.replace('"', '""') + '"' if quoted else text

    lines = [COLUMNS, *rows]
    path.write_bytes("".join(",".join(map(field, line)) + "\n" for line in lines).encode())


def excel(path: Path, rows: Sequence[Row]) -> None:
    """As "CSV UTF-8" is where commas are in numbers."""
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=";", lineterminator="\r\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)


PROGRAMS: dict[str, Callable[[Path, Sequence[Row]], None]] = {
    "python": python_csv,
    "python with all quoted": lambda path, rows: python_csv(path, rows, quoting=csv.QUOTE_ALL),
    "python of unix": lambda path, rows: python_csv(path, rows, dialect="unix"),
    "tabs": lambda path, rows: python_csv(path, rows, delimiter="\t"),
    "pandas": pandas_csv,
    "psql": psql_copy,
    "excel": excel,
}


def read(spark: Any, path: Path) -> list[Row]:
    found = (
        open_source(spark, FileSource("in", kind_of(str(path)), str(path)))
        .select(*COLUMNS)
        .collect()
    )
    return [tuple(row) for row in found]


def test_each_program_s_csv_comes_in_with_the_same_bytes(spark: Any, tmp_path: Path) -> None:
    for name, write in PROGRAMS.items():
        # What quotes everything has no null.
        rows = ROWS if "quot" in name or "unix" in name else WITH_NULL
        path = tmp_path / f"{name}.csv"
        write(path, rows)
        assert read(spark, path) == rows, name


def test_lines_may_end_in_crlf_behind_text_too(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "value last.csv"
    rows = [(key, time, value) for key, value, time in WITH_NULL]
    for options in ({}, {"quoting": csv.QUOTE_NONNUMERIC}):
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, **options).writerows([("key", "timestamp", "value"), *rows])
        found = read(spark, path)
        if options:  # what is not a number is in quotes, null too
            assert [row[:2] for row in found[-2:]] == [("gone", ""), ("", "no key")]
            found[-2:] = WITH_NULL[-2:]
        assert found == WITH_NULL


def test_nothing_is_null_without_quotes_and_empty_in_them(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    psql_copy(path, [("a", None, 1), ("b", "", 2), ("c", "x", 3)])
    assert read(spark, path) == [("a", None, 1), ("b", "", 2), ("c", "x", 3)]
    python_csv(path, [("a", None, 1), ("b", "", 2)])
    assert read(spark, path) == [("a", None, 1), ("b", None, 2)], "it writes both alike"


def test_lines_with_other_fields_and_files_with_other_columns_are_errors(
    spark: Any, tmp_path: Path
) -> None:
    short = tmp_path / "short.csv"
    short.write_text("key,value,timestamp\na,1,5\nb,2\n")
    with pytest.raises(Exception, match=r"(?i)malformed"):
        open_source(spark, FileSource("in", kind_of(str(short)), str(short))).select(
            "timestamp"
        ).collect()
    both = tmp_path / "both"
    both.mkdir()
    (both / "1.csv").write_text("key,value,timestamp\na,1,5\n")
    (both / "2.csv").write_text("value,key,timestamp\na,1,5\n")
    with pytest.raises(Exception, match=r"(?i)header"):
        open_source(spark, FileSource("in", kind_of(str(both)), str(both))).collect()


def test_json_by_lines_comes_in_with_the_same_bytes(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "past.jsonl"
    lines = [json.dumps(dict(zip(COLUMNS, row, strict=True))) for row in WITH_NULL]
    path.write_text("".join(line + "\n" for line in lines))
    assert read(spark, path) == WITH_NULL


HEAD = b"timestamp,key,value\n"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.csv", HEAD + b'5,a,1\n6,b,"2\n7,c,3\n', "a quote is not closed"),
        ("a.csv", HEAD.replace(b"\n", b"\r") + b"5,a,1\r6,b,2\r", "carriage returns only"),
        ("a.csv", HEAD + b"5,a\xff,1\n", "1 line is not UTF-8"),
        (
            "a.jsonl",
            b'{"key":"a","value":"1","timestamp":5}{"key":"b"}\n',
            "is not a single JSON value",
        ),
        ("a.jsonl", b'{"key":"a","value":"1","timestamp":5} more\n', "is not a single JSON value"),
        ("a.jsonl", b'{"key":"a","value":"\\ud800","timestamp":5}\n', "half of a surrogate pair"),
        ("a.jsonl", b'{"key":"a\xff","value":"1","timestamp":5}\n', "not UTF-8"),
        ("a.jsonl", b"[" * 100_000 + b"\n", "nested too deeply|is not a single JSON value"),
    ],
)
def test_what_spark_would_lose_or_change_is_an_error(
    spark: Any, tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CannotBackfillError, match=said) as raised:
        read(spark, tmp_path / name)
    assert name in str(raised.value)
