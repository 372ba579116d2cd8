"""Runs operations on a store from within a processor, one a record, as an application does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import ProcessorContext, Record, StoreBuilder, Topology, serdes
from tests.support.topologies import EXACTLY_ONCE

Operation = Sequence[Any]


class StoreOps:
    """A driver whose only processor does to a store what it is sent.

    Args:
        store: what to work with.
        options: of the driver.
    """

    def __init__(self, store: StoreBuilder[Any], **options: Any) -> None:
        def act(record: Record[Any, Any], context: ProcessorContext[Any, Any]) -> None:
            # What an abort undid comes again, so the record says what it asks for.
            method, *arguments = self._operations[int(record.value)]
            found = getattr(context.store(store), method)(*arguments)
            self._results.append(found if _is_plain(found) else list(found))

        self._operations: list[Operation] = []
        self._results: list[Any] = []
        topology = (
            Topology()
            .add_source("read", "in", key=serdes.string, value=serdes.string)
            .add_processor("act", act, "read", stores=[store])
        )
        self.driver = TopologyTestDriver(topology, EXACTLY_ONCE, **options)

    def do(self, *operation: Any, timestamp: int = 0) -> Any:
        """Call a method of the store; returns its answer, an iterator's as a list."""
        self._operations.append(operation)
        number = str(len(self._operations) - 1)
        self.driver.input("in").send("k", number, timestamp=timestamp)
        return self._results[-1]


def _is_plain(found: Any) -> bool:
    return found is None or isinstance(found, (int, str, bytes, tuple, dict, list))
