"""The commands `headrace store list`, `get`, `scan` and `export`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from headrace.streams.cli.options import said_errors, settings_option
from headrace.streams.cli.stores.loaded_queries import LoadedQueries
from headrace.streams.cli.tables import columns, json_option, show

if TYPE_CHECKING:
    from headrace.streams.queries.answers import Place, Row
    from headrace.streams.queries.queries import Queries
    from headrace.streams.queries.readers import StoreReader

_Command = TypeVar("_Command", bound=Callable[..., Any])
_LIMIT = 100

_app = click.option("--app", "target", metavar="MODULE:APP", required=True, help="The application.")
_state_dir = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where its state is, over its setting state.dir.",
)


def of_application(command: _Command) -> _Command:
    """Take an application and its settings."""
    return _app(_state_dir(settings_option(command)))


@click.group()
def store() -> None:
    """Read the stores of an application on this host, whether it runs or not.

    What is shown is committed. The rows are read from the files in state.dir beside the workers,
    which notice nothing.
    """


@contextmanager
def queries_of(target: str, settings: dict[str, Any], state_dir: Path | None) -> Iterator[Queries]:
    """The stores of the application that a command names."""
    if state_dir is not None:
        settings = {**settings, "state.dir": str(state_dir)}
    with said_errors(), LoadedQueries(target, settings)() as queries:
        yield queries


@store.command("list")
@of_application
@json_option
def list_stores(
    target: str, settings: dict[str, Any], state_dir: Path | None, *, as_json: bool
) -> None:
    """List the stores, and how far each partition is that this host has."""
    with queries_of(target, settings, state_dir) as queries:
        found = [(queries.reader(name), _places(queries, name)) for name in sorted(queries.stores)]
        if as_json:
            click.echo(json.dumps([_document(reader, places) for reader, places in found]))
            return
        table = columns(
            "STORE", "KIND", "KEY", "VALUE", "PARTITION", "OFFSET", "ROWS", numbers=("OFFSET",)
        )
        for reader, places in found:
            kept = reader.store
            rows = f"~{reader.approximate_num_entries():,}" if places else "none here"
            if kept.in_memory:
                rows = "in memory"
            here = ",".join("all" if p.partition is None else str(p.partition) for p in places)
            offsets = sum(place.offset for place in places)
            table.add_row(
                kept.name, kept.kind, kept.key.name, kept.value.name, here, f"{offsets:,}", rows
            )
        show(table)


def _places(queries: Queries, name: str) -> tuple[Place, ...]:
    from headrace.streams.queries.errors import QueryError

    try:
        return queries.reader(name).places()
    except QueryError:
        return ()  # no worker has begun with it here, or it is in memory


def _document(reader: StoreReader[Any, Any], places: Sequence[Place]) -> dict[str, Any]:
    kept = reader.store
    return {
        "name": kept.name,
        "kind": kept.kind,
        "key": kept.key.name,
        "value": kept.value.name,
        "in_memory": kept.in_memory,
        "places": [asdict(place) for place in places],
    }


@store.command()
@click.argument("name")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--as-of", metavar="TIME", help="As of when, of a versioned store.")
@of_application
@json_option
def get(
    name: str,
    keys: tuple[str, ...],
    as_of: str | None,
    target: str,
    settings: dict[str, Any],
    state_dir: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print the rows of keys; of a store with windows or sessions all of a key's.

    A key is text where keys are text, else JSON. The exit code is 1 where one has no row.
    """
    with queries_of(target, settings, state_dir) as queries:
        reader = queries.reader(name)
        found = [row for key in keys for row in _rows_of(reader, key, as_of)]
        _print((row for row in found if row is not None), as_json=as_json)
        missing = found.count(None)
    if missing:
        click.echo(f"{missing} of {len(keys)} keys have no row in {name}", err=True)
        sys.exit(1)


def _rows_of(
    reader: StoreReader[Any, Any], text: str, as_of: str | None
) -> Sequence[Row[Any, Any] | None]:
    from headrace.streams.queries.asked import key_of_text, time_of
    from headrace.streams.queries.errors import WrongQueryError
    from headrace.streams.queries.readers import (
        LAST_MS,
        KeyValueReader,
        SessionReader,
        VersionedReader,
        WindowReader,
    )

    key = key_of_text(text, reader.key_serde, reader.name)
    if as_of is not None:
        if not isinstance(reader, VersionedReader):
            raise WrongQueryError(f"store {reader.name!r} keeps no versions; leave out --as-of")
        return [reader.find_as_of(key, time_of(as_of, "--as-of"), is_encoded=True).row]
    if isinstance(reader, WindowReader | SessionReader):
        return [*reader.rows(reader.of_key(key, 0, LAST_MS))] or [None]
    assert isinstance(reader, KeyValueReader)
    return [reader.find(key, is_encoded=True).row]


@store.command()
@click.argument("name")
@click.option("--from", "begin", metavar="KEY|TIME", help="The first.")
@click.option("--to", "end", metavar="KEY|TIME", help="The last.")
@click.option("--prefix", metavar="KEY", help="Rows whose keys begin so.")
@click.option("--reverse", is_flag=True, help="From the last to the first.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=_LIMIT, show_default=True, help="Rows at most."
)
@of_application
@json_option
def scan(
    name: str,
    begin: str | None,
    end: str | None,
    prefix: str | None,
    reverse: bool,
    limit: int,
    target: str,
    settings: dict[str, Any],
    state_dir: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print rows in the order of their keys; with times those of windows, by time.

    With --json each row is a line.
    """
    from headrace.streams.queries.asked import scan_of

    with queries_of(target, settings, state_dir) as queries:
        reader = queries.reader(name)
        wanted = scan_of(reader, begin=begin, end=end, prefix=prefix, reverse=reverse)
        _print(reader.rows(wanted, limit), as_json=as_json)


@store.command()
@click.argument("name")
@click.argument("file", type=click.File("w"), default="-")
@of_application
def export(
    name: str, file: IO[str], target: str, settings: dict[str, Any], state_dir: Path | None
) -> None:
    """Write all rows to FILE, or to the standard output: one line of JSON each.

    `headrace topics produce` reads such lines. What is committed meanwhile is in the lines that
    follow.
    """
    with queries_of(target, settings, state_dir) as queries:
        for row in queries.reader(name).all():
            file.write(_line(row) + "\n")


def _print(rows: Iterator[Row[Any, Any]], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            click.echo(_line(row))
        return
    from rich.text import Text

    from headrace.streams.queries.asked import row_document

    table = columns("KEY", "VALUE", "TIMESTAMP", "PARTITION", numbers=("TIMESTAMP",))
    for row in rows:
        found = row_document(row)
        shown = (_shown(found["key"]), _shown(found["value"]), str(row.timestamp))
        part = "all" if row.partition is None else str(row.partition)
        table.add_row(*(Text(text) for text in (*shown, part)))
    show(table)


def _shown(document: Any) -> str:
    """Text as it is, as long as no terminal takes it for more than text."""
    if isinstance(document, str) and document.isprintable():
        return document
    return json.dumps(document)


def _line(row: Row[Any, Any]) -> str:
    from headrace.streams.queries.asked import row_document

    return json.dumps(row_document(row))
