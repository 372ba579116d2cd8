"""The command `headrace store watch`: the changes of a store as they are committed."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.streams.cli.stores.negative_keys import TakesNegativeKeys
from headrace.streams.cli.stores.sources import of_application, queries_of

if TYPE_CHECKING:
    from headrace.streams.feeds.feeds import Feeds
    from headrace.streams.feeds.subscription import Subscription


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
@of_application
def watch(
    name: str,
    key: str | None,
    begin: str,
    snapshot: bool,
    most: int | None,
    with_position: bool,
    target: str,
    settings: dict[str, Any],
    state_dir: Path | None,
) -> None:
    """Print the changes of a store, or of a key, as they are committed: a line of JSON each.

    They are read from the store's changelog on the cluster, each once and in the order of its
    partition, until Ctrl-C. It joins no group and commits nothing.
    """
    from headrace.streams.feeds.feeds import Feeds, Start
    from headrace.streams.feeds.positions import positions_of
    from headrace.streams.queries.asked import key_of_text

    if snapshot and begin != "end":
        raise click.UsageError("--snapshot begins behind the rows; leave out --from")
    with queries_of(target, settings, state_dir) as queries, Feeds(queries) as feeds:
        start = Start("rows" if snapshot else "beginning" if begin == "beginning" else "end")
        if begin not in ("beginning", "end"):
            start = Start("positions", positions_of(begin))
        reader = queries.reader(name)
        data = None if key is None else key_of_text(key, reader.key_serde, name)
        woken = threading.Event()
        follower = feeds.follow(name, key=data, start=start, wake=woken.set)
        click.echo(f"Following {name}.", err=True)
        with suppress(KeyboardInterrupt):
            _print(feeds, follower, woken, most, with_position=with_position)


def _print(
    feeds: Feeds,
    follower: Subscription,
    woken: threading.Event,
    most: int | None,
    *,
    with_position: bool,
) -> None:
    left = most
    while True:
        woken.wait()
        woken.clear()
        for event in follower.take()[0]:
            if event.name == "closed":
                raise click.ClickException(json.loads(event.data)["reason"])
            if event.name == "compacted":
                click.echo(event.data.decode(), err=True)
            if event.name not in ("row", "change"):
                continue
            line = event.data.decode()
            if with_position and event.position is not None:
                line = f'{line[:-1]},"position":"{event.position}"}}'
            click.echo(line)
            left = None if left is None else left - 1
            if left == 0:
                feeds.leave(follower)
                return
