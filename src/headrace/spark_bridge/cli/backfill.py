"""The command `headrace backfill`: history on Spark, then cut-over to the live application.

Functions are pickled by name, so executors import the project's modules from a zip (`pack`), never
``__main__`` of the script.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from headrace.spark_bridge.backfill import new_id
from headrace.spark_bridge.cleanup import cleanup_after
from headrace.spark_bridge.errors import BackfillError, CannotBackfillError, SparkMissingError
from headrace.spark_bridge.reports import ArchiveReport, Report
from headrace.streams.cli.options import cli_errors, load, settings_option, target_argument
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.supervisor import exit_codes
from headrace.streams.supervisor.exit_codes import ExitCause, ExitCode, exit_code_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark_bridge.history.planning import Until
    from headrace.spark_bridge.reports import StageReport
    from headrace.streams.app import KafkaStreams


# The exit codes of `headrace backfill`, in one table; the page docs/backfill.md shows it, made by
# `python -m tests.support.generated_pages backfill-exit-codes`.


TABLE: tuple[ExitCause, ...] = (
    ExitCause(CannotBackfillError,
           "the backfill is rejected: its input, application or topics are not ready",
           ExitCode.BACKFILL, "after following the message"),
    ExitCause(BackfillError, "the backfill failed", ExitCode.CRASHED,
           "with the same id, after correcting the cause"),
    ExitCause(SparkMissingError, "pyspark or Java is missing, or Spark is older than 4.1",
           ExitCode.CONFIGURATION, "after installing it"),
    ExitCause(None, "the backfill is handed over, planned (`--dry-run`) or dropped",
           ExitCode.STOPPED, "no"),
)  # fmt: skip


def code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an error.

    >>> from headrace.spark_bridge.errors import HistoryGapError
    >>> code_of(HistoryGapError("records are lost")).name
    'BACKFILL'
    >>> from headrace.streams.errors import ConfigError
    >>> code_of(ConfigError("poll.ms must be at least 0, not -1")).name
    'CONFIGURATION'
    """
    return exit_code_of(error, (*TABLE, *exit_codes.TABLE))


# Output of `headrace backfill`: a progress bar for the running Spark job, and a final summary.


_POLL_S = 0.25


@contextmanager
def shown_progress(spark: Any, console: Console) -> Iterator[Any]:
    """Show Spark's progress on a terminal, and yield a callback for finished stages."""
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
    while not ended.wait(_POLL_S):
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
    stages = Table(title=f"backfill {report.id}", title_justify="left")
    for title in ("sub-topology", "tasks", "records", "dropped", "on disk", "seconds"):
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
    # Results of an earlier attempt have no counts, so their tables are empty.
    return [table for table in (stages, handed) if table.row_count]


# Values of the options of `headrace backfill`: files, offsets and times.


FORMATS = ("parquet", "csv", "delta", "orc", "json")


class FileSource(NamedTuple):
    """Files with a topic's history: ``topic=path`` or ``topic=format:path``."""

    topic: str
    kind: str
    path: str


def kind_of(path: str) -> str:
    if Path(path, "_delta_log").is_dir():
        return "delta"
    name = path.rstrip("/").removesuffix(".gz")
    if name.endswith(".csv") or any(Path(path).glob("*.csv*")):
        return "csv"
    if name.endswith((".json", ".jsonl", ".ndjson")):
        return "json"
    return "orc" if name.endswith(".orc") else "parquet"


def parse_sources(
    _: click.Context, __: click.Parameter, given: tuple[str, ...]
) -> tuple[FileSource, ...]:
    """Parse ``--source``.

    >>> (one,) = parse_sources(None, None, ("orders=csv:s3a://b/orders",))
    >>> one.topic, one.kind, one.path
    ('orders', 'csv', 's3a://b/orders')
    >>> (one,) = parse_sources(None, None, ("orders=s3a://b/orders",))
    >>> one.kind, one.path
    ('parquet', 's3a://b/orders')
    """
    found = []
    for text in given:
        topic, equals, path = text.partition("=")
        if not (topic and equals and path):
            raise click.BadParameter(f"{text!r} is not TOPIC=PATH, such as orders=orders.parquet")
        kind, colon, rest = path.partition(":")
        if not (colon and kind in FORMATS):
            kind, rest = kind_of(path), path
        found.append(FileSource(topic, kind, rest))
    topics = [one.topic for one in found]
    twice = sorted({topic for topic in topics if topics.count(topic) > 1})
    if twice:
        raise click.BadParameter(f"{', '.join(twice)} is given twice. Give a directory")
    return tuple(found)


