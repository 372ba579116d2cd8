"""What a running application can be asked, and told, from any thread."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from headrace.state.events.log import get_logger
from headrace.streams import logs
from headrace.streams.facts.board import Board
from headrace.streams.facts.embedded import board_of
from headrace.streams.facts.snapshots import ApplicationSnapshot, InputSnapshot, TaskSnapshot
from headrace.streams.facts.takeovers import without_taken
from headrace.streams.facts.web import WebServer, open_web


class Watched:
    """The part of `KafkaStreams` that tells how it is doing."""

    def __init__(self) -> None:
        self._pause = threading.Event()

    def _told(self) -> ApplicationSnapshot:
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

    def serve(
        self, port: int, *, host: str = "127.0.0.1", token_file: Path | None = None
    ) -> WebServer:
        """Serve metrics, health and JSON in a thread of this process; needs ``headrace[web]``.

        Args:
            port: 0 takes a free one; the `url` of what is returned tells which.
            host: another one than this machine's own wants a token.
            token_file: holds what whoever asks must send, but for health.

        Returns:
            What serves, until its `close`.

        Raises:
            ConfigError: it cannot be served there, or what it needs is not installed.
        """

        def board() -> Board:
            return board_of(self.metrics(), time.monotonic())

        def set_level(level: str) -> str:
            logs.set_level(level)
            return logs.LEVEL_SAID.format(level=level)

        return open_web(
            board, f"{host}:{port}", log=get_logger(), token_file=token_file, set_level=set_level
        )

    def pause(self) -> None:
        """Process nothing until `resume`; what was processed is committed, and nothing is left.

        The application stays in its group and keeps its tasks; what is being restored goes on. Its
        state is `PAUSED` once that is so. Punctuators by the wall clock wait, too.
        """
        self._pause.set()

    def resume(self) -> None:
        """Process again after `pause`."""
        self._pause.clear()
