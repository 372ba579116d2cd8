"""What `headrace backfill` shows: a bar for what Spark runs now, and a summary at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from headrace.spark_bridge.reports import Report, StageReport

_LOOK_EVERY_S = 0.25


@contextmanager
def shown_progress(spark: Any, console: Console) -> Iterator[Any]:
    """Show Spark's tasks while the block runs; gives a callback for the stages that end.

    Where the console is no terminal, only the lines of the callback are written.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    ended = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(spark.sparkContext.statusTracker(), bar, ended), daemon=True
    )

    def on_stage(stage: StageReport) -> None:
        subs = ", ".join(map(str, stage.sub_topologies))
        console.print(
            f"sub-topology {subs}: {stage.records:,} records in {stage.tasks} tasks, "
            f"{stage.seconds:.1f} s",
            highlight=False,
        )

    with bar:
        watcher.start()
        try:
            yield on_stage
        finally:
            ended.set()
            watcher.join()


def _watch(tracker: Any, bar: Progress, ended: threading.Event) -> None:
    shown = bar.add_task("starting", total=None)
    while not ended.wait(_LOOK_EVERY_S):
        job = max(tracker.getActiveJobsIds(), default=None)
        found = None if job is None else tracker.getJobInfo(job)
        if found is None:
            bar.update(shown, description="waiting for Spark", total=None)
            continue
        stages = [tracker.getStageInfo(number) for number in found.stageIds]
        known = [stage for stage in stages if stage is not None]
        bar.update(
            shown,
            description=f"Spark job {job}",
            total=sum(stage.numTasks for stage in known),
            completed=sum(stage.numCompletedTasks for stage in known),
        )


def summary(report: Report) -> list[Table]:
    """The tables at the end: what each stage took, and what was handed over."""
    stages = Table(title=f"backfill {report.id}", title_justify="left")
    for title in ("sub-topology", "tasks", "records", "left out", "on disk", "seconds"):
        stages.add_column(title, justify="left" if title == "sub-topology" else "right")
    for one in report.stages:
        stages.add_row(
            ", ".join(map(str, one.sub_topologies)),
            f"{one.tasks:,}",
            f"{one.records:,}",
            f"{sum(one.dropped.values()):,}",
            f"{one.spilled:,}",
            f"{one.seconds:.1f}",
        )
    handed = Table(title="handed over", title_justify="left")
    handed.add_column("topic")
    handed.add_column("what")
    handed.add_column("records", justify="right")
    names = {"changelog": "state", "sink": "outputs"}
    for (kind, topic), count in sorted(report.rows.items()):
        if kind in names:
            handed.add_row(topic, names[kind], f"{count:,}")
    # Of what an earlier attempt computed there is no more to say than that it is there.
    return [table for table in (stages, handed) if table.row_count]
