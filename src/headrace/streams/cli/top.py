"""The command `headrace top`: the progress of an application, in a table that is refreshed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.streams.admin.overview import Overview, TaskView
from headrace.streams.cli.lag import (
    head_line,
    inspector,
    missing_lines,
    require_topics,
    task_cells,
)
from headrace.streams.cli.options import cli_errors, columns, settings_option
from headrace.streams.client.http import HttpHost, sent_token
from headrace.streams.errors import ConfigError, StreamsError
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.metrics.snapshots import SkewSnapshot, moment
from headrace.streams.queries.errors import UnreachedHostError

# `headrace top --url`: the status of a running application, read over HTTP.


WITHIN_S = 10.0
_HOW = "name the file that holds it: --http-token-file FILE"


class ServedError(StreamsError):
    """Unusable response of the application's HTTP server; the message contains the reason."""


@dataclass(frozen=True, slots=True)
class ServedTask:
    """Task, as reported by its worker.

    Args:
        lag: lag of its inputs in offsets; None if it does not run yet, or an end is unknown.
        behind_s: lag of the input that is furthest behind, in seconds.
        committed: committed records, since the worker started.
        report_age_seconds: age of the report in seconds.
        stream_time_ms: its stream time in milliseconds since 1970, or -1.
        skew: the slowest and the fastest partition on which its stream time depends.
    """

    id: str
    worker: int
    state: str
    lag: int | None
    behind_s: float
    committed: int
    report_age_seconds: float
    stream_time_ms: int = -1
    skew: SkewSnapshot | None = None


@dataclass(frozen=True, slots=True)
class ServedSnapshot:
    """Snapshot of an application, read over HTTP."""

    application: str
    workers: tuple[str, ...]
    """State of each worker."""
    tasks: tuple[ServedTask, ...]
    at_s: float

    def rates(self, before: ServedSnapshot | None) -> dict[str, float]:
        """Return records per second by task, without moved tasks and restarted workers."""
        if before is None:
            return {}
        then = {task.id: (before.at_s - task.report_age_seconds, task) for task in before.tasks}
        rates = {}
        for task in self.tasks:
            was_s, was = then.get(task.id, (0.0, None))
            span_s = self.at_s - task.report_age_seconds - was_s
            if was is None or was.worker != task.worker or task.committed < was.committed:
                continue
            if span_s > 0:
                rates[task.id] = (task.committed - was.committed) / span_s
        return rates


