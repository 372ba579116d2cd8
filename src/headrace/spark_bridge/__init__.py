"""The same topology over history on Spark, handed over to the live application.

Importing the package imports neither pyspark nor pyarrow; functions that need them import them
when they are called.
"""

from headrace.spark_bridge.backfill import backfill
from headrace.spark_bridge.dataframes.changelog import read_store, read_topic, register
from headrace.spark_bridge.errors import (
    BackfillError,
    CannotBackfillError,
    HistoryGapError,
    ReadError,
    SparkMissingError,
)
from headrace.spark_bridge.history.text_files import read_csv
from headrace.spark_bridge.reports import Report, StageReport
from headrace.spark_bridge.session import local_session

__all__ = [
    "BackfillError",
    "CannotBackfillError",
    "HistoryGapError",
    "ReadError",
    "Report",
    "SparkMissingError",
    "StageReport",
    "backfill",
    "local_session",
    "read_csv",
    "read_store",
    "read_topic",
    "register",
]
