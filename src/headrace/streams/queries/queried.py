"""What a `KafkaStreams` can be asked of its stores."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.state.events.log import get_logger
from headrace.streams.config.config import StreamsConfig
from headrace.streams.facts.board import Board
from headrace.streams.facts.embedded import board_of
from headrace.streams.facts.watched import Watched
from headrace.streams.facts.web import WebServer, open_web
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SubPlan
from headrace.streams.queries.errors import ApplicationFailedError
from headrace.streams.questions.desk import Desk
from headrace.streams.questions.question import Ask
from headrace.streams.records.failures import describe_failure

if TYPE_CHECKING:
    from headrace.streams.queries.queries import Queries


class Queried(Watched):
    """The part of `KafkaStreams` that answers what is in its stores."""

    config: StreamsConfig
    _plans: tuple[SubPlan, ...]
    _global_plans: tuple[GlobalPlan, ...]

    def __init__(self) -> None:
        super().__init__()
        self._queries_lock = threading.Lock()
        self._queries: Queries | None = None
        self.desk = Desk()
        """Where the own worker takes questions about rows in its memory."""

    def _asked(self) -> dict[int, Ask] | None:
        raise NotImplementedError

    def _failed_with(self) -> BaseException | None:
        raise NotImplementedError

    def _require_working(self) -> None:
        failure = self._failed_with()
        if failure is not None:
            reason = describe_failure(failure, full=self.config.log_errors == "full").reason
            raise ApplicationFailedError(self.config.application_id, reason) from failure

    def queries(self) -> Queries:
        """The stores of this application on this host, whichever processes work on it.

        They have the rows of the partitions that this host has; `headrace.connect` asks all hosts.
        """
        from headrace.streams.queries.queries import Queries  # loads RocksDB

        with self._queries_lock:
            if self._queries is None:
                self._queries = Queries(
                    self.config,
                    self._plans,
                    self._global_plans,
                    facts=self._told,
                    workers=self._asked,
                    require_working=self._require_working,
                )
            return self._queries

    def store(self, name: str, *, max_age: timedelta | None = None) -> Any:
        """A store's committed rows, to be read by any thread; see docs/query.md.

        They are read from the files in ``state.dir`` beside the worker, so that it is not waited
        for and loses no time. The tasks of this host are seen, those of other processes too, also
        while the application does not run. While it runs, what a task has left behind here that
        moved to another host more than a minute ago is refused (`NotReadableError`). Rows of a
        store in memory are asked of the workers in this process, which answer between two batches
        while they run.

        It has the rows of the partitions that this host has: a key of another host's partition is
        not found. `places()` tells which are here, and `headrace.connect` asks all hosts.

        Args:
            name: the store's.
            max_age: for how long changes may be missing, over that rule; a long one takes what a
                task has left behind as well.

        Returns:
            A reader for its kind: `get`, `get_many`, `range`, `prefix_scan`, `all` and `count` of
            a key-value store or a table, `fetch` of one with windows or sessions, and `as_of` of a
            versioned one.

        Raises:
            NoSuchStoreError: the application has no such store; the message has those there are.
                Each read raises `ApplicationFailedError` after the application has failed.

        Example:
            >>> from headrace import KafkaStreams, StreamsBuilder, serdes
            >>> builder = StreamsBuilder()
            >>> words = builder.stream("words", key=serdes.string, value=serdes.string)
            >>> words.group_by_key().count(store="counts").to_stream().to("counted")
            >>> app = KafkaStreams(builder.build(), {
            ...     "application.id": "counts", "bootstrap.servers": "localhost:9092"})
            >>> app.store("counts")
            <KeyValueReader of 'counts'>
        """
        return self.queries().store(name, max_age=max_age)

    def serve(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        token_file: Path | None = None,
        queries: bool = False,
    ) -> WebServer:
        """Serve metrics, health and JSON in a thread of this process; needs ``headrace[web]``.

        Args:
            port: 0 takes a free one; the `url` of what is returned tells which.
            host: another one than this machine's own wants a token.
            token_file: holds what whoever asks must send, but for health.
            queries: whether stores may be asked for as well.

        Returns:
            What serves, until its `close`.

        Raises:
            ConfigError: it cannot be served there, or what it needs is not installed.
        """

        def board() -> Board:
            return board_of(self.metrics(), time.monotonic(), self._drawn())

        def set_level(level: str) -> str:
            from headrace.streams import logs  # loads structlog

            logs.set_level(level)
            return logs.LEVEL_SAID.format(level=level)

        return open_web(
            board,
            f"{host}:{port}",
            log=get_logger(),
            token_file=token_file,
            set_level=set_level,
            queries=self.queries if queries else None,
        )
