"""Options and output shared by commands: the application, its settings, tables and errors."""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from headrace.streams.config.environment import CONFIG, PREFIX, settings_of
from headrace.streams.config.secrets import guarded, over
from headrace.streams.config.settings import Given, origins_of
from headrace.streams.errors import ConfigError, StreamsError
from headrace.streams.kafka.protocols import OffsetTarget
from headrace.topology.errors import RegistryError, TopologyError

if TYPE_CHECKING:
    from headrace.streams.app import KafkaStreams


_WIDE = 1 << 20

json_option = click.option("--json", "as_json", is_flag=True, help="Print a JSON document.")


def columns(*names: str, numbers: Iterable[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    return table


def show(table: Table) -> None:
    """Print a table at its full width, so that it can be piped."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        # A pipe has no width; rich assumes 80 columns and would cut off the rest.
        console = Console(highlight=False, soft_wrap=True, width=_WIDE)
    console.print(table)


_Command = TypeVar("_Command", bound=Callable[..., Any])
_FILE, _SERVERS, _STATE_DIR = "headrace.config", "headrace.servers", "headrace.state_dir"
_TABLE = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_NAME = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_ASSIGNED = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=")


def read_settings(path: Path) -> Given:
    """Read the settings of a TOML file, each with its line as origin."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error.strerror}") from error
    try:
        text = data.decode()
        found, lines = _flattened(tomllib.loads(text)), _lines(text)
        at = {name: f"{path}, line {lines[name]}" if name in lines else str(path) for name in found}
        return Given(found, at)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path} cannot be read as TOML: line {line} is not UTF-8") from None
    except ValueError as error:
        last = data.rstrip().count(b"\n") + 1
        message = str(error).replace("at end of document", f"at the end, line {last}")
        raise ConfigError(f"{path} cannot be read as TOML: {message}") from error


def _flattened(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten nested tables; TOML parses an unquoted dotted name as nested tables.

    >>> _flattened({"state": {"dir": "/var/lib"}, "sasl.username": "app"})
    {'state.dir': '/var/lib', 'sasl.username': 'app'}
    """
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found.update(_flattened(value, f"{before}{name}."))
        else:
            found[f"{before}{name}"] = value
    return found


def _lines(text: str) -> dict[str, int]:
    """Return the line of each setting, without settings that appear on several lines.

    >>> _lines('"poll.ms" = 5\\n[consumer]\\nsession.timeout.ms = 6\\n')
    {'poll.ms': 1, 'consumer.session.timeout.ms': 3}
    """
    found: dict[str, list[int]] = {}
    before = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if (table := _TABLE.match(line)) is not None:
            before = f"{_bare(table[1])}."
        elif (assigned := _ASSIGNED.match(line)) is not None:
            found.setdefault(before + _bare(assigned[1]), []).append(number)
    return {name: numbers[0] for name, numbers in found.items() if len(numbers) == 1}


def _bare(name: str) -> str:
    return re.sub(r"[\s\"']", "", name)


def _store_in_meta(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return an option's callback that keeps its value for the callback of `--set`."""

    def keep(context: click.Context, _: click.Parameter, value: Any) -> None:
        context.meta[name] = value

    return keep


def _settings(context: click.Context, _: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """Merge the settings given outside of the application; later layers override earlier layers."""
    line = Given()
    if context.meta.get(_SERVERS) is not None:
        line["bootstrap.servers"] = context.meta[_SERVERS]
        line.origins["bootstrap.servers"] = "--bootstrap-servers"
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            begin = re.match(r"[\w.-]*", text)
            where = (
                f"the option that starts with {begin[0]!r}"
                if begin and begin[0] != text
                else repr(text)
            )
            raise click.BadParameter(f"{where} is not NAME=VALUE")
        line[name.strip()] = value
        line.origins[name.strip()] = "--set"
    if context.meta.get(_STATE_DIR) is not None:
        line["state.dir"] = context.meta[_STATE_DIR]
        line.origins["state.dir"] = "--state-dir"
    with cli_errors():
        beside = over(_of_file(context.meta.get(_FILE)), settings_of(os.environ))
        return guarded(over(beside, line))


def _of_file(path: Path | None) -> Given:
    if path is not None:
        return read_settings(path)
    named = os.environ.get(CONFIG)
    if named is None:
        return Given()
    if not named:
        raise ConfigError(f"the variable {CONFIG} is empty. Set it to a file, or unset it.")
    try:
        return read_settings(Path(named))
    except ConfigError as error:
        raise ConfigError(f"{error} (named by the variable {CONFIG})") from error


_NO_CLUSTER = {"application.id": "application", "bootstrap.servers": "localhost:9092"}
"""Default settings of commands that connect to no broker."""


def target_argument(command: _Command) -> _Command:
    """Add the argument MODULE:APP, with a sentence about it in the help."""
    text = inspect.cleandoc(command.__doc__ or "")  # Python 3.13 removes the indentation itself
    end = "\n\n" if "\n" in text else "\n"
    command.__doc__ = f"{text}{end}MODULE:APP is the application, as for `headrace run`.\n"
    return click.argument("target", metavar="MODULE:APP")(command)


state_dir_option = click.option(
    "--state-dir",
    metavar="DIRECTORY",
    is_eager=True,
    expose_value=False,
    callback=_store_in_meta(_STATE_DIR),
    help="The setting state.dir.",
)


def settings_option(command: _Command) -> _Command:
    single = click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_settings,
        help="A setting, which overrides other sources; may be repeated.",
    )
    servers = click.option(
        "--bootstrap-servers",
        metavar="HOST:PORT,...",
        is_eager=True,
        expose_value=False,
        callback=_store_in_meta(_SERVERS),
        help="The setting bootstrap.servers.",
    )
    of_file = click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_store_in_meta(_FILE),
        help='TOML file of settings, with lines such as "sasl.username" = "app". Variables such as '
        "HEADRACE_SASL_USERNAME override it, and --set overrides both.",
    )
    return of_file(servers(single(command)))


