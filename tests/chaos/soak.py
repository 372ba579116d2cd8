"""Samples of workers over hours: memory, open files, lag and commits, and what grows.

Rows go to a CSV file as they are taken. Plots need matplotlib, which is in the extra `bench`.
"""

from __future__ import annotations

import csv
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from pathlib import Path

import msgspec

from headrace.streams.metrics.snapshots import WorkerSnapshot
from tests.chaos.query_hosts import QueryHost
from tests.chaos.status import Field
from tests.chaos.workers import Fleet, Slot

EVERY_S = 5.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_WINDOWS = 6
"""A process is divided into so many spans of time; in the first one it warms up."""
_GROWTH = 1.1
_FLOORS = {"rss_mb": 12.0, "open_files": 40.0, "lag": 2_000.0, "commit_s": 0.2}
"""What grows by less in all is noise."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A worker, or a process that serves the stores of a host, at one moment.

    Args:
        at_s: seconds since the beginning.
        worker: name of the worker or the host; a host has no lag and no commits.
        lag: records between what is committed and the end of its inputs.
        commits: those of this process so far.
        commit_s: how long a commit took on average since the sample before; None without one.
    """

    at_s: float
    worker: str
    pid: int
    rss_mb: float
    open_files: int
    lag: int
    commits: int
    commit_s: float | None


class Sampler(threading.Thread):
    """Samples all workers and query hosts until it is stopped.

    Args:
        fleet: the workers.
        path: of the CSV file.
    """

    def __init__(
        self, fleet: Fleet, hosts: Sequence[QueryHost], path: Path, *, every_s: float = EVERY_S
    ) -> None:
        super().__init__(name="sampler", daemon=True)
        self._fleet = fleet
        self._hosts = hosts
        self._path = path
        self._every_s = every_s
        self._over = threading.Event()
        self._began_s = time.monotonic()
        self._told: dict[int, tuple[int, float]] = {}
        self.samples: list[Sample] = []

    def run(self) -> None:
        """Take samples, and write each down at once."""
        with self._path.open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow([one.name for one in fields(Sample)])
            while not self._over.wait(self._every_s):
                workers = [self._sample(slot) for slot in self._fleet.slots]
                for sample in (*workers, *(self._sample_host(host) for host in self._hosts)):
                    if sample is not None:
                        self.samples.append(sample)
                        out.writerow(astuple(sample))
                file.flush()

    def stop(self) -> list[Sample]:
        """End, and return the samples."""
        self._over.set()
        self.join()
        return self.samples

    def _sample(self, slot: Slot) -> Sample | None:
        process = slot.process
        if process is None or not slot.is_busy:
            return None
        try:
            rss_mb, open_files = _of_process(process.pid)
            _, _, text = slot.status_path.with_suffix(".facts").read_bytes().partition(b" ")
            facts = msgspec.json.decode(text, type=WorkerSnapshot)
        except (OSError, ValueError, msgspec.DecodeError):
            return None  # it has just ended, or has not told anything yet
        return Sample(
            at_s=round(time.monotonic() - self._began_s, 1),
            worker=slot.name,
            pid=process.pid,
            rss_mb=rss_mb,
            open_files=open_files,
            lag=sum(one.lag or 0 for task in facts.tasks for one in task.inputs),
            commits=slot.status[Field.COMMITS],
            commit_s=self._commit_s(process.pid, facts),
        )

    def _sample_host(self, host: QueryHost) -> Sample | None:
        process = host.process
        if process is None:
            return None
        try:
            rss_mb, open_files = _of_process(process.pid)
        except OSError:
            return None  # it has just ended
        at_s = round(time.monotonic() - self._began_s, 1)
        return Sample(at_s, f"host {host.name}", process.pid, rss_mb, open_files, 0, 0, None)

    def _commit_s(self, pid: int, facts: WorkerSnapshot) -> float | None:
        count, sum_s = facts.commit_latency.count, facts.commit_latency.sum_s
        before, sum_before_s = self._told.get(pid, (0, 0.0))
        self._told[pid] = count, sum_s
        return round((sum_s - sum_before_s) / (count - before), 4) if count > before else None


def _of_process(pid: int) -> tuple[float, int]:
    """Return its resident memory in MB, and the number of its open files."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * _PAGE_BYTES / (1 << 20), 1), len(os.listdir(f"/proc/{pid}/fd"))


def growth(samples: Iterable[Sample]) -> list[str]:
    """Say what grows all the time in a process: each span of it is higher than the one before."""
    found = []
    for (worker, pid), of_one in sorted(_by_process(samples).items()):
        for name, floor in _FLOORS.items():
            spans = _medians(of_one, name)
            if len(spans) < _WINDOWS:
                continue
            rest = spans[1:]
            rises = all(later > earlier for earlier, later in pairwise(rest))
            if rises and rest[-1] > rest[0] * _GROWTH and rest[-1] - rest[0] > floor:
                shown = ", ".join(f"{one:g}" for one in rest)
                found.append(f"{name} of {worker} (process {pid}) grows: {shown}")
    return found


def soak_lines(samples: Sequence[Sample]) -> list[str]:
    """The range of each figure of each worker."""
    by_worker: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_worker[sample.worker].append(sample)
    lines = []
    for worker, found in sorted(by_worker.items()):
        commits_s = sorted(one.commit_s for one in found if one.commit_s is not None)
        latency = "no time, as there was none"
        if commits_s:
            latency = f"{statistics.median(commits_s):.3f} s, at most {commits_s[-1]:.3f} s"
        lines.append(
            f"{worker}: memory {min(s.rss_mb for s in found):.0f} to "
            f"{max(s.rss_mb for s in found):.0f} MB, open files {min(s.open_files for s in found)} "
            f"to {max(s.open_files for s in found)}, lag at most {max(s.lag for s in found):,}, "
            f"a commit takes {latency}"
        )
    return lines


def draw(samples: Sequence[Sample], path: Path) -> Path:
    """Draw each figure over time, one line for each worker; returns the file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, all_axes = plt.subplots(len(_FLOORS), 1, figsize=(9, 10), sharex=True)
    for axes, name in zip(all_axes, _FLOORS, strict=True):
        for worker in sorted({sample.worker for sample in samples}):
            points = [
                (sample.at_s / 60, getattr(sample, name))
                for sample in samples
                if sample.worker == worker and getattr(sample, name) is not None
            ]
            if points:
                axes.plot(*zip(*points, strict=True), label=worker, linewidth=1)
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
    all_axes[0].legend(loc="upper left")
    all_axes[-1].set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    return path


def _by_process(samples: Iterable[Sample]) -> Mapping[tuple[str, int], list[Sample]]:
    found: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        found[sample.worker, sample.pid].append(sample)
    return found


def _medians(samples: Sequence[Sample], name: str) -> list[float]:
    """The median of a figure in each span of a process' time; none where it was too short."""
    values = [float(v) for one in samples if (v := getattr(one, name)) is not None]
    size = len(values) // _WINDOWS
    if size < 3:
        return []
    return [statistics.median(values[n * size : (n + 1) * size]) for n in range(_WINDOWS)]
