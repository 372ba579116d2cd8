"""The same topology over history on Spark, handed over to the live application.

Importing the package imports neither pyspark nor pyarrow; what needs them imports them when it is
called.
"""

from spark_bridge.backfill import backfill
from spark_bridge.changelog import read_store, read_topic, register
from spark_bridge.errors import BackfillError, CannotBackfillError, HistoryGapError, ReadError
from spark_bridge.reports import Report, StageReport
from spark_bridge.session import SparkMissingError, local_session
from spark_bridge.text_files import read_csv

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