def again(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options that reproduce these settings on another command line, without secrets.

    Of the settings from environment variables, only the application and its cluster are repeated.
    """
    from headrace.streams.config.config import REQUIRED_NAMES

    context, origins = click.get_current_context(), origins_of(settings)
    file = context.meta.get(_FILE) or os.environ.get(CONFIG)
    arguments = [] if not file else ["--config", str(file)]
    for name, value in settings.items():
        origin = origins.get(name, "")
        is_wanted = origin in ("--set", "--bootstrap-servers") or (
            name in REQUIRED_NAMES and origin.startswith(PREFIX)
        )
        if is_wanted and name == "bootstrap.servers":
            arguments += ["--bootstrap-servers", str(value)]
        elif is_wanted:
            arguments += ["--set", f"{name}={value}"]
    return tuple(arguments)


def load(target: str, settings: Mapping[str, Any], *, needs_cluster: bool = True) -> KafkaStreams:
    """Import the application that a command names, with settings that override its own."""
    from headrace.streams.supervisor.app_loader import failed_call, load_app
    from headrace.streams.tasks.restore import RestoreListeners
    from headrace.streams.worker.protocols import WorkerListeners

    try:
        app = load_app(target, settings if needs_cluster else over(_NO_CLUSTER, settings))
    except (StreamsError, TopologyError, RegistryError):
        raise
    except Exception as error:
        raise failed_call(target, error) from error
    if not settings:
        return app
    return app.derived(
        settings, worker_listener=WorkerListeners(), restore_listener=RestoreListeners()
    )


WHERE = (
    "beginning, end, an OFFSET, a TIME such as 2026-01-31T09:00:00Z (by default in UTC; the first "
    "record of that time or later), or a SPAN before now such as 90s, 30m, 12h or 7d."
)
"""Formats that `where` parses, for an option's help."""
_SPAN = re.compile(r"([0-9]+)([smhd])")
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_KAFKAS = {"earliest": "beginning", "latest": "end"}


def where(_: click.Context, __: click.Parameter, text: str | None) -> OffsetTarget | None:
    """Parse a position in a topic: an end of it, an offset, a time, or a time span before now.

    >>> where(None, None, "end"), where(None, None, "1970-01-01T00:00:05")
    (OffsetTarget(kind='latest', number=0), OffsetTarget(kind='time', number=5000))
    """
    if text is None:
        return None
    if text in ("beginning", "end"):
        return OffsetTarget("earliest" if text == "beginning" else "latest")
    if text.isascii() and text.isdigit():
        return OffsetTarget("offset", int(text))
    span = _SPAN.fullmatch(text)
    if span is not None:
        before_ms = int(span[1]) * _UNITS_MS[span[2]]
        return OffsetTarget("time", max(0, time.time_ns() // 1_000_000 - before_ms))
    try:
        given = datetime.fromisoformat(text)
    except ValueError as error:
        meant = f"; write {_KAFKAS[text]}" if text in _KAFKAS else ""
        raise click.BadParameter(
            f"{text!r} is neither beginning nor end, nor an offset such as 1500, nor a time such "
            f"as 2026-01-31T09:00:00Z, nor a span before now such as 90s, 30m, 12h or 7d{meant}"
        ) from error
    instant = given if given.tzinfo else given.replace(tzinfo=UTC)
    return OffsetTarget("time", max(0, round(instant.timestamp() * 1000)))


def confirm(*, yes: bool) -> None:
    """Ask for confirmation, unless the option --yes was given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException("nothing was done. Run it again with --yes to do it.")
    click.confirm("Do this?", abort=True)


@dataclass(frozen=True, slots=True)
class Consent:
    """Options of a command that prints a plan before it carries it out."""

    dry_run: bool
    yes: bool

    def is_given(self, check: Callable[[], object] = lambda: None) -> bool:
        """Return whether to carry out the plan: if confirmed, and not after a dry run.

        Args:
            check: called before the question; raises if the plan must not be carried out.
        """
        if self.dry_run:
            click.echo("Nothing was done (--dry-run).")
            return False
        check()
        confirm(yes=self.yes)
        return True


def consent_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --dry-run and --yes; the command gets a `Consent`."""

    @click.option("--dry-run", is_flag=True, help="Print the plan and exit.")
    @click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
    @wraps(command)
    def given(*, dry_run: bool, yes: bool, **others: Any) -> Any:
        return command(consent=Consent(dry_run, yes), **others)

    return given


@contextmanager
def cli_errors(code_of: Callable[[BaseException], int] | None = None) -> Iterator[None]:
    """Print an error, and exit with its code by `code_of`, or as `headrace run` does."""
    try:
        yield
    except (StreamsError, TopologyError, RegistryError) as error:
        from headrace.streams.supervisor.exit_codes import exit_code_of

        click.echo(f"Error: {error}", err=True)
        sys.exit((code_of or exit_code_of)(error))
