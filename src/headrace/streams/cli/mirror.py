"""The command `headrace mirror`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from headrace.streams.cli.options import Consent, cli_errors, consent_options, read_settings
from headrace.streams.config.environment import CONFIG, PREFIX, settings_of
from headrace.streams.config.secrets import guarded, over
from headrace.streams.config.settings import Given
from headrace.streams.errors import ConfigError

# Settings of the two clusters, in order of precedence: --set, the environment, a file for each.


_SIDES = ("from", "to")


@dataclass(frozen=True, slots=True)
class Sides:
    """Options of the two clusters, which are checked when they are used."""

    source_file: Path | None
    target_file: Path | None
    named: str | None
    name: str | None
    given: tuple[str, ...]

    @property
    def names(self) -> tuple[str, str]:
        return names_of(self.source_file, self.target_file, self.named)

    @property
    def mirror(self) -> str:
        return self.name or "-to-".join(self.names)

    def settings(self) -> tuple[dict[str, Any], dict[str, Any]]:
        assert self.source_file is not None
        assert self.target_file is not None
        return settings_of_sides(self.source_file, self.target_file, self.given)


def sides_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the two clusters; the command gets `Sides`."""
    file = click.Path(exists=True, dir_okay=False, path_type=Path)

    @click.option("--from", "source_file", type=file, metavar="FILE",
                  help="TOML file with the settings of the source.")  # fmt: skip
    @click.option("--to", "target_file", type=file, metavar="FILE",
                  help="TOML file with the settings of the target.")  # fmt: skip
    @click.option("--names", "named", metavar="SOURCE,TARGET",
                  help="Names of the clusters.  [default: the names of the files]")  # fmt: skip
    @click.option("--name", help="Name of the mirror, the same each time.  "
                  "[default: SOURCE-to-TARGET]")  # fmt: skip
    @click.option("--set", "given", multiple=True, metavar="SIDE.NAME=VALUE",
                  help="A setting of a side, such as from.bootstrap.servers=..., which overrides "
                  "its file and variables such as HEADRACE_TO_SASL_PASSWORD; may be "
                  "repeated.")  # fmt: skip
    @wraps(command)
    def given(*positional: Any, **options: Any) -> Any:
        own = {one.name: options.pop(one.name) for one in fields(Sides)}
        return command(*positional, sides=Sides(**own), **options)

    return given


def names_of(source: Path | None, target: Path | None, named: str | None) -> tuple[str, str]:
    if source is None or target is None:
        raise click.UsageError("--from and --to are required.")
    parts = [source.stem, target.stem] if named is None else named.split(",")
    if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
        raise click.UsageError(
            f"{' and '.join(parts)} must be two different names. Set --names, such as west,east."
        )
    return parts[0], parts[1]


def settings_of_sides(
    source: Path, target: Path, given: tuple[str, ...], environ: Mapping[str, str] = os.environ
) -> tuple[dict[str, Any], dict[str, Any]]:
    lines = {side: _of_line(side, given) for side in _SIDES}
    variables = _of_environment(environ)
    found = [
        guarded(over(over(read_settings(path), variables[side]), lines[side]))
        for side, path in zip(_SIDES, (source, target), strict=True)
    ]
    return found[0], found[1]


def _of_line(side: str, given: tuple[str, ...]) -> dict[str, Any]:
    found = Given()
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith(("from.", "to.")):
            shown = name if equals else "the value"
            raise click.BadParameter(f"{shown} is not from.NAME=VALUE or to.NAME=VALUE")
        if name.startswith(f"{side}."):
            found[name.removeprefix(f"{side}.")] = value
            found.origins[name.removeprefix(f"{side}.")] = "--set"
    return found


