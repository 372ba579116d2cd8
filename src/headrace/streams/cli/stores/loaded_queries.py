"""The stores of an application that runs in other processes: it is loaded here for its serdes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.streams.cli.options import load
from headrace.streams.facts.snapshots import ApplicationSnapshot
from headrace.streams.questions.question import Workers

if TYPE_CHECKING:
    from headrace.streams.queries.queries import Queries


class LoadedQueries:
    """Loads the application when it is asked for first, and not before.

    Args:
        target: names the application.
        settings: over its own.
        facts: what the workers tell of themselves; None where there are none to ask.
        workers: asks them about rows in their memory.
    """

    def __init__(
        self,
        target: str,
        settings: Mapping[str, Any],
        facts: Callable[[], ApplicationSnapshot] | None = None,
        workers: Workers = lambda: None,
    ) -> None:
        self._target = target
        self._settings = settings
        self._facts = facts
        self._workers = workers
        self._lock = threading.Lock()
        self._queries: Queries | None = None
        self.endpoint: str | None = None
        """Where this host serves its stores, unless the settings say where others reach them."""

    def __call__(self) -> Queries:
        """Give what its stores are asked with.

        Raises:
            StreamsError: the application cannot be loaded, or refuses its settings.
            TopologyError: its topology cannot run.
        """
        from headrace.streams.queries.queries import Queries

        with self._lock:
            if self._queries is None:
                app = load(self._target, self._settings)
                config = app.config
                if config.application_server is None:
                    config = replace(config, application_server=self.endpoint)
                self._queries = Queries(
                    config,
                    app.plans,
                    app.global_plans,
                    facts=self._facts,
                    workers=self._workers,
                )
            return self._queries
