"""The commands `headrace store list`, `get`, `scan` and `export`."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from headrace.streams.cli.options import columns, json_option, settings_option, show
from headrace.streams.cli.store_sources import Document, ScanRange, Where

if TYPE_CHECKING:
    from headrace.streams.client.changes import Changes
    from headrace.streams.client.query_client import QueryClient
    from headrace.streams.queries.queries import Queries


_NUMBER = re.compile(r"-[0-9.][0-9.eE+-]*")


class NegativeKeysCommand(click.Command):
    """Command whose arguments may be negative numbers; unknown options are still rejected."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = args[: args.index("--")] if "--" in args else list(args)
        ctx.ignore_unknown_options = True
        left = super().parse_args(ctx, args)
        for name in ("key", "keys"):
            found = ctx.params.get(name) or ()
            for key in (found,) if isinstance(found, str) else found:
                is_option = key.startswith("-") and key != "-" and _NUMBER.fullmatch(key) is None
                if is_option and key in given:
                    raise click.NoSuchOption(
                        key,
                        f"No such option: {key}. Write -- before a key that starts with a minus.",
                        ctx=ctx,
                    )
        return left


def takes_application(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select the source of rows; the command gets a `Where`."""

    @click.option("--app", "target", metavar="MODULE:APP",
                  help="The application, whose files on this host are read.")  # fmt: skip
    @click.option("--url", metavar="URL",
                  help="URL of `headrace run --http ... --queries` on any host, such as "
                  "http://host:9464; all hosts are queried.")  # fmt: skip
    @click.option("--http-token-file", "token_file", type=click.Path(path_type=Path),
                  help="File with the token for --url.")  # fmt: skip
    @click.option("--state-dir", type=click.Path(file_okay=False, path_type=Path),
                  help="The setting state.dir.")  # fmt: skip
    @settings_option
    @wraps(command)
    def given(**options: Any) -> Any:
        own = {one.name: options.pop(one.name) for one in fields(Where) if one.name in options}
        return command(where=Where(**own), **options)

    return given


def where_options(command: Callable[..., Any]) -> Callable[..., Any]:
    with_age = click.option("--max-age", metavar="SPAN",
                            help="Maximum age of rows, such as 10s or 24h.  [default: a minute for "
                            "rows of tasks that moved to another host]")  # fmt: skip
    return with_age(takes_application(command))


@click.command(cls=NegativeKeysCommand)
@click.argument("name")
@click.argument("key", required=False)
@click.option("--from", "begin", metavar="beginning|end|POSITION", default="end", show_default=True,
              help="Start position, such as 0:1500,1:1498 (see --with-position).")  # fmt: skip
@click.option("--snapshot", is_flag=True, help="Print the rows first, then the changes.")
@click.option(
    "--max", "most", type=click.IntRange(min=1), metavar="N", help="Stop after N changes."
)
@click.option("--with-position", is_flag=True, help="Print the position after each change.")
@takes_application
def watch(
    name: str,
    key: str | None,
    begin: str,
    snapshot: bool,
    most: int | None,
    with_position: bool,
    where: Where,
) -> None:
    """Print the changes of a store, or of a key, when they are committed.

    Each change is a line of JSON. Changes are read from the store's changelog, or with --url from
    a host that serves the application, each once and in the order of its partition, until Ctrl-C.
    With --url, a lost connection to the host is restored. No group is joined and nothing is
    committed.
    """
    from headrace.streams.queries.queries import Queries

    if snapshot and begin != "end":
        raise click.UsageError("--snapshot and --from exclude each other.")
    watched = _Watch(name, key, begin, snapshot=snapshot, left=most, with_position=with_position)
    with where.followed() as source, suppress(KeyboardInterrupt):
        if isinstance(source, Queries):
            watched.read(source)
        else:
            watched.ask(source)


@dataclass(slots=True)
class _Watch:
    """Printer of the changes of a store.

    Args:
        left: maximum number of changes that are still printed; None for all.
    """

    name: str
    key: str | None
    begin: str
    snapshot: bool
    left: int | None
    with_position: bool

    def read(self, queries: Queries) -> None:
        """Print changes from the changelog on the cluster."""
        from headrace.streams.queries.change import positions_of
        from headrace.streams.queries.errors import NotReadableError
        from headrace.streams.queries.feeds import Feeds, Start
        from headrace.streams.queries.parsing import key_of_text

        start = Start("rows" if self.snapshot else "end")
        if self.begin == "beginning":
            start = Start("beginning")
        elif self.begin != "end":
            start = Start("positions", positions_of(self.begin))
        serde = queries.reader(self.name).key_serde
        data = None if self.key is None else key_of_text(self.key, serde, self.name)
        woken = threading.Event()
        with Feeds(queries) as feeds:
            feeds.reach()
            follower = feeds.follow(self.name, key=data, start=start, wake=woken.set)
            click.echo(f"Following {self.name}.", err=True)
            while True:
                woken.wait()
                woken.clear()
                for event in follower.take()[0]:
                    if event.name == "closed":
                        raise NotReadableError(json.loads(event.data)["reason"])
                    if event.name == "compacted":
                        click.echo(event.data.decode(), err=True)
                    is_row = event.name in ("row", "change")
                    if is_row and not self._print(event.data.decode(), event.position):
                        feeds.leave(follower)
                        return

    def ask(self, client: QueryClient) -> None:
        """Print changes from a host over HTTP; wait and reconnect if the connection is lost."""
        from headrace.streams.client.changes import Changes
        from headrace.streams.queries.errors import NotReadableError

        position = None if self.begin in ("beginning", "end") else self.begin
        has_begun = False
        while True:
            is_first = position is None
            changes = Changes[Any, Any](
                client,
                self.name,
                of={"key": self.key},
                start="beginning" if is_first and self.begin == "beginning" else "end",
                position=position,
                snapshot=is_first and self.snapshot,
                read=lambda document: (document, None),  # printed unchanged
            )
            try:
                with changes:
                    if not has_begun:
                        click.echo(f"Following {self.name}.", err=True)
                    self._print_changes(changes)
                    return
            except NotReadableError as error:
                has_begun = has_begun or changes.has_received
                position = changes.position
                if not has_begun or position is None:
                    raise
                click.echo(f"Waiting to continue from {position}: {error}", err=True)

    def _print_changes(self, changes: Changes[Any, Any]) -> None:
        gaps = 0
        for change in changes:
            for gap in changes.compacted[gaps:]:
                click.echo(json.dumps(gap, separators=(",", ":")), err=True)
            gaps = len(changes.compacted)
            line = json.dumps(change.key, separators=(",", ":"), ensure_ascii=False)
            if not self._print(line, change.position):
                return

    def _print(self, line: str, position: str | None) -> bool:
        """Print a line; return whether more lines may follow."""
        if self.with_position and position is not None:
            line = f'{line[:-1]},"position":"{position}"}}'
        click.echo(line)
        self.left = None if self.left is None else self.left - 1
        return self.left != 0


_LIMIT = 100


@click.group()
def store() -> None:
    """Read the stores of an application: on this host, or over HTTP.

    Only committed rows are shown. With --app, rows are read from the files in state.dir, also
    while the application runs, and the workers are not affected. With --url, all hosts of a
    running application are queried. Errors end with exit code 2, or a code of `headrace
    exit-codes`.
    """


@store.command("list")
@where_options
@json_option
def list_stores(where: Where, *, as_json: bool) -> None:
    """List the stores and the position of each partition.

    The exit code is 1 if rows were not counted because they may lack changes.
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


def _show_stores(stores: list[Document]) -> None:
    table = columns(
        "STORE", "KIND", "KEY", "VALUE", "PARTITION", "OFFSET", "ROWS", numbers=("OFFSET",)
    )
    for one in stores:
        positions = one["positions"]
        rows = "none here" if one["rows"] is None else f"~{one['rows']:,}"
        if one["in_memory"] and one["rows"] is None:
            rows = "in memory"
        if one.get("refused"):
            rows = "too old"
        here = ",".join(
            "all" if position["partition"] is None else str(position["partition"])
            for position in positions
        )
        offsets = sum(position["offset"] for position in positions)
        cells = (one["name"], one["kind"], one["key"], one["value"])
        table.add_row(*cells, here, f"{offsets:,}", rows)
    show(table)


def _without_rows(one: Document) -> Document:
    return {name: found for name, found in one.items() if name not in ("rows", "refused")}


@store.command(cls=NegativeKeysCommand)
@click.argument("name")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--as-of", metavar="TIME", help="Time in the past, for a versioned store.")
@where_options
@json_option
def get(
    name: str, keys: tuple[str, ...], as_of: str | None, where: Where, *, as_json: bool
) -> None:
    """Print the rows of keys; all windows or sessions of a key in such a store.

    A key is text if the keys are text, else JSON. The exit code is 1 if a key has no row, and 2
    or more after an error.
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
@click.option("--from", "begin", metavar="KEY|TIME", help="First key or time.")
@click.option("--to", "end", metavar="KEY|TIME", help="Last key or time.")
@click.option("--prefix", metavar="KEY", help="First bytes of the keys, such as the first letters.")
@click.option("--reverse", is_flag=True, help="Print the last row first.")
@click.option("--limit", type=click.IntRange(min=1), default=_LIMIT, show_default=True,
              help="Maximum number of rows.")  # fmt: skip
@where_options
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
    """Print rows by key, or windows by time.

    With --json, each row is a line.
    """
    wanted = ScanRange(begin=begin, end=end, prefix=prefix, reverse=reverse)
    with where.opened() as source:
        _print(source.scan(name, wanted, limit), as_json=as_json)


@store.command()
@click.argument("name")
@click.argument("file", type=click.File("w"), default="-")
@where_options
def export(name: str, file: IO[str], where: Where) -> None:
    """Write all rows to FILE or standard output as JSON lines.

    `headrace topics produce` reads such lines. Rows committed during the export may be included.
    """
    with where.opened() as source:
        for row in source.scan(name, ScanRange(), None):
            file.write(json.dumps(row) + "\n")
        file.write("")  # creates the file even if the store has no rows


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
    """Return a printable string as it is, else JSON, so that no data controls the terminal."""
    if isinstance(document, str) and document.isprintable():
        return document
    return json.dumps(document)


store.add_command(watch)
