"""The command `headrace backfill`: history first, on Spark, then the live application goes on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from headrace.spark_bridge.cleanup import and_then
from headrace.spark_bridge.cli.errors import code_of
from headrace.spark_bridge.cli.sources import (
    FileSource,
    open_source,
    parse_cutover,
    parse_sources,
    parse_until,
)
from headrace.spark_bridge.errors import BackfillError
from headrace.streams.cli.options import load, said_errors, settings_option, target_argument

if TYPE_CHECKING:
    from headrace.spark_bridge.reports import Report
    from headrace.streams.app import KafkaStreams


def _conf(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        found[name.strip()] = value
    return found


@dataclass(frozen=True, slots=True)
class Wish:
    """What the options say; they are those of `headrace.spark_bridge.backfill`."""

    until: Any
    cutover: Any
    outputs: Any
    handover: Any
    order: Any
    reset: bool
    times: Any
    id: str | None

    def options(self) -> dict[str, Any]:
        """As arguments of `headrace.spark_bridge.backfill`."""
        return {name: getattr(self, name) for name in self.__slots__}


@click.command()
@target_argument
@click.option(
    "--until",
    default="latest",
    show_default=True,
    callback=parse_until,
    metavar="END",
    help="Where to end: latest, a time (2026-01-31T09:00:00Z; UTC without a zone), or "
    "offsets (orders-0=5,orders-1=7). The application goes on from there.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    callback=parse_sources,
    metavar="TOPIC=PATH",
    help="Read a topic's history from files first: Parquet, CSV, JSON, ORC or Delta, which is "
    "seen from the name or said (TOPIC=csv:PATH); may be repeated.",
)
@click.option(
    "--cutover",
    callback=parse_cutover,
    metavar="PLACE",
    help="Where Kafka goes on behind files without offsets: a time or offsets.",
)
@click.option(
    "--outputs",
    type=click.Choice(["write", "skip"]),
    default="write",
    show_default=True,
    help="What becomes of records for output topics.",
)
@click.option(
    "--handover",
    type=click.Choice(["auto", "driver", "partitioned"]),
    default="auto",
    show_default=True,
    help="One transaction, or one for each task.",
)
@click.option(
    "--order",
    type=click.Choice(["auto", "exact", "combine"]),
    default="auto",
    show_default=True,
    help="Record by record, or counted before the shuffle.",
)
@click.option(
    "--times",
    type=click.Choice(["check", "trust"]),
    default="check",
    show_default=True,
    help="Whether files are refused whose timestamps seem to be no milliseconds.",
)
@click.option("--reset", is_flag=True, help="Replace the state that the application has.")
@click.option(
    "--id",
    "id_",
    metavar="ID",
    help="Of the backfill; that of one that was interrupted goes on with it.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be read, and end.")
@click.option("--drop", is_flag=True, help="Give up the unfinished backfill of --id.")
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    metavar="URL",
    help="Where Spark runs; a cluster gets the project as a package.",
)
@click.option(
    "--conf",
    multiple=True,
    callback=_conf,
    metavar="NAME=VALUE",
    help="A setting of Spark; may be repeated.",
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
    **wished: Any,
) -> None:
    """Run an application over history on Spark, and hand the result over to it.

    MODULE:APP is what `headrace run` takes. The application must not run meanwhile; its next start
    goes on behind the last record that was read.
    """
    wish = Wish(id=id_, **wished)
    with said_errors(code_of):
        from headrace.spark_bridge.session import require_spark

        require_spark()
        app = load(target, settings)
        console = Console()
        if drop:
            _drop(app, id_, console)
        elif dry_run and not sources:
            _say_plan(_run(app, None, None, wish, dry_run=True), console)
        elif not dry_run and (ended := _resumed(app, wish)) is not None:
            _say_ended(ended, app, console)
        else:
            with _spark(master, conf, app, console) as spark:
                frames = _opened(spark, sources)
                if dry_run:
                    _say_plan(_run(app, spark, frames, wish, dry_run=True), console)
                else:
                    _show(app, spark, frames, wish, console)


def _run(
    app: KafkaStreams, spark: Any, frames: Mapping[str, Any] | None, wish: Wish, **more: Any
) -> Report:
    from headrace.spark_bridge.backfill import backfill as run

    return run(app.topology, app.config, spark=spark, source=frames, **wish.options(), **more)


def _show(
    app: KafkaStreams, spark: Any, frames: Mapping[str, Any] | None, wish: Wish, console: Console
) -> None:
    from headrace.spark_bridge.cli.progress import shown_progress, summary

    with shown_progress(spark, console) as on_stage:
        report = _run(app, spark, frames, wish, on_stage=on_stage)
    if report.handover is None:  # somebody else was quicker
        _say_ended(report, app, console)
        return
    for table in summary(report):
        console.print(table)
    console.print(
        f"{report.records:,} records, {report.keys:,} keys, {report.outputs:,} outputs in "
        f"{report.seconds:.1f} s. {app.config.application_id} can be started.",
        highlight=False,
    )


def _resumed(app: KafkaStreams, wish: Wish) -> Report | None:
    """What is left of an earlier attempt, if Spark need not run for it."""
    from headrace.spark_bridge.backfill import new_id, resume

    return resume(
        app.topology, app.config, id=wish.id or new_id(), outputs=wish.outputs, reset=wish.reset
    )


def _say_ended(report: Report, app: KafkaStreams, console: Console) -> None:
    if report.handover is None:
        said = f"Backfill {report.id} was handed over before: nothing was done."
    else:
        said = f"Backfill {report.id} was written before: its offsets are committed now."
    console.print(said, f"{app.config.application_id} can be started.", highlight=False)


def _say_plan(report: Report, console: Console) -> None:
    plan = report.plan
    for place in plan.inputs:
        begin, end = plan.starts[place], plan.ends[place]
        console.print(f"{place}: from offset {begin:,} up to {end:,}", highlight=False)
    stages = ", ".join("+".join(map(str, stage)) for stage in plan.stages)
    console.print(
        f"{plan.records:,} offsets; stages of sub-topologies: {stages}. "
        "Nothing was done (--dry-run).",
        highlight=False,
    )


def _drop(app: KafkaStreams, id_: str | None, console: Console) -> None:
    if id_ is None:
        raise click.UsageError("--drop needs the --id of the backfill; the application names it")
    from headrace.spark_bridge.handover.drop import drop_backfill

    dropped = drop_backfill(app.topology, app.config, id=id_)
    for topic in dropped.deleted:
        console.print(f"deleted {topic}", highlight=False)
    begins = "begins anew at its next start" if dropped.begins_anew else "can be started"
    console.print(f"Backfill {id_} is dropped. The application {begins}.", highlight=False)


def _opened(spark: Any, sources: tuple[FileSource, ...]) -> dict[str, Any] | None:
    from pyspark.errors import PySparkException

    frames = {}
    for source in sources:
        try:
            frames[source.topic] = open_source(spark, source)
        except PySparkException as error:
            first = str(error).strip().splitlines()[0]
            raise BackfillError(
                f"{source.path} cannot be read as {source.kind}: {first}; correct the path, or say "
                f"what it is: --source {source.topic}=csv:{source.path}"
            ) from error
    return frames or None


# A file of the current directory must not stand in for a module of Python; what is needed of it is
# sent along.
_SAFE_PATH = {"spark.executorEnv.PYTHONSAFEPATH": "1"}


@contextmanager
def _spark(
    master: str, conf: Mapping[str, str], app: KafkaStreams, console: Console
) -> Iterator[Any]:
    """Start Spark, with the project on its executors, and end it."""
    import sys

    from headrace.spark_bridge.program.shipping import own_modules, pack, project_modules
    from headrace.spark_bridge.session import session

    with console.status("starting Spark") if console.is_terminal else _nothing():
        name = f"backfill {app.config.application_id}"
        spark = session(master, app_name=name, config={**_SAFE_PATH, **conf})
    modules = project_modules(sys.modules)
    own = own_modules()
    # On this machine Headrace is imported from where it is.
    here = master.startswith("local[") or master == "local"
    modules = {k: v for k, v in modules.items() if k not in own} | ({} if here else own)
    with (
        and_then(spark.stop, quietly=True),
        tempfile.TemporaryDirectory(prefix="headrace-project-") as scratch,
    ):
        if modules:
            spark.sparkContext.addPyFile(str(pack(modules, Path(scratch, "project.zip"))))
        yield spark


@contextmanager
def _nothing() -> Iterator[None]:
    yield
