"""The command `headrace top`: how an application goes on, in a table that is refreshed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.streams.cli.looks.missing import require_topics, said_missing
from headrace.streams.cli.looks.served import Served, shown_served
from headrace.streams.cli.options import load, said_errors, settings_option
from headrace.streams.cli.tables import columns
from headrace.streams.kafka.broker_contact import reach
from headrace.streams.kafka.group_admin import GroupLook
from headrace.streams.seams.clients import TopicPartition
from headrace.streams.views.look import look
from headrace.streams.views.overview import Overview, TaskView

_Seen = TypeVar("_Seen")
_Given = TypeVar("_Given", contravariant=True)


@dataclass(frozen=True, slots=True)
class Look:
    """What the cluster said, and when."""

    found: Overview
    at_s: float

    @property
    def reached(self) -> dict[TopicPartition, int]:
        """How far each input partition was committed."""
        inputs = self.found.inputs
        return {one.place: one.committed for one in inputs if one.committed is not None}

    def rates(self, before: Look | None) -> Mapping[TopicPartition, float]:
        """Offsets that were committed a second since an earlier look; of what was there then."""
        if before is None or self.at_s <= before.at_s:
            return {}
        span_s, then = self.at_s - before.at_s, before.reached
        return {
            place: max(0, offset - then[place]) / span_s
            for place, offset in self.reached.items()
            if place in then
        }


@click.command()
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option(
    "--url",
    metavar="URL",
    help="Ask the application that serves there (`headrace run --http`), and not the cluster.",
)
@click.option(
    "--http-token-file",
    "token_file",
    type=click.Path(path_type=Path),
    help="With --url: holds the token that it wants.",
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="End after so many looks.")
@settings_option
def top(
    target: str | None,
    url: str | None,
    token_file: Path | None,
    every_s: float,
    times: int | None,
    settings: dict[str, Any],
) -> None:
    """Show the tasks of an application, who has them, their lag and rate, until Ctrl-C.

    It asks the cluster alone. A rate is what was committed between two looks, in offsets a second;
    markers of transactions are offsets too. With --times the exit code is 4 where a topic that it
    reads does not exist.

    MODULE:APP is what `headrace run` takes. With --url it is left out: what the workers of one host
    tell is shown, with the state of each task, and rates are of records.
    """
    if (target is None) == (url is None):
        raise click.UsageError("say MODULE:APP, or where it serves: --url URL")
    if token_file is not None and url is None:
        raise click.UsageError("--http-token-file goes with --url")
    with said_errors():
        if url is not None:
            served = Served(url, token_file)
            _go_on(served.look, shown_served, every_s, times)
            return
        assert target is not None
        app = load(target, settings)
        config = app.config
        reach(config.admin_config())
        cluster = GroupLook(config.admin_config(), timeout_s=config.task_timeout_ms / 1000)

        def seen() -> Look:
            return Look(look(config.application_id, app.plans, cluster), time.monotonic())

        last = _go_on(seen, shown, every_s, times)
        if times is not None and last is not None:
            require_topics(last.found.lost)


class _Shown(Protocol[_Given]):
    def __call__(self, seen: _Given, before: _Given | None, /, *, rows_max: int) -> Group: ...


def _go_on(
    see: Callable[[], _Seen], shown: _Shown[_Seen], every_s: float, times: int | None
) -> _Seen | None:
    """Look and show until Ctrl-C, or so many times; returns the last look."""
    console = Console(highlight=False)
    before: _Seen | None = None
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        while times is None or times > 0:
            seen = see()
            live.update(shown(seen, before, rows_max=max(5, console.height - 6)), refresh=True)
            before = seen
            if times is not None:
                times -= 1
            if times != 0:
                time.sleep(every_s)
    if not console.is_terminal:
        console.line()  # the table ends without one there
    return before


def shown(seen: Look, before: Look | None, *, rows_max: int) -> Group:
    """The table; tasks that are far behind come first, and as many as find room."""
    found, rates = seen.found, seen.rates(before)
    count = len(found.group.members)
    head = (
        f"{found.application_id}: {found.group.state}, {count} worker{'' if count == 1 else 's'}, "
        f"lag {found.lag:,}, {sum(rates.values()):,.0f}/s"
    )
    tasks = sorted(found.tasks, key=lambda task: (-task.lag, task.id))
    missing = [Text(line) for line in said_missing(found)]
    left = len(tasks) - rows_max
    more = [Text(f"and {left} tasks that are less far behind")] if left > 0 else []
    return Group(Text(head), *missing, _table(tasks[:rows_max], rates), *more)


def _table(tasks: list[TaskView], rates: Mapping[TopicPartition, float]) -> Table:
    table = columns("task", "worker", "host", "lag", "rate/s", numbers=("lag", "rate/s"))
    for task in tasks:
        known = [rates[one.place] for one in task.inputs if one.place in rates]
        member = task.member
        table.add_row(
            str(task.id),
            "-" if member is None else member.id,
            "-" if member is None else member.host.removeprefix("/"),
            f"{task.lag:,}",
            f"{sum(known):,.0f}" if known else "-",
        )
    return table
