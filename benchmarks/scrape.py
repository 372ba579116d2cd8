"""How long a scrape of many workers takes, while one is stopped and another one starts again.

Snapshots go through the real sockets and the real supervisor; what is timed is HTTP from request
to the last byte. ``python -m benchmarks.scrape`` prints it.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from random import Random

import click

from headrace.streams.facts.snapshots import WorkerSnapshot
from headrace.streams.supervise.report_sender import ReportSender, report_channel
from headrace.streams.supervise.restarts import RestartLimits
from headrace.streams.supervise.status_line import LoggedStatus
from headrace.streams.supervise.supervisor import Supervisor
from headrace.streams.supervise.worker_handle import LineReader
from headrace.streams.supervise.worker_reports import Loaded, Report, Status, Told, decode
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.server import WebServer
from tests.support.snapshots import worker_snapshot

STOPPED, RESTARTED = 1, 2
TURN_S, TELL_S = 0.1, 0.5


class FedWorker:
    """A worker whose process is a thread that tells the same numbers again and again."""

    def __init__(self, index: int, tasks: int) -> None:
        self.pid = 10_000 + index
        self._index = index
        file, theirs = report_channel()
        self._lines = LineReader(file)
        self._files = (file, theirs)
        self._sender = ReportSender(theirs)
        self._facts = worker_snapshot(tasks=tasks, first=index * tasks, nodes=2)
        self.code: int | None = None
        self.told = 0

    def tell(self) -> None:
        """Tell what a worker tells each half second; one that is stopped tells it once."""
        if self.told and self._index == STOPPED:
            return
        self.told += 1
        facts: WorkerSnapshot = self._facts
        self._sender.send(Loaded("bench", 1_000))
        self._sender.send(Told(facts))
        self._sender.send(Status("running", len(facts.tasks), 0, 0, 0, 0, None, time.monotonic()))

    def poll(self) -> int | None:
        return self.code

    def reports(self) -> Iterator[Report]:
        for line in self._lines.read():
            yield decode(line)

    def last_words(self) -> Sequence[str]:
        return ()

    def stop(self) -> None:
        self.code = 0

    leave = kill = stop

    def set_log_level(self, level: str) -> None:
        pass

    def close(self) -> None:
        for file in self._files:
            os.close(file)


def scrape_seconds(workers: int, tasks: int, *, times: int) -> tuple[list[float], int]:
    """Scrape again and again; returns how long each scrape took, and the samples of the last."""
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
        limits=RestartLimits(most=1_000_000, first_s=0.5),
        display=LoggedStatus(log, 0),
        log=log,
    )
    ended = threading.Event()

    def supervise() -> None:
        tell_s = 0.0
        while not ended.wait(TURN_S):
            if time.monotonic() >= tell_s:
                tell_s = time.monotonic() + TELL_S
                for worker in list(started.values()):
                    if worker.code is None:
                        worker.tell()
                if workers > RESTARTED and RESTARTED in started:
                    started[RESTARTED].code = 1
            supervisor.turn()

    loop = threading.Thread(target=supervise)
    loop.start()
    try:
        with WebServer(lambda: supervisor.board, "0", log=log) as server:
            while len(started) < workers or not started[workers - 1].told:
                time.sleep(TURN_S)
            return _scrape(f"{server.url}/metrics", times)
    finally:
        ended.set()
        loop.join()


def _scrape(url: str, times: int) -> tuple[list[float], int]:
    seconds, samples = [], 0
    for _ in range(times):
        time.sleep(0.3)  # past what the server gives to several who ask at once
        begun_s = time.perf_counter()
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read()
        seconds.append(time.perf_counter() - begun_s)
        samples = text.count(b"\nheadrace_")
    return seconds, samples


@click.command()
@click.option("--workers", default=8)
@click.option("--tasks", default=64, help="Of each worker.")
@click.option("--times", default=40)
def main(workers: int, tasks: int, times: int) -> None:
    """Print how long scrapes took."""
    seconds, samples = scrape_seconds(workers, tasks, times=times)
    median, most = statistics.median(seconds), max(seconds)
    p95 = statistics.quantiles(seconds, n=20)[-1]
    print(f"{workers} workers of {tasks} tasks, {samples:,} samples")
    print(f"median {median * 1000:.0f} ms, 95 % {p95 * 1000:.0f} ms, longest {most * 1000:.0f} ms")


if __name__ == "__main__":
    main()
