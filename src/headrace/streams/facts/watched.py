"""What a running application can be asked, and told, from any thread."""

from __future__ import annotations

import threading

from headrace.streams.facts.snapshots import ApplicationSnapshot, InputSnapshot, TaskSnapshot
from headrace.streams.facts.takeovers import without_taken
from headrace.topology.show.picture import Picture


class Watched:
    """The part of `KafkaStreams` that tells how it is doing."""

    def __init__(self) -> None:
        self._pause = threading.Event()

    def _told(self) -> ApplicationSnapshot:
        raise NotImplementedError

    def _drawn(self) -> Picture:
        raise NotImplementedError

    def metrics(self) -> ApplicationSnapshot:
        """What can be told in numbers of this process: workers, tasks, stores, input partitions.

        A snapshot that is at most a second old, and older where the worker is busy with one thing;
        asking costs next to nothing, and any thread may. Counts begin with the process.

        Example:
            >>> from headrace import KafkaStreams, StreamsBuilder
            >>> builder = StreamsBuilder()
            >>> builder.stream("in").to("out")
            >>> app = KafkaStreams(builder.build(), {
            ...     "application.id": "copy", "bootstrap.servers": "localhost:9092"})
            >>> (worker,) = app.metrics().workers
            >>> worker.state, worker.facts
            ('created', None)
        """
        return self._told()

    def tasks(self) -> tuple[TaskSnapshot, ...]:
        """The tasks that this process has; see `metrics`."""
        return without_taken(self.metrics()).tasks

    def lags(self) -> tuple[InputSnapshot, ...]:
        """How far this process is behind in each input partition that it reads; see `metrics`."""
        return without_taken(self.metrics()).inputs

    def pause(self) -> None:
        """Process nothing until `resume`; what was processed is committed, and nothing is left.

        The application stays in its group and keeps its tasks; what is being restored goes on. Its
        state is `PAUSED` once that is so. Punctuators by the wall clock wait, too.
        """
        self._pause.set()

    def resume(self) -> None:
        """Process again after `pause`."""
        self._pause.clear()
