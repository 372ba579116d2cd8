"""Says which worker has fallen silent, and when it is heard of again."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.streams.facts.snapshots import SILENT, SILENT_S
from headrace.streams.seams.clients import Log
from headrace.streams.supervise.status import WorkerStatus

_ASLEEP_S = 2.0
"""Whoever looks ten times a second and has not for so long was held up itself."""
_ADVICE = (
    "its process is stopped, or a function of yours, a commit or the machine takes that long; its "
    "tasks go to other workers when consumer.session.timeout.ms is over, or, where only the work "
    "stands still, consumer.max.poll.interval.ms. It is left alone; one that never comes back is "
    "started again after kill -9 of its pid"
)


class Silences:
    """Remembers whose silence was told; each is told once."""

    def __init__(self, log: Log, now_s: float) -> None:
        self._log = log
        self._looked_s = self._awake_s = now_s
        self._silent: dict[int, tuple[int | None, float]] = {}
        """The process, and when it was heard of last."""

    def look(self, workers: Sequence[WorkerStatus], now_s: float) -> None:
        """Say what has changed since the last look."""
        if now_s - self._looked_s > _ASLEEP_S:
            self._awake_s = now_s  # nobody could have been heard meanwhile
        self._looked_s = now_s
        for worker in workers:
            is_silent = worker.view().state_at(now_s) == SILENT
            known = self._silent.get(worker.index)
            if known is not None and (not is_silent or known[0] != worker.pid):
                self._end(worker, known)
            elif known is None and is_silent and now_s - self._awake_s > SILENT_S:
                self._begin(worker, now_s)

    def _begin(self, worker: WorkerStatus, now_s: float) -> None:
        assert worker.facts is not None, "what has never told anything is not silent"
        self._silent[worker.index] = worker.pid, worker.facts.at_s
        self._log.warning(
            "worker_silent",
            worker_index=worker.index,
            worker=worker.facts.id,
            pid=worker.pid,
            silent_s=round(worker.facts.age_s(now_s), 1),
            advice=_ADVICE,
        )

    def _end(self, worker: WorkerStatus, known: tuple[int | None, float]) -> None:
        pid, since_s = known
        del self._silent[worker.index]
        if worker.pid != pid or worker.facts is None:
            return  # it has ended, which is said
        self._log.info(
            "worker_heard",
            worker_index=worker.index,
            worker=worker.facts.id,
            pid=pid,
            silent_s=round(worker.facts.at_s - since_s, 1),
        )
