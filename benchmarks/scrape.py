"""Time of a scrape of many workers, while one is stopped and another one restarts repeatedly.

``python -m benchmarks.scrape`` prints the median, the 95th percentile and the maximum of HTTP
requests of ``/metrics``, from the request to the last byte. The supervisor and its sockets are the
real ones; workers are processes that send generated reports. One worker is stopped by SIGSTOP, and
another one is killed after each first report.
"""

from __future__ import annotations

import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import click

from headrace.streams.metrics.snapshots import WorkerSnapshot
from headrace.streams.supervisor.channel import Channel, Report
from headrace.streams.supervisor.status_line import LoggedStatus
from headrace.streams.supervisor.supervisor import Supervisor
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams.worker.restarts import RestartLimits
from headrace.streams_web.server import HttpServer

STOPPED, RESTARTED = 1, 2
TURN_S = 0.1
"""Interval of the supervisor's checks."""
PAUSE_S = 0.3
"""Pause between scrapes, longer than the server's cache of a response."""
ROOT = Path(__file__).parents[1]


class SimulatedWorker:
    """Handle of a process that sends generated reports."""

    def __init__(self, index: int, tasks: int) -> None:
        self._index = index
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._channel = Channel(ours)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.simulated_worker",
                str(index),
                str(tasks),
                str(theirs.fileno()),
            ],
            cwd=ROOT,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        self.has_reported = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def reports(self) -> Iterator[Report]:
        for report in self._channel.receive():
            assert isinstance(report, Report)
            if isinstance(report, WorkerSnapshot) and not self.has_reported:
                self.has_reported = True
                if self._index == STOPPED:
                    self._process.send_signal(signal.SIGSTOP)
            yield report

    def last_output(self) -> Sequence[str]:
        return ()

    def stop(self) -> None:
        self.kill()

    def leave(self) -> None:
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def set_log_level(self, level: str) -> None:
        pass

    def close(self) -> None:
        self._channel.close()


@dataclass(frozen=True, slots=True)
class ScrapeResults:
    """Results of all scrapes.

    Args:
        seconds: duration of each scrape.
        pages: text of each scrape.
        restarts: number of restarts of workers during the scrapes.
    """

    seconds: list[float]
    pages: list[str]
    restarts: int

    @property
    def samples(self) -> int:
        """Number of samples in the last scrape."""
        return self.pages[-1].count("\nheadrace_")


def scrape(workers: int, tasks: int, *, times: int) -> ScrapeResults:
    """Start workers, and scrape their metrics several times."""
    started: dict[int, SimulatedWorker] = {}
    log = EventLog()

    def start(index: int) -> SimulatedWorker:
        started[index] = SimulatedWorker(index, tasks)
        return started[index]

    supervisor = Supervisor(
        workers=workers,
        start=start,
        monotonic=time.monotonic,
        random=Random(1),
        limits=RestartLimits(most=1_000_000, first_s=0.5, longest_s=0.5),
        display=LoggedStatus(log, 0),
        log=log,
    )
    ended = threading.Event()

    def supervise() -> None:
        while not ended.wait(TURN_S):
            supervisor.turn()
            restarted = started.get(RESTARTED)
            if len(started) == workers and restarted is not None and restarted.has_reported:
                restarted.kill()

    loop = threading.Thread(target=supervise)
    loop.start()
    try:
        with HttpServer(lambda: supervisor.health, "0", log=log) as server:
            _wait(lambda: len(started) == workers and all(w.has_reported for w in started.values()))
            seconds, pages = _scrape(f"{server.url}/metrics", times)
        restarts = sum(view.restarts for view in supervisor.health.snapshot.workers)
        return ScrapeResults(seconds, pages, restarts)
    finally:
        ended.set()
        loop.join()
        for worker in started.values():
            worker.kill()


def _wait(condition: Callable[[], bool], *, seconds: float = 180.0) -> None:
    end_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError(f"no reports of all workers within {seconds:g} s")
        time.sleep(0.02)


def _scrape(url: str, times: int) -> tuple[list[float], list[str]]:
    seconds, pages = [], []
    for _ in range(times):
        time.sleep(PAUSE_S)
        begun_s = time.perf_counter()
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read()
        seconds.append(time.perf_counter() - begun_s)
        pages.append(text.decode())
    return seconds, pages


@click.command()
@click.option("--workers", default=8, show_default=True, help="Number of workers.")
@click.option("--tasks", default=64, show_default=True, help="Number of tasks of each worker.")
@click.option("--times", default=40, show_default=True, help="Number of scrapes.")
def main(workers: int, tasks: int, times: int) -> None:
    """Measure scrapes of many workers."""
    found = scrape(workers, tasks, times=times)
    median, most = statistics.median(found.seconds), max(found.seconds)
    p95 = statistics.quantiles(found.seconds, n=20)[-1]
    print(f"{workers} workers of {tasks} tasks, {found.samples:,} samples")
    print(f"worker {STOPPED} stopped, worker {RESTARTED} restarted {found.restarts} times")
    print(f"median {median * 1000:.0f} ms, 95 % {p95 * 1000:.0f} ms, maximum {most * 1000:.0f} ms")


if __name__ == "__main__":
    main()
