"""Process of a benchmark's application: ``python -m benchmarks.service TOPOLOGY``.

It runs until SIGTERM, and prints its events as lines of JSON with ``event``, the time ``at_s`` of
the monotonic clock, and the fields of the event. Benchmarks start it and read the events.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import structlog

from benchmarks.jobs.catalogue import TOPOLOGIES
from headrace import KafkaStreams
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.kafka.transactional_producer import TransactionalProducer
from headrace.streams.plan.plan import TaskId
from headrace.streams.worker.recovery import Recovery


def print_event(event: str, **fields: object) -> None:
    """Print an event as a line of JSON."""
    print(json.dumps({"event": event, "at_s": time.monotonic(), **fields}), flush=True)


class EventPrinter:
    """Prints assignments, restores and commits."""

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        print_event("assigned", tasks=[str(task) for task in tasks])

    def on_running(self) -> None:
        print_event("running")

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        print_event("committed", records=records, tasks=[str(task) for task in tasks])

    def on_restore_start(self, tp: TopicPartition, store: str, begin: int, end: int) -> None:
        print_event("restore_started", tp=str(tp), store=store, begin=begin, end=end)

    def on_batch_restored(self, tp: TopicPartition, store: str, offset: int, count: int) -> None:
        """Ignore batches, because `on_restore_end` has the total."""

    def on_restore_end(self, tp: TopicPartition, store: str, total: int) -> None:
        print_event("restored", tp=str(tp), store=store, records=total)


def _print_initialization(init: Callable[[TransactionalProducer], None]) -> None:
    """Print the end of init_transactions, for which there is no listener."""

    def printing(self: TransactionalProducer) -> None:
        init(self)
        print_event("transactions_initialised")

    TransactionalProducer.init = printing  # type: ignore[method-assign]


def _print_aborts(abort: Callable[[Recovery], None]) -> None:
    """Print aborted transactions, for which there is no listener."""

    def printing(self: Recovery) -> None:
        print_event("aborted")
        abort(self)

    Recovery.abort = printing  # type: ignore[method-assign]


@click.command()
@click.argument("topology", type=click.Choice(list(TOPOLOGIES)))
@click.option("--bootstrap", required=True, help="Bootstrap servers.")
@click.option(
    "--run", "run_name", required=True, help="application.id, and prefix of internal topics."
)
@click.option("--source", required=True, help="Prefix of the input topics.")
@click.option("--state-dir", type=Path, required=True, help="State directory.")
@click.option(
    "--guarantee", default="exactly_once_v2", show_default=True, help="processing.guarantee."
)
@click.option("--set", "extra", multiple=True, help="Setting, as name=value.")
@click.option("--profile", type=Path, help="File for a cProfile of the run.")
def main(
    topology: str,
    bootstrap: str,
    run_name: str,
    source: str,
    state_dir: Path,
    guarantee: str,
    extra: tuple[str, ...],
    profile: Path | None,
) -> None:
    """Run an application until SIGTERM."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    _print_initialization(TransactionalProducer.init)
    _print_aborts(Recovery.abort)
    settings: dict[str, object] = {
        "application.id": run_name,
        "bootstrap.servers": bootstrap,
        "processing.guarantee": guarantee,
        "state.dir": str(state_dir),
        **dict(item.split("=", 1) for item in extra),
    }
    printer = EventPrinter()
    app = KafkaStreams(
        TOPOLOGIES[topology](source, f"{run_name}-output"),
        settings,
        worker_listener=printer,
        restore_listener=printer,
    )
    if profile is None:
        app.run()
    else:
        _run_profiled(app, profile)


def _run_profiled(app: KafkaStreams, path: Path) -> None:
    import cProfile

    profiler = cProfile.Profile(time.thread_time)
    try:
        profiler.runcall(app.run)
    finally:
        profiler.dump_stats(path)


if __name__ == "__main__":
    main()
