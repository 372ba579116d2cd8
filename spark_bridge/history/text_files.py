"""History in files of text, as programs write them: CSV by RFC 4180, and JSON by lines.

Keys and values are the text that stands there, in UTF-8. Timestamps are milliseconds since 1970 or
times. What is no number or time becomes null, and is refused later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NEEDED = ("key", "value", "timestamp")

_SEPARATORS = (",", ";", "\t")
"""Where commas are in numbers, Excel takes semicolons."""

_RFC_4180: dict[str, Any] = {
    "header": True,
    "encoding": "UTF-8",
    "multiLine": True,  # a value in quotes may have several lines
    "quote": '"',
    "escape": '"',  # quotes in quotes are doubled, and a backslash is a backslash
    # Otherwise the parser makes one of all ends of lines, those within values too.
    "lineSep": "\n",
    # Nothing without quotes is null, and in quotes it is empty: Spark must tell them apart.
    "nullValue": "\x00null\x00",
    "emptyValue": "",
    "ignoreLeadingWhiteSpace": False,
    "ignoreTrailingWhiteSpace": False,
    # A line with fewer or more fields is an error, and so is another file with other columns.
    "mode": "FAILFAST",
    "columnPruning": False,
    "enforceSchema": False,
}


def read_csv(spark: SparkSession, path: str) -> DataFrame:
    """Read CSV files with a header line, as `backfill` takes them.

    The separator is a comma, or the semicolon or tab that the header has. A mark of byte order is
    left out.
    """
    for separator in _SEPARATORS:
        frame = _without_cr(spark.read.options(**_RFC_4180, sep=separator).csv(path))
        if set(NEEDED) <= set(frame.columns):
            return _typed(frame)
    return spark.read.options(**_RFC_4180).csv(path)


def _without_cr(frame: Any) -> Any:
    """Of lines that end in CRLF the last field has the CR, unless it is in quotes."""
    from pyspark.sql import functions as F  # noqa: N812

    *others, last = frame.columns
    name = last.removesuffix("\r")
    field = F.col(f"`{last}`")
    field = F.when(field == "\r", F.lit(None)).otherwise(field)
    if name != last:
        field = F.regexp_replace(field, r"\r\z", "")
    return frame.select(*(F.col(f"`{one}`") for one in others), field.alias(name))


def read_json(spark: SparkSession, path: str) -> DataFrame:
    """Read files with an object on each line; what is no text in it becomes text."""
    frame = spark.read.option("mode", "FAILFAST").option("primitivesAsString", True).json(path)
    return _typed(frame)


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
