"""All jobs, and all topologies by name."""

from __future__ import annotations

from benchmarks.jobs import foreign_keys, joins, orders, reduce, sessions, sums, words
from benchmarks.jobs.last_value import last_value
from benchmarks.jobs.repartitioned import (
    REPARTITIONED_WINDOWS,
    repartitioned_last_windows,
    repartitioned_sum,
)
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
    "repartitioned_sum": repartitioned_sum,
    "repartitioned_last_windows": repartitioned_last_windows,
    REPARTITIONED_WINDOWS.kind: REPARTITIONED_WINDOWS.topology,
}
