"""Run the word count to the end of its input, and kill it on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from examples.demo_support.cluster import Cluster
from examples.demo_support.process import AppProcess

KILL_FROM = 0.4
"""The part of the lines that is committed before the kill, besides the first results."""
KILLS_MAX = 5
_LOOK_S = 0.01
_CATCH_S = 0.5
_ARRIVED_S = 0.05
"""How long what a held process has sent, maybe a commit, takes to the broker."""
_STALLED_S = 90
_DEAD_S = 0.3
_FEW = 1_000


@dataclass(frozen=True)
class Names:
    """Names of a run's application and topics."""

    application: str

    @property
    def sentences(self) -> str:
        """The topic that is read."""
        return f"{self.application}-sentences"

    @property
    def word_counts(self) -> str:
        """Name of the output topic."""
        return f"{self.application}-word-counts"

    @property
    def words(self) -> str:
        """Name of the repartition topic, which has each word in a single partition."""
        return f"{self.application}-by-word-repartition"

    @property
    def changelog(self) -> str:
        """Name of the changelog topic of the counts."""
        return f"{self.application}-counts-changelog"

    @property
    def written(self) -> dict[str, str]:
        """Topics that the word count writes, with their purpose."""
        return {
            self.word_counts: "results",
            self.words: "words on the way to the task that counts them",
            self.changelog: "copy of the counts, to restore them from",
        }


@dataclass(frozen=True)
class Kill:
    """State of the cluster after a process was killed."""

    pid: int
    lines: int
    """How many lines were committed as read."""
    words: int
    """How many words were committed as counted."""
    open_records: int
    """How many records stood in a transaction that was still open."""


@dataclass
class CountingRun:
    """Starts, watches, kills and restarts the word count.

    Args:
        cluster: where it runs.
        names: of the application and its topics.
        lines: how many there are to count.
        start: starts a process.
        on_progress: called with the number of committed lines.
        on_event: called with a description of each event.
    """

    cluster: Cluster
    names: Names
    lines: int
    start: Callable[[], AppProcess]
    on_progress: Callable[[int], None]
    on_event: Callable[[str], None]
    kills: list[Kill] = field(default_factory=list)
    _seen: int = 0
    _moved_s: float = field(default_factory=time.monotonic)

    def run(self) -> list[Kill]:
        """Count everything, with kills until one of them hit an open transaction.

        Raises:
            RuntimeError: the word count ended unexpectedly, or made no progress.
        """
        while self._wants_a_kill():
            app = self.start()
            try:
                self.on_event(f"Started process {app.pid}.")
                if not self._wait_for_a_moment(app):
                    self._finish(app)
                    return self.kills
                app.kill()
                self._note_the_dead(app)
            finally:
                app.discard()
        app = self.start()
        try:
            self.on_event(f"Started process {app.pid}, by the same command.")
            self._finish(app)
        finally:
            app.discard()
        return self.kills

    def _wants_a_kill(self) -> bool:
        hit = any(kill.open_records for kill in self.kills)
        return not hit and len(self.kills) < KILLS_MAX

    def _wait_for_a_moment(self, app: AppProcess) -> bool:
        """Wait until much, but not all, is committed and a transaction is open.

        Words are written while lines are read, results for a moment before each commit.
        """
        while not self._is_done(app):
            enough = self._seen >= KILL_FROM * self.lines
            if enough and self._has_results() and self._catch_open_transaction(app):
                return True
        return False

    def _has_results(self) -> bool:
        return any(self.cluster.ends(self.names.word_counts, stable=True).values())

    def _catch_open_transaction(self, app: AppProcess) -> bool:
        """Suspend the process in an open transaction, so that it cannot end before the kill."""
        until_s = time.monotonic() + _CATCH_S
        while time.monotonic() < until_s:
            app.hold()
            time.sleep(_ARRIVED_S)
            if self._has_open_records():
                return True
            app.let_go()
            time.sleep(_LOOK_S)
        return False

    def _has_open_records(self) -> bool:
        return any(map(self.cluster.open_records, (self.names.word_counts, self.names.words)))

    def _note_the_dead(self, app: AppProcess) -> None:
        # Requests in flight arrive at the brokers; after that nothing changes any more.
        time.sleep(_DEAD_S)
        lines, words = self._lines(), self.names.words
        kill = Kill(
            app.pid,
            lines,
            self.cluster.visible(words).committed - self.cluster.unread(words),
            sum(map(self.cluster.open_records, self.names.written)),
        )
        self.kills.append(kill)
        self.on_progress(lines)
        self.on_event(
            f"Killed process {app.pid} with SIGKILL. Committed so far: {lines:,} lines read, "
            f"{kill.words:,} words counted."
        )
        if kill.open_records:
            self.on_event(f"{kill.open_records:,} more records stand in an open transaction.")
        else:
            self.on_event("No transaction was open: once more.")

    def _finish(self, app: AppProcess) -> None:
        """Wait until all lines and all words are committed, then stop the process."""
        while not self._is_done(app):
            pass
        app.stop()
        self.on_event(f"All is committed. Stopped process {app.pid} with SIGTERM.")
        # The markers of the last transaction follow its commit.
        while any(map(self.cluster.open_records, self.names.written)):
            time.sleep(_LOOK_S)

    def _is_done(self, app: AppProcess) -> bool:
        words = self.names.words
        if self._look(app) < self.lines or self.cluster.open_records(words):
            return False
        return self.cluster.offsets_left(words) < _FEW and not self.cluster.unread(words)

    def _look(self, app: AppProcess) -> int:
        app.check()
        time.sleep(_LOOK_S)
        lines = self._lines()
        now_s = time.monotonic()
        if lines != self._seen:
            self._seen, self._moved_s = lines, now_s
            self.on_progress(lines)
        elif now_s - self._moved_s > _STALLED_S:
            raise RuntimeError(
                f"the word count has made no progress for {_STALLED_S} s, at line {lines:,} of "
                f"{self.lines:,}; its log is {app.log}"
            )
        return lines

    def _lines(self) -> int:
        return sum(self.cluster.committed(self.names.sentences).values())
