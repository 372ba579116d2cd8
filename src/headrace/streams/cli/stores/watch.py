"""The command `headrace store watch`: the changes of a store as they are committed."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from headrace.streams.cli.stores.negative_keys import TakesNegativeKeys
from headrace.streams.cli.stores.where import takes_application

if TYPE_CHECKING:
    from headrace.streams.cli.stores.sources import Where
    from headrace.streams.queries.queries import Queries
    from headrace.streams.remote.asker import Asker
    from headrace.streams.remote.changes import Changes


@click.command(cls=TakesNegativeKeys)
@click.argument("name")
@click.argument("key", required=False)
@click.option(
    "--from",
    "begin",
    metavar="beginning|end|POSITION",
    default="end",
    show_default=True,
    help="Where to begin; a POSITION such as 0:1500,1:1498 is what --with-position prints.",
)
@click.option("--snapshot", is_flag=True, help="The rows first, then the changes since.")
@click.option("--max", "most", type=click.IntRange(min=1), metavar="N", help="End after so many.")
@click.option("--with-position", is_flag=True, help="Print where one is behind each change, too.")
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
    """Print the changes of a store, or of a key, as they are committed: a line of JSON each.

    They are read from the store's changelog on the cluster, or with --url from a host that serves
    the application, each once and in the order of its partition, until Ctrl-C. With --url it goes
    on where the connection was cut, at the same host, and says so while it waits for that. It joins
    no group and commits nothing.
    """
    from headrace.streams.queries.queries import Queries

    if snapshot and begin != "end":
        raise click.UsageError("--snapshot begins behind the rows; leave out --from")
    lines = _Lines(most, with_position=with_position)
    with where.followed() as source, suppress(KeyboardInterrupt):
        if isinstance(source, Queries):
            _read(source, name, key, begin, lines, snapshot=snapshot)
        else:
            _ask(source, name, key, begin, lines, snapshot=snapshot)


class _Lines:
    """What is printed, until it is enough."""

    def __init__(self, most: int | None, *, with_position: bool) -> None:
        self._left = most
        self._with_position = with_position

    def add(self, line: str, position: str | None) -> bool:
        """Print one; returns whether there is to be another one."""
        if self._with_position and position is not None:
            line = f'{line[:-1]},"position":"{position}"}}'
        click.echo(line)
        self._left = None if self._left is None else self._left - 1
        return self._left != 0


def _read(
    queries: Queries, name: str, key: str | None, begin: str, lines: _Lines, *, snapshot: bool
) -> None:
    """Print what the cluster has."""
    from headrace.streams.feeds.feeds import Feeds, Start
    from headrace.streams.feeds.positions import positions_of
    from headrace.streams.queries.asked import key_of_text
    from headrace.streams.queries.errors import NotReadableError

    start = Start("rows" if snapshot else "beginning" if begin == "beginning" else "end")
    if begin not in ("beginning", "end"):
        start = Start("positions", positions_of(begin))
    reader = queries.reader(name)
    data = None if key is None else key_of_text(key, reader.key_serde, name)
    woken = threading.Event()
    with Feeds(queries) as feeds:
        feeds.reach()
        follower = feeds.follow(name, key=data, start=start, wake=woken.set)
        click.echo(f"Following {name}.", err=True)
        while True:
            woken.wait()
            woken.clear()
            for event in follower.take()[0]:
                if event.name == "closed":
                    raise NotReadableError(json.loads(event.data)["reason"])
                if event.name == "compacted":
                    click.echo(event.data.decode(), err=True)
                is_told = event.name in ("row", "change")
                if is_told and not lines.add(event.data.decode(), event.position):
                    feeds.leave(follower)
                    return


def _ask(
    asker: Asker, name: str, key: str | None, begin: str, lines: _Lines, *, snapshot: bool
) -> None:
    """Print what a host tells; one that is away is waited for where it had begun to tell."""
    from headrace.streams.queries.errors import NotReadableError

    position = None if begin in ("beginning", "end") else begin
    has_told = False
    while True:
        changes = _changes(asker, name, key, begin, position, snapshot=snapshot)
        try:
            with changes:
                if not has_told:
                    click.echo(f"Following {name}.", err=True)
                _print(changes, lines)
                return
        except NotReadableError as error:
            has_told = has_told or changes.has_told
            position = changes.position
            if not has_told or position is None:
                raise
            click.echo(f"Waiting, to go on from {position}: {error}", err=True)


def _changes(
    asker: Asker, name: str, key: str | None, begin: str, position: str | None, *, snapshot: bool
) -> Changes[Any, Any]:
    from headrace.streams.remote.changes import Changes

    is_anew = position is None
    return Changes(
        asker,
        name,
        of={"key": key},
        start="beginning" if is_anew and begin == "beginning" else "end",
        position=position,
        snapshot=is_anew and snapshot,
        read=lambda document: (document, None),  # it is printed as it came
    )


def _print(changes: Changes[Any, Any], lines: _Lines) -> None:
    """Print changes until it is enough."""
    gaps = 0
    for change in changes:
        for gap in changes.compacted[gaps:]:
            click.echo(json.dumps(gap, separators=(",", ":")), err=True)
        gaps = len(changes.compacted)
        line = json.dumps(change.key, separators=(",", ":"), ensure_ascii=False)
        if not lines.add(line, change.position):
            return
