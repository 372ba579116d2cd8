"""The commands `headrace store list`, `get`, `scan` and `export`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import IO, Any

import click

from headrace.streams.cli.stores.negative_keys import TakesNegativeKeys
from headrace.streams.cli.stores.sources import Document, Range, Where
from headrace.streams.cli.stores.where import takes_where
from headrace.streams.cli.tables import columns, json_option, show

_LIMIT = 100


@click.group()
def store() -> None:
    """Read the stores of an application: on this host, whether it runs or not, or over HTTP.

    What is shown is committed. With --app the rows are read from the files in state.dir beside the
    workers, which notice nothing; with --url an application that runs is asked, all of its hosts.
    Errors end with exit code 2, or that of `headrace exit-codes`.
    """


@store.command("list")
@takes_where
@json_option
def list_stores(where: Where, *, as_json: bool) -> None:
    """List the stores, and how far each partition is: those of this host, or with --url of all.

    The exit code is 1 where rows were not counted, as they may lack changes.
    """
    with where.opened() as source:
        found = source.stores()
    if as_json:
        click.echo(json.dumps([_without_rows(one) for one in found]))
    else:
        _show_stores(found)
    refused = [one["refused"] for one in found if one.get("refused")]
    if refused:
        click.echo(f"Error: {refused[0]}", err=True)
        sys.exit(1)


def _show_stores(found: list[Document]) -> None:
    table = columns(
        "STORE", "KIND", "KEY", "VALUE", "PARTITION", "OFFSET", "ROWS", numbers=("OFFSET",)
    )
    for one in found:
        places = one["places"]
        rows = "none here" if one["rows"] is None else f"~{one['rows']:,}"
        if one["in_memory"] and one["rows"] is None:
            rows = "in memory"
        if one.get("refused"):
            rows = "too old"
        here = ",".join(
            "all" if place["partition"] is None else str(place["partition"]) for place in places
        )
        offsets = sum(place["offset"] for place in places)
        words = (one["name"], one["kind"], one["key"], one["value"])
        table.add_row(*words, here, f"{offsets:,}", rows)
    show(table)


def _without_rows(one: Document) -> Document:
    return {name: found for name, found in one.items() if name not in ("rows", "refused")}


@store.command(cls=TakesNegativeKeys)
@click.argument("name")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--as-of", metavar="TIME", help="As of when, of a versioned store.")
@takes_where
@json_option
def get(
    name: str, keys: tuple[str, ...], as_of: str | None, where: Where, *, as_json: bool
) -> None:
    """Print the rows of keys; of a store with windows or sessions all of a key's.

    A key is text where keys are text, else JSON. The exit code is 1 where one has no row,
    and 2 or more where something else was refused.
    """
    with where.opened() as source:
        found = [source.of_key(name, key, as_of) for key in keys]
        _print((row for rows in found for row in rows), as_json=as_json)
        missing = found.count([])
    if missing:
        click.echo(f"{missing} of {len(keys)} keys have no row in {name}", err=True)
        sys.exit(1)


@store.command()
@click.argument("name")
@click.option("--from", "begin", metavar="KEY|TIME", help="The first.")
@click.option("--to", "end", metavar="KEY|TIME", help="The last.")
@click.option(
    "--prefix",
    metavar="KEY",
    help="Rows whose keys' bytes begin so, such as with the first letters of texts.",
)
@click.option("--reverse", is_flag=True, help="From the last to the first.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=_LIMIT, show_default=True, help="Rows at most."
)
@takes_where
@json_option
def scan(
    name: str,
    begin: str | None,
    end: str | None,
    prefix: str | None,
    reverse: bool,
    limit: int,
    where: Where,
    *,
    as_json: bool,
) -> None:
    """Print rows in the order of their keys; with times those of windows, by time.

    With --json each row is a line.
    """
    wanted = Range(begin=begin, end=end, prefix=prefix, reverse=reverse)
    with where.opened() as source:
        _print(source.scan(name, wanted, limit), as_json=as_json)


@store.command()
@click.argument("name")
@click.argument("file", type=click.File("w"), default="-")
@takes_where
def export(name: str, file: IO[str], where: Where) -> None:
    """Write all rows to FILE, or to the standard output: one line of JSON each.

    `headrace topics produce` reads such lines. What is committed meanwhile is in the lines that
    follow.
    """
    with where.opened() as source:
        for row in source.scan(name, Range(), None):
            file.write(json.dumps(row) + "\n")
        file.write("")  # the file is opened by that, also where there are no rows


def _print(rows: Iterable[Document], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    from rich.text import Text

    table = columns("KEY", "VALUE", "TIMESTAMP", "PARTITION", numbers=("TIMESTAMP",))
    for row in rows:
        part = "all" if row["partition"] is None else str(row["partition"])
        shown = (_shown(row["key"]), _shown(row["value"]), str(row["timestamp"]), part)
        table.add_row(*map(Text, shown))
    show(table)


def _shown(document: Any) -> str:
    """Text as it is, as long as no terminal takes it for more than text."""
    if isinstance(document, str) and document.isprintable():
        return document
    return json.dumps(document)