def open_source(spark: SparkSession, source: FileSource) -> DataFrame:
    from headrace.spark_bridge.history.text_files import read_csv, read_json

    if source.kind == "csv":
        return read_csv(spark, source.path)
    if source.kind == "json":
        return read_json(spark, source.path)
    return spark.read.format(source.kind).load(source.path)


def parse_offset(text: str) -> tuple[TopicPartition, int]:
    """Parse ``topic-partition=offset``.

    >>> parse_offset("my-orders-3=17")
    (TopicPartition(topic='my-orders', partition=3), 17)
    """
    tp, _, offset = text.strip().rpartition("=")
    topic, _, partition = tp.rpartition("-")
    if not (topic and partition.isdecimal() and offset.isdecimal()):
        raise click.BadParameter(f"{text!r} is not TOPIC-PARTITION=OFFSET, such as orders-0=1200")
    return TopicPartition(topic, int(partition)), int(offset)


def parse_until(_: click.Context, __: click.Parameter, text: str | None) -> Until | None:
    """Parse ``--until``: latest, a time, or offsets.

    >>> parse_until(None, None, "2026-01-31T09:00:00Z")
    datetime.datetime(2026, 1, 31, 9, 0, tzinfo=datetime.timezone.utc)
    >>> parse_until(None, None, "orders-0=5,orders-1=7")[TopicPartition("orders", 1)]
    7
    """
    if text is None:
        return None
    if text == "latest":
        return "latest"
    if "=" in text:
        return dict(map(parse_offset, text.split(",")))
    try:
        given = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} must be 'latest', a time (2026-01-31T09:00:00Z) or offsets "
            "(orders-0=5,orders-1=7)"
        ) from error
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def parse_cutover(context: click.Context, option: click.Parameter, text: str | None) -> Any:
    """Parse ``--cutover``: a time, or offsets.

    >>> parse_cutover(None, None, "orders-0=5")
    {TopicPartition(topic='orders', partition=0): 5}
    """
    if text == "latest":
        raise click.BadParameter(
            "must be a time (2026-01-31T09:00:00Z) or offsets (orders-0=5,orders-1=7), not 'latest'"
        )
    return parse_until(context, option, text)


def _conf(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        found[name.strip()] = value
    return found


@click.command()
@target_argument
@click.option(
    "--until",
    default="latest",
    show_default=True,
    callback=parse_until,
    metavar="END",
    help="End of the history: latest, a time (2026-01-31T09:00:00Z; UTC without a zone), or "
    "offsets (orders-0=5,orders-1=7). The application continues from there.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    callback=parse_sources,
    metavar="TOPIC=PATH",
    help="Files with a topic's earlier history: Parquet, CSV, JSON, ORC or Delta, by their names "
    "or as given (TOPIC=csv:PATH); repeatable.",
)
@click.option(
    "--cutover",
    callback=parse_cutover,
    metavar="START",
    help="Start of reading from Kafka after files without offsets: a time or offsets.",
)
@click.option(
    "--outputs",
    type=click.Choice(["write", "skip"]),
    default="write",
    show_default=True,
    help="Whether records for output topics are written.",
)
@click.option(
    "--handover",
    type=click.Choice(["auto", "driver", "partitioned"]),
    default="auto",
    show_default=True,
    help="A single transaction, or a transaction for each task.",
)
@click.option(
    "--order",
    type=click.Choice(["auto", "exact", "combine"]),
    default="auto",
    show_default=True,
    help="Record by record, or aggregated before the shuffle.",
)
@click.option(
    "--times",
    type=click.Choice(["check", "trust"]),
    default="check",
    show_default=True,
    help="Whether files with implausible timestamps are rejected.",
)
@click.option("--reset", is_flag=True, help="Replace the state that the application has.")
@click.option(
    "--id",
    "id_",
    metavar="ID",
    help="Id of the backfill; the id of an interrupted backfill continues it.",
)
@click.option("--dry-run", is_flag=True, help="Only print the plan.")
@click.option("--drop", is_flag=True, help="Drop the unfinished backfill of --id.")
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    metavar="URL",
    help="Spark's master; a cluster receives the project as a package.",
)
@click.option(
    "--conf",
    multiple=True,
    callback=_conf,
    metavar="NAME=VALUE",
    help="Setting of Spark; repeatable.",
)
@settings_option
def backfill(
    target: str,
    sources: tuple[FileSource, ...],
    id_: str | None,
    dry_run: bool,
    drop: bool,
    master: str,
    conf: dict[str, str],
    settings: dict[str, Any],
    **options: Any,
) -> None:
    """Run an application over history on Spark, and hand the result over to it.

    The application must not run meanwhile. Its next start continues after the last record that was
    read.
    """
    options["id"] = id_ or new_id()
    with cli_errors(code_of):
        from headrace.spark_bridge.session import require_spark

        require_spark()
        app = load(target, settings)
        console = Console()
        if drop:
            _drop(app, id_, console)
        elif dry_run and not sources:
            _print_plan(_run(app, None, None, options, dry_run=True), console)
        elif (ended := _checked(app, sources, master, options, dry_run=dry_run)) is not None:
            _print_ended(ended, app, console)
        else:
            if not dry_run:
                console.print(f"backfill {options['id']}", highlight=False)
            with _spark(master, conf, app, console) as spark:
                frames = _opened(spark, sources)
                if dry_run:
                    _print_plan(_run(app, spark, frames, options, dry_run=True), console)
                else:
                    _show(app, spark, frames, options, console)


