"""History in text files: CSV by RFC 4180, and JSON lines.

Keys and values are the UTF-8 text of the file. Timestamps are milliseconds since 1970 or date and
time. Invalid numbers and times become null, and are rejected later.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.spark_bridge.errors import CannotBackfillError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NEEDED = ("key", "value", "timestamp")

_SEPARATORS = (",", ";", "\t")
"""Excel uses semicolons in locales with a decimal comma."""

_RFC_4180: dict[str, Any] = {
    "header": True,
    "encoding": "UTF-8",
    "multiLine": True,  # a value in quotes may have several lines
    "quote": '"',
    "escape": '"',  # quotes in quotes are doubled, and a backslash is a backslash
    # Otherwise the parser normalizes all line ends, even within values.
    "lineSep": "\n",
    # An empty field is null without quotes and an empty text in quotes.
    "nullValue": "\x00null\x00",
    "emptyValue": "",
    "ignoreLeadingWhiteSpace": False,
    "ignoreTrailingWhiteSpace": False,
    # A line with fewer or more fields is an error, as is a file with other columns.
    "mode": "FAILFAST",
    "columnPruning": False,
    "enforceSchema": False,
}


def read_csv(spark: SparkSession, path: str) -> DataFrame:
    """Read CSV files with a header line into a DataFrame for `backfill`.

    The separator is a comma, or the semicolon or tab of the header. A byte order mark is skipped.

    Raises:
        CannotBackfillError: Spark would skip or change rows without an error.
    """
    _require_csv(spark, path)
    for separator in _SEPARATORS:
        frame = _without_cr(spark.read.options(**_RFC_4180, sep=separator).csv(path))
        if set(NEEDED) <= set(frame.columns):
            return _typed(frame)
    return spark.read.options(**_RFC_4180).csv(path)


def _without_cr(frame: Any) -> Any:
    """Remove the CR that CRLF line ends leave in an unquoted last field."""
    from pyspark.sql import functions as F  # noqa: N812

    *others, last = frame.columns
    name = last.removesuffix("\r")
    field = F.col(f"`{last}`")
    field = F.when(field == "\r", F.lit(None)).otherwise(field)
    if name != last:
        field = F.regexp_replace(field, r"\r\z", "")
    return frame.select(*(F.col(f"`{one}`") for one in others), field.alias(name))


def read_json(spark: SparkSession, path: str) -> DataFrame:
    """Read files with a JSON object on each line; values that are not text become text."""
    _require_json(spark, path)
    frame = spark.read.option("mode", "FAILFAST").option("primitivesAsString", True).json(path)
    return _typed(frame)


def _require_csv(spark: SparkSession, path: str) -> None:
    """Check quotes, line ends and encoding, because Spark does not."""
    from pyspark.sql import functions as F  # noqa: N812

    lines = spark.read.text(path, lineSep="\n")
    quotes = F.length("value") - F.length(F.replace(F.col("value"), F.lit('"'), F.lit("")))
    files = lines.groupBy(F.input_file_name().alias("file")).agg(
        F.sum(quotes).alias("quotes"),
        F.count("*").alias("lines"),
        F.max(F.col("value").contains("\r")).alias("has_cr"),
        F.sum((~F.is_valid_utf8("value")).cast("int")).alias("not_utf8"),
    )
    is_cr = (F.col("lines") == 1) & F.col("has_cr")
    wrong = files.where((F.col("quotes") % 2 == 1) | (F.col("not_utf8") > 0) | is_cr).first()
    if wrong is None:
        return
    if wrong.not_utf8:
        raise _not_utf8(wrong.file, wrong.not_utf8)
    if wrong.quotes % 2:
        raise CannotBackfillError(
            f"a quote is not closed, so the rows after it are part of its field ({wrong.file}). "
            "Close it"
        )
    raise CannotBackfillError(
        f"lines end with carriage returns only ({wrong.file}). Convert them to line feeds"
    )


def _require_json(spark: SparkSession, path: str) -> None:
    """Check that each line is a single value in UTF-8, because Spark ignores text after a value."""
    from pyspark.sql import functions as F  # noqa: N812

    lines = spark.read.text(path).select("value", F.input_file_name().alias("file"))
    files = lines.groupBy("file").agg(
        F.sum((~F.is_valid_utf8("value")).cast("int")).alias("not_utf8")
    )
    wrong = files.where("not_utf8 > 0").first()
    if wrong is not None:
        raise _not_utf8(wrong.file, wrong.not_utf8)
    reason = F.udf(wrong_json, "string", useArrow=False)("value").alias("reason")
    bad = lines.select("file", reason).where("reason IS NOT NULL").first()
    if bad is not None:
        raise CannotBackfillError(f"a line {bad.reason} ({bad.file}). Correct it")


def wrong_json(line: str) -> str | None:
    r"""Return the fault of a JSON line that Spark may read without an error, or None.

    >>> wrong_json('{"a": 1} {"a": 2}'), wrong_json('{"a": "\\ud800"}'), wrong_json('{"a": 1}')
    ('is not a single JSON value', 'has half of a surrogate pair, which is not text', None)
    """
    text = line.removeprefix("\ufeff").strip()
    if not text:
        return None
    try:
        value = json.loads(text)
    except RecursionError:
        return "is nested too deeply"
    except ValueError:
        return "is not a single JSON value"
    if "\\ud" not in text.lower():
        return None
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "has half of a surrogate pair, which is not text"
    return None


def _not_utf8(file: str, lines: int) -> CannotBackfillError:
    return CannotBackfillError(
        f"{lines} line{' is' if lines == 1 else 's are'} not UTF-8 ({file}). Convert the file"
    )


def _typed(frame: Any) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    if dict(frame.dtypes).get("timestamp") == "string":
        text = F.col("timestamp")
        parsed = F.unix_millis(F.try_to_timestamp(text))
        frame = frame.withColumn("timestamp", F.coalesce(text.try_cast("long"), parsed))
    for name, kind in (("partition", "int"), ("offset", "long")):
        if name in frame.columns:
            frame = frame.withColumn(name, F.col(name).try_cast(kind))
    typed: DataFrame = frame
    return typed
