"""The command `headrace feed`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from headrace.streams.cli.options import cli_errors, settings_option
from headrace.streams.config.secrets import over

if TYPE_CHECKING:
    from headrace.streams.connectors.files import Files
    from headrace.streams.connectors.source import Source

_DEFAULTS = {"bootstrap.servers": "localhost:9092"}


@click.command()
@click.option("--files", metavar="PATTERN", help="Files, such as 'clicks/*.jsonl', .csv, .parquet.")
@click.option("--sql", metavar="SELECT", help="Query without ORDER BY.")
@click.option(
    "--connect", metavar="MODULE:FUNCTION", help="Function that returns a DB-API connection."
)
@click.option("--column", metavar="NAME", help="Increasing column of the query.")
@click.option("--to", "topic", required=True, metavar="TOPIC", help="Topic to write to.")
@click.option("--name", help="Name of the feed, the same each time.  [default: feed-TOPIC]")
@click.option("--key", metavar="FIELD", help="Field to use as the key, as text.")
@click.option("--timestamp", metavar="FIELD", help="Field to use as the timestamp.")
@click.option("--follow", is_flag=True, help="Continue with new rows until Ctrl-C.")
@click.option("--complete", is_flag=True, help="Read the last line without a line end.")
@click.option("--skip-bad", is_flag=True, help="Skip rows that cannot be read or written.")
@click.option("--rewritten", is_flag=True, help="Read files again that were written again.")
@settings_option
def feed(
    files: str | None,
    sql: str | None,
    connect: str | None,
    column: str | None,
    topic: str,
    name: str | None,
    key: str | None,
    timestamp: str | None,
    follow: bool,
    complete: bool,
    skip_bad: bool,
    rewritten: bool,
    settings: dict[str, Any],
) -> None:
    """Write rows of files or of a database to a topic, each row once.

    The position is written to the topic NAME-positions, in the transaction of the rows: after a
    stop or a crash, the feed continues from there. A value is the row as JSON.
    """
    from headrace.streams.connectors.feed import Feed
    from headrace.streams.connectors.files import Files

    if (files is None) == (sql is None):
        raise click.UsageError("--files or --sql is required, and not both.")
    if sql is not None and rewritten:
        raise click.UsageError("--rewritten requires --files.")
    stop = threading.Event()
    source: Source
    with cli_errors():
        if files is None:
            source = _query(sql, connect, column, key=key, timestamp=timestamp)
        else:
            source = found = Files(
                files,
                key=key,
                timestamp=timestamp,
                grows=not complete,
                skip_bad=skip_bad,
                rewritten=rewritten,
            )
            _require_files(files, found, follow=follow)
        made = Feed(
            source,
            topic=topic,
            name=name or f"feed-{topic}",
            settings=over(_DEFAULTS, settings),
            skip_bad=skip_bad,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        rows = made.run(follow=follow, stop=stop, every=timedelta(seconds=1))
    left_out = f"; {made.skipped} skipped, see rows_skipped in the log" if made.skipped else ""
    click.echo(f"Written: {topic} ({rows} row{'' if rows == 1 else 's'}{left_out})")
    if not follow:
        with cli_errors():
            _report_waiting(getattr(source, "waiting", {}))


def _report_waiting(waiting: Mapping[str, str]) -> None:
    """Print the unread rest of the source; raise if it is an open quote, a probable error."""
    from headrace.streams.connectors.files import OPEN_QUOTE
    from headrace.streams.connectors.source import SourceError

    for reason in waiting.values():
        click.echo(f"Not read yet: {reason}", err=True)
    for reason in waiting.values():
        if OPEN_QUOTE in reason:
            raise SourceError(f"{reason}. Correct the row, or skip it with --complete --skip-bad.")


def _query(
    sql: str | None,
    connect: str | None,
    column: str | None,
    *,
    key: str | None,
    timestamp: str | None,
) -> Source:
    from headrace.streams.connectors.query import Query
    from headrace.streams.supervisor.app_loader import load_function

    if connect is None or column is None or sql is None:
        raise click.UsageError("--sql requires --connect and --column.")
    return Query(load_function(connect), sql, column, key=key, timestamp=timestamp)


def _require_files(pattern: str, files: Files, *, follow: bool) -> None:
    from headrace.streams.connectors.source import SourceError

    if files.paths():
        return
    if not follow:
        raise SourceError(
            f"no file matches {pattern}. Correct the pattern, or wait for files with --follow."
        )
    click.echo(f"No file matches {pattern} yet. Waiting for a file.", err=True)