def _run(
    app: KafkaStreams,
    spark: Any,
    frames: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    **more: Any,
) -> Report:
    from headrace.spark_bridge.backfill import backfill as run

    return run(app.topology, app.config, spark=spark, source=frames, **options, **more)


def _show(
    app: KafkaStreams,
    spark: Any,
    frames: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    console: Console,
) -> None:
    with shown_progress(spark, console) as on_stage:
        report = _run(app, spark, frames, options, on_stage=on_stage)
    if report.handover is None:  # a concurrent attempt handed over first
        _print_ended(report, app, console)
        return
    for table in summary(report):
        console.print(table)
    console.print(
        f"{report.records:,} records, {report.keys:,} keys, {report.outputs:,} outputs in "
        f"{report.seconds:.1f} s. {app.config.application_id} can be started.",
        highlight=False,
    )


def _checked(
    app: KafkaStreams,
    sources: tuple[FileSource, ...],
    master: str,
    options: Mapping[str, Any],
    *,
    dry_run: bool,
) -> Report | None:
    """Check everything that needs no Spark; return a report if an earlier attempt is finished."""
    from headrace.spark_bridge.backfill import check_or_resume

    for source in sources if master.startswith("local") else ():
        _check_path(source)
    archived = [source.topic for source in sources]
    names = ("id", "until", "cutover", "outputs", "reset")
    chosen = {name: options[name] for name in names}
    return check_or_resume(app.topology, app.config, archived=archived, dry_run=dry_run, **chosen)


def _check_path(source: FileSource) -> None:
    """Raise if local files do not exist or are empty; Spark reads other paths, and patterns."""
    if "://" in source.path or any(sign in source.path for sign in "*?[{"):
        return
    path = Path(source.path.removeprefix("file:"))
    problem = None
    if not path.exists():
        problem = "does not exist"
    elif path.is_file() and not path.stat().st_size:
        problem = "is empty"
    elif path.is_dir() and not any(file.is_file() for file in path.rglob("*")):
        problem = "has no files"
    if problem is not None:
        raise CannotBackfillError(
            f"{source.path} {problem} (--source {source.topic}). Correct the path"
        )


def _print_ended(report: Report, app: KafkaStreams, console: Console) -> None:
    done = "was written before: its offsets are committed now."
    if report.handover is None:
        done = "was handed over before: nothing was done."
    console.print(
        f"Backfill {report.id} {done} {app.config.application_id} can be started.", highlight=False
    )


def _print_plan(report: Report, console: Console) -> None:
    plan = report.plan
    for archive in report.archives:
        console.print(described_archive(archive), highlight=False)
    for tp in plan.inputs:
        begin, end = plan.starts[tp], plan.ends[tp]
        console.print(f"{tp}: from offset {begin:,} up to {end:,}", highlight=False)
    stages = ", ".join("+".join(map(str, stage)) for stage in plan.stages)
    console.print(
        f"{plan.records:,} offsets; stages of sub-topologies: {stages}. "
        "Nothing was done (--dry-run).",
        highlight=False,
    )
    for stage in plan.stages:
        if len(stage) > 1:
            console.print(
                f"sub-topologies {'+'.join(map(str, stage))} run in one Spark task, because they "
                "write to each other.",
                highlight=False,
            )


