"""A worker that is told to process nothing for a while, and keeps its tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.streams.seams.clients import Consumer
from headrace.streams.tasks.intake import Intake
from headrace.streams.tasks.tasks import Tasks
from headrace.streams.worker.commits import Commits


class Pausing:
    """See the module."""

    def __init__(self, consumer: Consumer, tasks: Tasks, intake: Intake, commits: Commits) -> None:
        self._consumer = consumer
        self._tasks = tasks
        self._intake = intake
        self._commits = commits
        self._asked = threading.Event()
        self._heard: Callable[[bool], None] = lambda _: None
        self.is_on = False
        """Whether nothing is processed now, and all that was is committed."""

    def follow(self, asked: threading.Event, heard: Callable[[bool], None]) -> None:
        """Pause while `asked` is set; `heard` is told in the worker's thread when that is so."""
        self._asked, self._heard = asked, heard

    def turn(self) -> bool:
        """Do as one is told; returns whether nothing is to be processed in this turn."""
        if self._asked.is_set():
            if not self.is_on:
                self._commits.commit(ending=[task.id for task in self._tasks.running])
                self.is_on = True
                self._heard(True)
            # In each turn: tasks that have begun since then are read from as all are.
            self._consumer.pause([p for task in self._tasks.running for p in task.inputs])
        elif self.is_on:
            self.is_on = False
            self._intake.resume_all()
            self._heard(False)
        return self.is_on
