"""The exit codes of `headrace backfill`, in one table; the page docs/backfill.md shows it, made by
`python -m headrace.spark_bridge.cli.errors`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from headrace.spark_bridge.errors import BackfillError, CannotBackfillError, SparkMissingError
from headrace.streams.supervise import exit_codes
from headrace.streams.supervise.exit_codes import Ending, ExitCode, exit_code_of

TABLE: tuple[Ending, ...] = (
    Ending(CannotBackfillError,
           "it is refused: what it would read, the application or its topics are not ready for it",
           ExitCode.BACKFILL, "after following the message"),
    Ending(BackfillError, "it failed on its way", ExitCode.CRASHED,
           "with the same id, after correcting the cause"),
    Ending(SparkMissingError, "pyspark or Java is missing, or Spark is older than 4.1",
           ExitCode.CONFIGURATION, "after installing it"),
    Ending(None, "it is handed over, now or before; or planned (`--dry-run`), or dropped",
           ExitCode.STOPPED, "no"),
)  # fmt: skip


def code_of(error: BaseException) -> ExitCode:
    """What the command should end with that was stopped by `error`.

    >>> from headrace.spark_bridge.errors import HistoryGapError
    >>> code_of(HistoryGapError("records are nowhere any more")).name
    'BACKFILL'
    >>> from headrace.streams.errors import ConfigError
    >>> code_of(ConfigError("poll.ms must be at least 0, not -1")).name
    'CONFIGURATION'
    """
    return exit_code_of(error, (*TABLE, *exit_codes.TABLE))


def rows() -> Iterator[str]:
    """The table's lines as Markdown."""
    return exit_codes.rows(TABLE, "run it again?")


if __name__ == "__main__":
    sys.stdout.write("\n".join(rows()) + "\n")