def described_archive(archive: ArchiveReport) -> str:
    """Describe an archive, so that missing files can be seen.

    >>> from datetime import date
    >>> gap = (date(2026, 10, 1), date(2026, 10, 31))
    >>> archive = ArchiveReport("orders", 1200, 1_788_220_800_000, 1_795_996_800_000, 4, gap)
    >>> print(described_archive(archive))
    archive of orders: 1,200 rows in 4 partitions, from 2026-09-01T00:00:00.000Z to \
2026-11-30T00:00:00.000Z; longest gap: no rows on 31 days, from 2026-10-01 to 2026-10-31
    """
    from headrace.streams.metrics.snapshots import moment

    times = [moment(ms) for ms in (archive.first_ms, archive.last_ms) if ms is not None]
    gap = "no day without rows"
    if archive.longest_gap is not None:
        first, last = archive.longest_gap
        days = (last - first).days + 1
        gap = f"longest gap: no rows on {days:,} days, from {first} to {last}"
    return (
        f"archive of {archive.topic}: {archive.rows:,} rows in {archive.partitions} partitions, "
        f"from {' to '.join(times)}; {gap}"
    )


def _drop(app: KafkaStreams, id_: str | None, console: Console) -> None:
    if id_ is None:
        raise click.UsageError("--drop requires --id: the application logs it")
    from headrace.spark_bridge.handover.drop import drop_backfill

    dropped = drop_backfill(app.topology, app.config, id=id_)
    for topic in dropped.deleted:
        console.print(f"deleted {topic}", highlight=False)
    then = "restarts from the beginning" if dropped.restarts else "can be started"
    console.print(f"Backfill {id_} is dropped. The application {then}.", highlight=False)


def _opened(spark: Any, sources: tuple[FileSource, ...]) -> dict[str, Any] | None:
    from pyspark.errors import PySparkException

    frames = {}
    for source in sources:
        try:
            frames[source.topic] = open_source(spark, source)
        except PySparkException as error:
            first = str(error).strip().splitlines()[0]
            raise BackfillError(
                f"{source.path} cannot be read as {source.kind} ({first}). Correct the path, or "
                f"give the format: --source {source.topic}=csv:{source.path}"
            ) from error
    return frames or None


# A file in the current directory must not shadow a module of Python; required files are shipped.
_SAFE_PATH = {"spark.executorEnv.PYTHONSAFEPATH": "1"}


@contextmanager
def _spark(
    master: str, conf: Mapping[str, str], app: KafkaStreams, console: Console
) -> Iterator[Any]:
    """Start Spark with the project on its executors, and stop it afterwards."""
    from headrace.spark_bridge.cli.backfill import own_modules, pack, project_modules
    from headrace.spark_bridge.session import session

    with console.status("starting Spark") if console.is_terminal else nullcontext():
        name = f"backfill {app.config.application_id}"
        spark = session(master, app_name=name, config={**_SAFE_PATH, **conf})
    modules = project_modules(sys.modules)
    own = own_modules()
    # On this machine, executors import Headrace from its installed location.
    here = master.startswith("local[") or master == "local"
    modules = {k: v for k, v in modules.items() if k not in own} | ({} if here else own)
    with (
        cleanup_after(spark.stop, quietly=True),
        tempfile.TemporaryDirectory(prefix="headrace-project-") as scratch,
    ):
        if modules:
            spark.sparkContext.addPyFile(str(pack(modules, Path(scratch, "project.zip"))))
        yield spark


_EXCLUDED = {"__pycache__"}


def project_modules(
    modules: Mapping[str, ModuleType], *, installed: Iterable[Path] | None = None
) -> dict[str, Path]:
    """Find the loaded top-level packages and modules outside of the `installed` directories."""
    known = tuple(_installed() if installed is None else installed)
    found: dict[str, Path] = {}
    for name, module in list(modules.items()):
        path = None if "." in name or name == "__main__" else _path_of(module)
        if path is not None and not any(path.is_relative_to(directory) for directory in known):
            found[name] = path
    return found


def _path_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    if file is None:
        # A package without __init__.py; a package of an import hook has no directory.
        directories = [Path(directory) for directory in getattr(module, "__path__", ())]
        return next((directory.resolve() for directory in directories if directory.is_dir()), None)
    path = Path(file).resolve()
    if path.suffix != ".py":
        return None
    return path.parent if path.name == "__init__.py" else path


def _installed() -> list[Path]:
    paths = sysconfig.get_paths()
    directories = {paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return [Path(directory).resolve() for directory in directories]


def pack(modules: Mapping[str, Path], archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for name, path in sorted(modules.items()):
            if path.is_file():
                out.write(path, f"{name}.py")
                continue
            for file in _files(path):
                out.write(file, str(Path(name) / file.relative_to(path)))
    return archive


def _files(directory: Path) -> list[Path]:
    return sorted(
        Path(folder, name)
        for folder, _, names in os.walk(directory, followlinks=True)
        for name in names
        if _EXCLUDED.isdisjoint(Path(folder).parts)
    )


def own_modules() -> dict[str, Path]:
    """Return the package `headrace` as imported here, because executors must run the same."""
    return {"headrace": Path(__file__).parents[2]}