class Served:
    """Client of a running application's HTTP server.

    Args:
        url: its URL, as logged: http://127.0.0.1:9464.
        token_file: file with the token that the server requires.

    Raises:
        ServedError: the URL is invalid, or the token cannot be read.
    """

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        try:
            self._host = HttpHost(url if "://" in url else f"http://{url}")
        except ConfigError as error:
            raise ServedError(
                f"{url!r} is not a URL. Write a URL such as http://localhost:9464."
            ) from error
        self._headers: dict[str, str] = {}
        if token_file is not None:
            try:
                token = sent_token(token_file.read_text())
            except (OSError, UnicodeDecodeError) as error:
                raise ServedError(f"the token in {token_file} cannot be read: {error}") from error
            except ConfigError as error:
                raise ServedError(f"{token_file}: {error}") from error
            self._headers["Authorization"] = f"Bearer {token.reveal()}"

    def snapshot(self) -> ServedSnapshot:
        application, tasks = self._get("/api/application"), self._get("/api/tasks")
        try:
            return ServedSnapshot(
                application["application"],
                tuple(worker["state"] for worker in application["workers"]),
                tuple(_task(one) for one in tasks),
                time.monotonic(),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ServedError(
                f"{self._host.url} runs another version of headrace. Use the same version."
            ) from error

    def _get(self, path: str) -> Any:
        url = self._host.url
        try:
            reply = self._host.ask(path, headers=self._headers, timeout_s=WITHIN_S)
        except UnreachedHostError as error:
            raise ServedError(
                f"{url} does not answer as `headrace run --http` does: {error}"
            ) from error
        if reply.code == HTTPStatus.OK:
            return reply.document
        refused = reply.document if isinstance(reply.document, dict) else {}
        reason = refused.get("error") or "; ".join(refused.get("reasons", []))
        advice = f"; {_HOW}" if reply.code == HTTPStatus.UNAUTHORIZED else ""
        raise ServedError(f"{url}{path}: {reason} ({reply.code}){advice}")


def shown_served(seen: ServedSnapshot, before: ServedSnapshot | None, *, rows_max: int) -> Group:
    """Render a snapshot as a table of at most `rows_max` tasks: unknown and large lags first."""
    rates = seen.rates(before)
    count = len(seen.workers)
    states = ", ".join(sorted(set(seen.workers)))
    head = (
        f"{seen.application}: {count} worker{'' if count == 1 else 's'} ({states}), "
        f"lag {_total_lag(seen.tasks)}{_rate(rates)}"
    )
    numbers = ("lag", "behind s", "rate/s", "report age s")
    table = columns("task", "worker", "state", *numbers, "stream time", numbers=numbers)
    for task in sorted(seen.tasks, key=_lag_order)[:rows_max]:
        rate = rates.get(task.id)
        table.add_row(
            task.id,
            str(task.worker),
            task.state,
            "-" if task.lag is None else f"{task.lag:,}",
            "-" if task.lag is None else f"{task.behind_s:,.0f}",
            "-" if rate is None else f"{rate:,.0f}",
            f"{task.report_age_seconds:.0f}",
            format_time(task.stream_time_ms),
        )
    skews: dict[int, SkewSnapshot] = {}
    for task in seen.tasks:
        sub = int(task.id.partition("_")[0])
        least = skews[sub].extent if sub in skews else (False, 0)
        if task.skew is not None and task.skew.extent > least:
            skews[sub] = task.skew
    return Group(Text(head), *_skew_lines(skews), table, *_omitted(len(seen.tasks) - rows_max))


def _lag_order(task: ServedTask) -> tuple[bool, int, str]:
    return task.lag is not None, -(task.lag or 0), task.id


def _total_lag(tasks: Iterable[ServedTask]) -> str:
    lags = [task.lag for task in tasks]
    count = lags.count(None)
    unknown = f" (unknown for {count} task{'' if count == 1 else 's'})" if count else ""
    return f"{sum(lag or 0 for lag in lags):,}{unknown}"


def _rate(rates: Mapping[Any, float]) -> str:
    return f", {sum(rates.values()):,.0f}/s" if rates else ""


def _skew_lines(skews: Mapping[int, SkewSnapshot]) -> list[Text]:
    return [Text(f"sub-topology {sub}: {one.describe()}") for sub, one in sorted(skews.items())]


def _omitted(count: int) -> list[Text]:
    tasks = "1 task that is" if count == 1 else f"{count} tasks that are"
    return [Text(f"and {tasks} less far behind")] if count > 0 else []


def _task(report: dict[str, Any]) -> ServedTask:
    task = report["task"]
    inputs = task["inputs"]
    is_known = inputs and all(one["end"] is not None for one in inputs)
    return ServedTask(
        id=task["id"],
        worker=report["worker"],
        state=task["state"],
        lag=sum(max(0, one["end"] - one["committed"]) for one in inputs) if is_known else None,
        behind_s=max((one["behind_ms"] / 1000 for one in inputs), default=0.0),
        committed=task["committed"],
        report_age_seconds=report["report_age_seconds"],
        stream_time_ms=task["stream_time_ms"],
        skew=None if task["skew"] is None else SkewSnapshot(**task["skew"]),
    )


_Seen = TypeVar("_Seen")
_Given = TypeVar("_Given", contravariant=True)


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Snapshot of an application, read from the cluster."""

    overview: Overview
    at_s: float

    @property
    def reached(self) -> dict[TopicPartition, int]:
        inputs = self.overview.inputs
        return {one.tp: one.committed for one in inputs if one.committed is not None}

    def rates(self, before: ClusterSnapshot | None) -> Mapping[TopicPartition, float]:
        if before is None or self.at_s <= before.at_s:
            return {}
        span_s, then = self.at_s - before.at_s, before.reached
        return {
            tp: max(0, offset - then[tp]) / span_s
            for tp, offset in self.reached.items()
            if tp in then
        }


@click.command()
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option("--url", metavar="URL",
              help="URL of `headrace run --http`, queried in place of the cluster.")  # fmt: skip
@click.option("--http-token-file", "token_file", type=click.Path(path_type=Path),
              help="File with the token for --url.")  # fmt: skip
@click.option("--every", "every_s", type=click.FloatRange(min=0.2), default=2.0, show_default=True,
              metavar="SECONDS", help="Seconds between two refreshes.")  # fmt: skip
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="Stop after N refreshes.")
@settings_option
def top(
    target: str | None,
    url: str | None,
    token_file: Path | None,
    every_s: float,
    times: int | None,
    settings: dict[str, Any],
) -> None:
    """Show tasks with worker, lag, rate and event time.

    Lines above the table name the slowest and the fastest partition in event time of each
    sub-topology.

    Without --url, only the cluster is queried. A rate is the number of offsets committed per
    second, including transaction markers. With --times, the exit code is 4 if an input topic does
    not exist.

    MODULE:APP is what `headrace run` takes. With --url, the reports of the workers of a host are
    shown, with the state of each task, and rates count records. The lag of a task that does not run
    yet is unknown there.
    """
    if (target is None) == (url is None):
        raise click.UsageError("MODULE:APP or --url is required, and not both.")
    if token_file is not None and url is None:
        raise click.UsageError("--http-token-file requires --url.")
    with cli_errors():
        if url is not None:
            served = Served(url, token_file)
            _repeat(served.snapshot, shown_served, every_s, times)
            return
        assert target is not None
        inspect = inspector(target, settings)
        last = _repeat(lambda: ClusterSnapshot(inspect(), time.monotonic()), shown, every_s, times)
        if times is not None and last is not None:
            require_topics(last.overview.lost)


class _Formatter(Protocol[_Given]):
    def __call__(self, seen: _Given, before: _Given | None, /, *, rows_max: int) -> Group: ...


def _repeat(
    see: Callable[[], _Seen], shown: _Formatter[_Seen], every_s: float, times: int | None
) -> _Seen | None:
    """Take and show snapshots until Ctrl-C, or a number of times; return the last snapshot."""
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
        console.line()  # there, rich ends the table without a line feed
    return before


def shown(seen: ClusterSnapshot, before: ClusterSnapshot | None, *, rows_max: int) -> Group:
    overview, rates = seen.overview, seen.rates(before)
    head = f"{head_line(overview)}, lag {overview.lag:,}{_rate(rates)}"
    tasks = sorted(overview.tasks, key=lambda task: (-task.lag, task.id))
    missing = [Text(line) for line in missing_lines(overview)]
    table = _table(tasks[:rows_max], rates)
    more = _omitted(len(tasks) - rows_max)
    return Group(Text(head), *missing, *_skew_lines(overview.skews()), table, *more)


def _table(tasks: list[TaskView], rates: Mapping[TopicPartition, float]) -> Table:
    numbers = ("lag", "rate/s")
    table = columns("task", "worker", "host", *numbers, "event time", numbers=numbers)
    for task in tasks:
        known = [rates[one.tp] for one in task.inputs if one.tp in rates]
        rate = f"{sum(known):,.0f}" if known else "-"
        table.add_row(*task_cells(task), rate, format_time(task.event_time_ms))
    return table


def format_time(time_ms: int) -> str:
    """Format a time in milliseconds since 1970 for a table, to the second; "-" for -1."""
    return "-" if time_ms < 0 else moment(time_ms).partition(".")[0].replace("T", " ")