def _of_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    ours = {name: text for name, text in environ.items() if name.startswith(PREFIX)}
    ours.pop(CONFIG, None)
    found = {}
    for side in _SIDES:
        begin = f"{PREFIX}{side.upper()}_"
        mine = {name: ours.pop(name) for name in list(ours) if name.startswith(begin)}
        known = settings_of({PREFIX + n.removeprefix(begin): t for n, t in mine.items()})
        known.origins = {n: begin + v.removeprefix(PREFIX) for n, v in known.origins.items()}
        found[side] = known
    settings = settings_of(ours)
    if settings:
        variable = next(iter(ours)).removeprefix(PREFIX)
        raise ConfigError(
            f"the variable {PREFIX}{variable} does not name a cluster. Rename it to "
            f"{PREFIX}FROM_{variable} or {PREFIX}TO_{variable}."
        )
    return found


@click.command()
@click.argument("group")
@sides_options
@click.option("--back", is_flag=True, help="Move from the target back to the source.")
@click.option("--last-known", is_flag=True,
              help="Use the offsets noted by --groups, because the source is lost.")  # fmt: skip
@consent_options
def offsets(group: str, sides: Sides, back: bool, last_known: bool, consent: Consent) -> None:
    """Move the offsets of a stopped group to the target cluster.

    --from, --to and --name are the same as for the mirror, also with --back. The plan is printed
    first. The group must have no members on either cluster.
    """
    names = sides.names
    if back and last_known:
        raise click.UsageError("--last-known and --back exclude each other.")
    from headrace.streams.kafka.connectivity import reach
    from headrace.streams.mirror import mirror as mirrors
    from headrace.streams.mirror.move import Mover

    mirror = sides.mirror
    with cli_errors():
        settings = sides.settings()
        configs = mirrors.config_of(mirror, settings[0]), mirrors.config_of(mirror, settings[1])
        for config in configs[1:] if last_known else configs:
            reach(config.admin_config())
        timeout_s = configs[1].task_timeout_ms / 1000
        if last_known:
            mover = Mover(
                mirror,
                None,
                mirrors.side_of(configs[1], names[1], timeout_s=timeout_s),
                source_name=names[0],
                back=back,
            )
        else:
            both = mirrors.sides(configs, names, timeout_s=timeout_s)
            mover = Mover(mirror, *both, source_name=names[0], back=back)
        plan = mover.plan(group)
        click.echo("\n".join(plan.lines()))
        if not consent.is_given(plan.offsets):
            return
        mover.carry_out(plan)
        click.echo(f"Done. The group {group} continues at {plan.target}.")


@click.group(invoke_without_command=True, subcommand_metavar="[COMMAND]")
@sides_options
@click.option("--topics", multiple=True, metavar="TOPIC,...",
              help="Names, or patterns such as 'orders-*' that include later topics.")  # fmt: skip
@click.option("--rename", default="{topic}", show_default=True,
              help="Pattern of the target topics, such as {cluster}.{topic}, where cluster is the "
              "name of the source.")  # fmt: skip
@click.option("--replication-factor", type=click.IntRange(min=1),
              help="Replication factor of new topics.  [default: that of the target]")  # fmt: skip
@click.option("--groups", multiple=True, metavar="GROUP",
              help="Note the offsets of a group, to move it if the source is lost.")  # fmt: skip
@click.option("--skip-lost", is_flag=True, help="Skip records deleted before they were copied.")
@click.option("--once", is_flag=True, help="Stop at the current ends of the topics.")
@click.pass_context
def mirror(
    context: click.Context,
    sides: Sides,
    topics: tuple[str, ...],
    rename: str,
    replication_factor: int | None,
    groups: tuple[str, ...],
    skip_lost: bool,
    once: bool,
) -> None:
    """Copy topics to another cluster, each record once.

    Partitions, keys, values, timestamps and headers are preserved. Copies and positions are
    committed together at the target: after a stop or a crash, the mirror continues from there.
    """
    if context.invoked_subcommand is not None:
        return
    names = sides.names
    from headrace.streams.mirror.mirror import Mirror

    stop = threading.Event()
    with cli_errors():
        settings = sides.settings()
        made = Mirror(
            name=sides.mirror,
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
