"""The command `headrace mirror`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from headrace.streams.cli.mirroring.offsets import offsets
from headrace.streams.cli.mirroring.sides import names_of, settings_of_sides, sides_options
from headrace.streams.cli.options import said_errors


@click.group(invoke_without_command=True, subcommand_metavar="[COMMAND]")
@sides_options
@click.option(
    "--topics",
    multiple=True,
    metavar="TOPIC,...",
    help="Names, and patterns such as 'orders-*', which take topics that come later too.",
)
@click.option(
    "--rename",
    default="{topic}",
    show_default=True,
    help="What topics are called at the target, such as {cluster}.{topic}, where cluster is the "
    "name of the source.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    help="Of what is made at the target.  [default: the target's]",
)
@click.option(
    "--groups",
    multiple=True,
    metavar="GROUP",
    help="Note where a group of the source stands, to move it when the source is gone.",
)
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Go on behind records that the source deleted before they were copied.",
)
@click.option("--once", is_flag=True, help="End where the topics end now.")
@click.pass_context
def mirror(
    context: click.Context,
    source_file: Path | None,
    target_file: Path | None,
    named: str | None,
    name: str | None,
    given: tuple[str, ...],
    topics: tuple[str, ...],
    rename: str,
    replication_factor: int | None,
    groups: tuple[str, ...],
    skip_lost: bool,
    once: bool,
) -> None:
    """Copy topics of one cluster to another, each record once.

    Partitions, keys, values, timestamps and headers stay as they are. What is copied, and where it
    stands, is committed together at the target: stopped or killed at any moment, it goes on from
    there.
    """
    if context.invoked_subcommand is not None:
        return
    names = names_of(source_file, target_file, named)
    assert source_file is not None
    assert target_file is not None
    from headrace.streams.mirror.mirror import Mirror

    stop = threading.Event()
    with said_errors():
        settings = settings_of_sides(source_file, target_file, given)
        made = Mirror(
            name=name or "-to-".join(names),
            source=settings[0],
            target=settings[1],
            topics=topics,
            rename=rename,
            source_name=names[0],
            target_name=names[1],
            replication_factor=replication_factor or -1,
            skip_lost=skip_lost,
            groups=groups,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        records = made.run(once=once, stop=stop)
    click.echo(f"Mirrored: {records} record{'' if records == 1 else 's'}")


mirror.add_command(offsets)
