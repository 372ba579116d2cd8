"""Application that runs until SIGTERM and prints its events.

Each line is JSON: ``event``, ``at_s`` on the machine's monotonic clock, and the event's fields.
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
    """Write one line."""
    print(json.dumps({"event": event, "at_s": time.monotonic(), **fields}), flush=True)


class Listener:
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
        """Ignore batches; the total follows."""

    def on_restore_end(self, tp: TopicPartition, store: str, total: int) -> None:
        print_event("restored", tp=str(tp), store=store, records=total)


def _print_init(init: Callable[[TransactionalProducer], None]) -> None:
    """Print the end of init_transactions, for which there is no listener."""

    def traced(self: TransactionalProducer) -> None:
        init(self)
        print_event("transactions_initialised")

    TransactionalProducer.init = traced  # type: ignore[method-assign]


def _print_aborts(abort: Callable[[Recovery], None]) -> None:
    """Print aborted transactions, for which there is no listener."""

    def traced(self: Recovery) -> None:
        print_event("aborted")
        abort(self)

    Recovery.abort = traced  # type: ignore[method-assign]


@click.command()
@click.argument("topology", type=click.Choice(list(TOPOLOGIES)))
@click.option("--bootstrap", required=True)
@click.option(
    "--run", "run_name", required=True, help="application.id, and prefix of internal topics."
)
@click.option("--source", required=True, help="Prefix of the input topics.")
@click.option("--state-dir", type=Path, required=True)
@click.option("--guarantee", default="exactly_once_v2", show_default=True)
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
    _print_init(TransactionalProducer.init)
    _print_aborts(Recovery.abort)
    settings: dict[str, object] = {
        "application.id": run_name,
        "bootstrap.servers": bootstrap,
        "processing.guarantee": guarantee,
        "state.dir": str(state_dir),
        **dict(item.split("=", 1) for item in extra),
    }
    listener = Listener()
    app = KafkaStreams(
        TOPOLOGIES[topology](source, f"{run_name}-output"),
        settings,
        worker_listener=listener,
        restore_listener=listener,
    )
    if profile is None:
        app.run()
    else:
        _profiled(app, profile)


def _profiled(app: KafkaStreams, path: Path) -> None:
    import cProfile

    profiler = cProfile.Profile(time.thread_time)
    try:
        profiler.runcall(app.run)
    finally:
        profiler.dump_stats(path)


if __name__ == "__main__":
    main()
