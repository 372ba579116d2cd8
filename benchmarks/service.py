"""An application that runs until SIGTERM and says on its standard output what happens to it.

Each line is JSON: ``event``, ``at_s`` on the machine's monotonic clock, and what belongs to it.
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


def tell(event: str, **fields: object) -> None:
    """Write one line."""
    print(json.dumps({"event": event, "at_s": time.monotonic(), **fields}), flush=True)


class Teller:
    """Tells of assignments, restores and commits."""

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        tell("assigned", tasks=[str(task) for task in tasks])

    def on_running(self) -> None:
        tell("running")

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        tell("committed", records=records, tasks=[str(task) for task in tasks])

    def on_restore_start(self, place: TopicPartition, store: str, begin: int, end: int) -> None:
        tell("restore_started", place=str(place), store=store, begin=begin, end=end)

    def on_batch_restored(self, place: TopicPartition, store: str, offset: int, count: int) -> None:
        """Only the sum is of interest."""

    def on_restore_end(self, place: TopicPartition, store: str, total: int) -> None:
        tell("restored", place=str(place), store=store, records=total)


def _tell_of_init(init: Callable[[TransactionalProducer], None]) -> None:
    """No listener hears of init_transactions, so its end is told from around it."""

    def told(self: TransactionalProducer) -> None:
        init(self)
        tell("transactions_initialised")

    TransactionalProducer.init = told  # type: ignore[method-assign]


def _tell_of_aborts(abort: Callable[[Recovery], None]) -> None:
    """Nor does one hear of transactions that come to nothing."""

    def told(self: Recovery) -> None:
        tell("aborted")
        abort(self)

    Recovery.abort = told  # type: ignore[method-assign]


@click.command()
@click.argument("topology", type=click.Choice(list(TOPOLOGIES)))
@click.option("--bootstrap", required=True)
@click.option("--run", "run_name", required=True, help="application.id, and part of the topics.")
@click.option("--source", required=True, help="The input topics, up to their ends.")
@click.option("--state-dir", type=Path, required=True)
@click.option("--guarantee", default="exactly_once_v2", show_default=True)
@click.option("--set", "extra", multiple=True, help="A setting, as name=value.")
@click.option("--profile", type=Path, help="Write a cProfile of the run here.")
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
    _tell_of_init(TransactionalProducer.init)
    _tell_of_aborts(Recovery.abort)
    settings: dict[str, object] = {
        "application.id": run_name,
        "bootstrap.servers": bootstrap,
        "processing.guarantee": guarantee,
        "state.dir": str(state_dir),
        **dict(item.split("=", 1) for item in extra),
    }
    teller = Teller()
    app = KafkaStreams(
        TOPOLOGIES[topology](source, f"{run_name}-output"),
        settings,
        worker_listener=teller,
        restore_listener=teller,
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
