"""The same jobs as Headrace applications."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import click
import structlog

from benchmarks.jobs.topologies import TOPOLOGIES
from benchmarks.measure.meter import Meter
from headrace.streams.app import KafkaStreams
from headrace.streams.plan.task_spec import TaskId
from headrace.topology.topology import Topology

QUIET_S = 10.0
"""Records may be combined on their way: where fewer come, drained is when commits stop."""


class MeterListener:
    """Hands each commit of a worker to the meter."""

    def __init__(self, meter: Meter, until: int, *, from_start: bool) -> None:
        self._meter = meter
        self._until = until
        self._from_start = from_start
        self.drained = threading.Event()

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """Nothing to measure."""

    def on_running(self) -> None:
        """Where commits are rare, time runs from here: see `Meter.start`."""
        if self._from_start:
            self._meter.start()

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:  # noqa: ARG002
        """Take a mark."""
        self._meter.commit(records)
        if self._meter.processed >= self._until:
            self.drained.set()

    def wait(self) -> None:
        """Wait until the input is drained."""
        while not self.drained.wait(0.05):
            if self._meter.idle_s() > QUIET_S:
                return


def run(topology: Topology, settings: dict[str, object], until: int) -> Meter:
    """Run an application until its input is drained.

    Args:
        topology: what to run.
        settings: of the application.
        until: how many records to process, if none are combined on their way.
    """
    meter = Meter()
    # At-least-once commits every 30 s: the last commit is then the one that closing makes.
    rare = settings["processing.guarantee"] == "at_least_once"
    listener = MeterListener(meter, until, from_start=rare)
    app = KafkaStreams(topology, settings, worker_listener=listener)

    def close_when_drained() -> None:
        if rare:
            while app.records_processed < until:
                time.sleep(0.01)
        else:
            listener.wait()
        app.close()

    threading.Thread(target=close_when_drained, daemon=True).start()
    app.run()
    return meter


@click.command()
@click.argument("job", type=click.Choice(list(TOPOLOGIES)))
@click.option("--bootstrap", required=True)
@click.option("--run", "run_name", required=True, help="application.id, and part of the topics.")
@click.option("--source", required=True, help="The input topic.")
@click.option("--until", required=True, type=int, help="How many records to process.")
@click.option("--guarantee", default="exactly_once_v2")
@click.option("--state-dir", type=Path, required=True)
@click.option("--set", "extra", multiple=True, help="A setting, as name=value.")
@click.option("--profile", type=Path, help="Write a cProfile of the run here.")
def main(
    job: str,
    bootstrap: str,
    run_name: str,
    source: str,
    until: int,
    guarantee: str,
    state_dir: Path,
    extra: tuple[str, ...],
    profile: Path | None,
) -> None:
    """Run one application until its input is drained, and print what it cost as JSON."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    settings: dict[str, object] = {
        "application.id": run_name,
        "bootstrap.servers": bootstrap,
        "processing.guarantee": guarantee,
        "state.dir": str(state_dir),
        **dict(item.split("=", 1) for item in extra),
    }
    topology = TOPOLOGIES[job](source, f"{run_name}-output")
    if profile is None:
        meter = run(topology, settings, until)
    else:
        meter = _profiled(topology, settings, until, profile)
    json.dump(meter.report(), sys.stdout)


def _profiled(topology: Topology, settings: dict[str, object], until: int, path: Path) -> Meter:
    import cProfile

    profiler = cProfile.Profile(time.thread_time)
    try:
        return profiler.runcall(run, topology, settings, until)
    finally:
        profiler.dump_stats(path)


if __name__ == "__main__":
    main()
