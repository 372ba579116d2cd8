"""How one worker is doing, as its supervisor knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.streams.facts.snapshots import WorkerSnapshot, WorkerView
from headrace.streams.supervise.worker_reports import Status

RATE_OVER_S = 5.0


@dataclass(slots=True)
class WorkerStatus:
    """The last known facts of one worker, with rates over the last seconds.

    Args:
        index: the worker's number, from 0.
    """

    index: int
    state: str = "waiting"
    pid: int | None = None
    restarts: int = 0
    last: Status | None = None
    facts: WorkerSnapshot | None = None
    """The last that it told in numbers, of a process that has ended, too."""
    heard_s: float = 0.0
    """When `last` arrived, in seconds of the supervisor's clock."""
    _window: list[Status] = field(default_factory=list)

    def started(self, pid: int) -> None:
        """Note that a process was started."""
        self.state, self.pid = "starting", pid
        self.last = self.facts = None
        self._window.clear()

    def reported(self, status: Status, now_s: float) -> None:
        """Note what the process reported."""
        if self.state != "stopping":
            self.state = status.state
        self.last, self.heard_s = status, now_s
        self._window.append(status)
        while len(self._window) > 2 and status.at_s - self._window[1].at_s >= RATE_OVER_S:
            self._window.pop(0)

    def told(self, facts: WorkerSnapshot) -> None:
        """Note what the process told in numbers."""
        self.facts = facts

    def view(self) -> WorkerView:
        """What is known of the worker now."""
        return WorkerView(
            index=self.index,
            state=self.state,
            pid=self.pid,
            restarts=self.restarts,
            facts=self.facts,
        )

    def ended(self, outcome: str) -> None:
        """Note that the process is gone."""
        self.state, self.pid = outcome, None
        self.last = None
        self._window.clear()

    def records_per_s(self, now_s: float) -> float:
        """Records processed per second; 0 of a worker that is not heard of any more."""
        return self._rate([status.processed for status in self._window], now_s)

    def commits_per_s(self, now_s: float) -> float:
        """Commits per second; 0 of a worker that is not heard of any more."""
        return self._rate([status.commits for status in self._window], now_s)

    @property
    def restored_percent(self) -> int | None:
        """How far the restores under way are, or None when there are none."""
        if self.last is None or not self.last.to_restore:
            return None
        return 100 * self.last.restored // self.last.to_restore

    def commit_age_s(self, now_s: float) -> float | None:
        """How long ago the last commit was, in seconds, or None when none is known."""
        if self.last is None or self.last.commit_age_s is None:
            return None
        return self.last.commit_age_s + max(0.0, now_s - self.heard_s)

    def _rate(self, counts: list[int], now_s: float) -> float:
        if len(counts) < 2 or now_s - self.heard_s > RATE_OVER_S:
            return 0.0
        seconds = self._window[-1].at_s - self._window[0].at_s
        return (counts[-1] - counts[0]) / seconds if seconds > 0 else 0.0
