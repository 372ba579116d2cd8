"""Status of the workers: a live table on a terminal, log events elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.streams.bounded_writer import BoundedWriter
from headrace.streams.kafka.protocols import Log
from headrace.streams.metrics.snapshots import WorkerSnapshot, WorkerView
from headrace.streams.supervisor.worker_reports import Status

# Status of a worker, as known to its supervisor.


RATE_OVER_S = 5.0


@dataclass(slots=True)
class WorkerStatus:
    """Last known status of a worker, with rates over the last seconds."""

    index: int
    state: str = "waiting"
    pid: int | None = None
    restarts: int = 0
    last: Status | None = None
    snapshot: WorkerSnapshot | None = None
    """Last reported metrics, kept after the process has ended."""
    reported_s: float = 0.0
    """Arrival time of `last`, in seconds of the supervisor's clock."""
    _window: list[Status] = field(default_factory=list)

    def started(self, pid: int) -> None:
        self.state, self.pid = "starting", pid
        self.last = self.snapshot = None
        self._window.clear()

    def reported(self, status: Status, now_s: float) -> None:
        if self.state != "stopping":
            self.state = status.state
        self.last, self.reported_s = status, now_s
        self._window.append(status)
        while len(self._window) > 2 and status.at_s - self._window[1].at_s >= RATE_OVER_S:
            self._window.pop(0)

    def view(self) -> WorkerView:
        return WorkerView(
            index=self.index,
            state=self.state,
            pid=self.pid,
            restarts=self.restarts,
            snapshot=self.snapshot,
        )

    def ended(self, outcome: str) -> None:
        self.state, self.pid = outcome, None
        self.last = None
        self._window.clear()

    def records_per_s(self, now_s: float) -> float:
        """Return processed records per second; 0 if the last report is too old."""
        return self._rate([status.processed for status in self._window], now_s)

    def commits_per_s(self, now_s: float) -> float:
        return self._rate([status.commits for status in self._window], now_s)

    @property
    def restored_percent(self) -> int | None:
        if self.last is None or not self.last.to_restore:
            return None
        return 100 * self.last.restored // self.last.to_restore

    def commit_age_s(self, now_s: float) -> float | None:
        if self.last is None or self.last.commit_age_s is None:
            return None
        return self.last.commit_age_s + max(0.0, now_s - self.reported_s)

    def _rate(self, counts: list[int], now_s: float) -> float:
        if len(counts) < 2 or now_s - self.reported_s > RATE_OVER_S:
            return 0.0
        seconds = self._window[-1].at_s - self._window[0].at_s
        return (counts[-1] - counts[0]) / seconds if seconds > 0 else 0.0


REDRAW_S = 0.5


class LoggedStatus:
    """Status display that regularly logs `status_reported` for each worker.

    Args:
        every_s: seconds between two reports; 0 disables them.
    """

    def __init__(self, log: Log, every_s: float) -> None:
        self._log = log
        self._every_s = every_s
        self._next_s: float | None = None

    def show(self, workers: Sequence[WorkerStatus], now_s: float) -> None:
        if self._next_s is None:
            self._next_s = now_s + self._every_s
        if not self._every_s or now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        for worker in workers:
            self._log.info("status_reported", worker_index=worker.index, **fields(worker, now_s))


def fields(worker: WorkerStatus, now_s: float) -> dict[str, object]:
    shown: dict[str, object] = {"state": worker.view().state_at(now_s), "pid": worker.pid}
    if worker.last is not None:
        shown |= {
            "tasks": worker.last.tasks,
            "records": worker.last.processed,
            "records_per_s": round(worker.records_per_s(now_s)),
            "commits_per_s": round(worker.commits_per_s(now_s), 1),
        }
        age_s = worker.commit_age_s(now_s)
        shown["commit_age_s"] = None if age_s is None else round(age_s, 1)
        if worker.last.to_restore:
            shown |= {"restored": worker.last.restored, "to_restore": worker.last.to_restore}
    if worker.restarts:
        shown["restarts"] = worker.restarts
    return {name: value for name, value in shown.items() if value is not None}


class StatusLine:
    """Live table at the bottom of a terminal; text is printed above it.

    A lost terminal is not an error: the workers must still close cleanly.

    Args:
        width: width of the table, for tests.
    """

    def __init__(self, terminal: TextIO | BoundedWriter, *, width: int | None = None) -> None:
        self._terminal = terminal
        self._console = Console(
            file=cast(TextIO, terminal), width=width, force_terminal=True, highlight=False
        )
        self._live = Live(console=self._console, auto_refresh=False, transient=True,
                          redirect_stdout=False, redirect_stderr=False)  # fmt: skip
        self._next_s: float | None = None

    def show(self, workers: Sequence[WorkerStatus], now_s: float) -> None:
        if self._next_s is not None and now_s < self._next_s:
            return
        with suppress(OSError):
            if self._next_s is None:
                self._live.start()
            self._live.update(table(workers, now_s), refresh=True)
        self._next_s = now_s + REDRAW_S

    def print(self, line: str) -> None:
        """Print a line above the table, with its colors."""
        with suppress(OSError):
            self._console.print(Text.from_ansi(line), soft_wrap=True)

    def write(self, text: str, /) -> int:
        for line in text.splitlines():
            self.print(line)
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True

    def close(self) -> None:
        with suppress(OSError):
            self._live.stop()
        if isinstance(self._terminal, BoundedWriter):
            self._terminal.close()


def table(workers: Sequence[WorkerStatus], now_s: float) -> Table:
    table_view = Table(box=None, pad_edge=False)
    for heading in ("worker", "pid", "state"):
        table_view.add_column(heading, no_wrap=True)
    for heading in ("tasks", "restored", "records/s", "commits/s", "last commit", "restarts"):
        table_view.add_column(heading, justify="right", no_wrap=True)
    for worker in workers:
        table_view.add_row(*cells(worker, now_s))
    return table_view


def cells(worker: WorkerStatus, now_s: float) -> list[str]:
    age_s, percent = worker.commit_age_s(now_s), worker.restored_percent
    return [
        str(worker.index),
        _known(worker.pid),
        worker.view().state_at(now_s),
        _known(worker.last and worker.last.tasks),
        "" if percent is None else f"{percent} %",
        f"{worker.records_per_s(now_s):,.0f}" if worker.last else "",
        f"{worker.commits_per_s(now_s):,.1f}" if worker.last else "",
        "" if age_s is None else f"{age_s:.1f} s ago",
        str(worker.restarts) if worker.restarts else "",
    ]


def _known(fact: object | None) -> str:
    return "" if fact is None else str(fact)
