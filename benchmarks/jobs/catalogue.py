"""All jobs, and all topologies by name."""

from __future__ import annotations

from benchmarks.jobs import foreign_keys, joins, orders, reduce, sessions, sums, words
from benchmarks.jobs.last_value import last_value
from benchmarks.jobs.moved import MOVED_WINDOWS, moved_last_windows, moved_sum
from benchmarks.jobs.windows import SLIDING, TUMBLING

JOBS = {
    job.name: job
    for job in (
        *words.JOBS,
        *sums.JOBS,
        *orders.JOBS,
        TUMBLING,
        *reduce.JOBS,
        *joins.JOBS,
        *sessions.JOBS,
        *foreign_keys.JOBS,
        SLIDING,
    )
}

TOPOLOGIES = {
    **{job.kind: job.topology for job in JOBS.values()},
    "last_value": last_value,
    "moved_sum": moved_sum,
    "moved_last_windows": moved_last_windows,
    MOVED_WINDOWS.kind: MOVED_WINDOWS.topology,
}
