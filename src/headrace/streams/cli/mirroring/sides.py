"""The settings of two clusters: a file for each, the environment, and single ones over both."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from headrace.streams.cli.options import read_settings
from headrace.streams.config.environment import CONFIG, PREFIX, settings_of
from headrace.streams.errors import ConfigError
from headrace.streams.secrets import guarded, over
from headrace.streams.settings import Given

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SIDES = ("from", "to")


def sides_options(command: _Command) -> _Command:
    """Take two clusters."""
    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    source = click.option(
        "--from", "source_file", type=file, metavar="FILE", help="TOML with the source's settings."
    )
    target = click.option(
        "--to", "target_file", type=file, metavar="FILE", help="TOML with the target's settings."
    )
    named = click.option(
        "--names",
        "named",
        metavar="SOURCE,TARGET",
        help="What the clusters are called.  [default: the names of the files]",
    )
    name = click.option(
        "--name", help="Of the mirror, the same each time.  [default: SOURCE-to-TARGET]"
    )
    single = click.option(
        "--set",
        "given",
        multiple=True,
        metavar="SIDE.NAME=VALUE",
        help="Set a setting of a side, such as from.bootstrap.servers=..., over its file and over "
        "variables such as HEADRACE_TO_SASL_PASSWORD; may be repeated.",
    )
    return source(target(named(name(single(command)))))


def names_of(source: Path | None, target: Path | None, named: str | None) -> tuple[str, str]:
    """What the clusters are called.

    Raises:
        UsageError: a file is not given, or one name for both.
    """
    if source is None or target is None:
        raise click.UsageError("give --from and --to, a file of settings each")
    parts = [source.stem, target.stem] if named is None else named.split(",")
    if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
        raise click.UsageError(
            f"{' and '.join(parts)} are no names of two clusters; say --names west,east"
        )
    return parts[0], parts[1]


def settings_of_sides(
    source: Path, target: Path, given: tuple[str, ...], environ: Mapping[str, str] = os.environ
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the source and of the target.

    Raises:
        ConfigError: a file cannot be read, or it is not said whose a setting is.
    """
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
            shown = name if equals else "what was given"
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
            f"the variable {PREFIX}{variable} does not say of which cluster it is; name it "
            f"{PREFIX}FROM_{variable} or {PREFIX}TO_{variable}"
        )
    return found
