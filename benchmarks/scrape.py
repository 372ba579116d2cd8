"""How long a scrape of many workers takes, while one is stopped and another one starts again.

Workers are processes that tell made-up numbers over the real sockets to the real supervisor; one is
held by SIGSTOP, one is killed whenever it has told something, and starts again. What is timed is
HTTP from request to the last byte. ``python -m benchmarks.scrape`` prints it.
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
TURN_S, PAUSE_S = 0.1, 0.3
"""How often the supervisor looks, and what is between two scrapes: more than the time for which
the server gives the same to several who ask at once."""
ROOT = Path(__file__).parents[1]


class FedWorker:
    """The process of a worker that tells made-up numbers."""

    def __init__(self, index: int, tasks: int) -> None:
        self._index = index
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._channel = Channel(ours)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.told", str(index), str(tasks), str(theirs.fileno())],
            cwd=ROOT,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        self.has_told = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def reports(self) -> Iterator[Report]:
        for report in self._channel.receive():
            assert isinstance(report, Report)
            if isinstance(report, WorkerSnapshot) and not self.has_told:
                self.has_told = True
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
class Scraped:
    """What came of it.

    Args:
        seconds: how long each scrape took.
        pages: what each brought.
        restarts: how often a worker was started again meanwhile.
    """

    seconds: list[float]
    pages: list[str]
    restarts: int

    @property
    def samples(self) -> int:
        """Of the last page."""
        return self.pages[-1].count("\nheadrace_")


def scrape(workers: int, tasks: int, *, times: int) -> Scraped:
    """Scrape again and again."""
    started: dict[int, FedWorker] = {}
    log = EventLog()

    def start(index: int) -> FedWorker:
        started[index] = FedWorker(index, tasks)
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
            if len(started) == workers and restarted is not None and restarted.has_told:
                restarted.kill()

    loop = threading.Thread(target=supervise)
    loop.start()
    try:
        with HttpServer(lambda: supervisor.health, "0", log=log) as server:
            _wait(lambda: len(started) == workers and all(w.has_told for w in started.values()))
            seconds, pages = _scrape(f"{server.url}/metrics", times)
        restarts = sum(view.restarts for view in supervisor.health.snapshot.workers)
        return Scraped(seconds, pages, restarts)
    finally:
        ended.set()
        loop.join()
        for worker in started.values():
            worker.kill()


def _wait(condition: Callable[[], bool], *, seconds: float = 180.0) -> None:
    end_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError(f"the workers told nothing for {seconds:g} s")
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
@click.option("--workers", default=8)
@click.option("--tasks", default=64, help="Of each worker.")
@click.option("--times", default=40)
def main(workers: int, tasks: int, times: int) -> None:
    """Print how long scrapes took."""
    found = scrape(workers, tasks, times=times)
    median, most = statistics.median(found.seconds), max(found.seconds)
    p95 = statistics.quantiles(found.seconds, n=20)[-1]
    print(f"{workers} workers of {tasks} tasks, {found.samples:,} samples")
    print(f"worker {STOPPED} stopped, worker {RESTARTED} started again {found.restarts} times")
    print(f"median {median * 1000:.0f} ms, 95 % {p95 * 1000:.0f} ms, longest {most * 1000:.0f} ms")


if __name__ == "__main__":
    main()
