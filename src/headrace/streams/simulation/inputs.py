"""Producers of the input of a run, with random order, batches and transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.simulation.world.cluster import Cluster
from headrace.streams.simulation.world.faults import FaultPlan
from headrace.streams.simulation.world.kernel import MS, SECOND, START_MS
from headrace.streams.simulation.world.transactions import RefusedError

Row = tuple[bytes | None, bytes | None, int]
"""Key, value, and milliseconds since the start of the run."""


class Feed:
    """Producer that writes the input over some time, partly in transactions.

    Args:
        plan: determines whether there are foreign transactions.
        seconds: the duration of the input in virtual seconds.
    """

    def __init__(
        self, cluster: Cluster, rows: Mapping[str, Sequence[Row]], plan: FaultPlan, seconds: float
    ) -> None:
        self._cluster = cluster
        self._kernel = cluster.kernel
        self._foreign = plan.foreign_transactions
        self._numbers = 0
        self.left = 0
        """Number of batches and transactions that have not ended."""
        for topic, own in rows.items():
            self._plan(topic, own, int(seconds * SECOND))

    def _plan(self, topic: str, rows: Sequence[Row], span_us: int) -> None:
        random = self._kernel.random
        batches: list[Sequence[Row]] = []
        begin = 0
        while begin < len(rows):
            size = random.randint(1, 8)
            batches.append(rows[begin : begin + size])
            begin += size
        for at_us, batch in zip(
            sorted(random.randrange(span_us + 1) for _ in batches), batches, strict=True
        ):
            self.left += 1
            self._kernel.after(at_us, partial(self._write, topic, batch))

    def _write(self, topic: str, rows: Sequence[Row]) -> None:
        chance = self._kernel.random.random() if self._foreign else 1.0
        if chance < 0.1:
            # Written and aborted: a reader of aborted records would process them twice.
            self._in_transaction(topic, rows, committed=False)
        if chance < 0.2:
            self._in_transaction(topic, rows, committed=True)
        else:
            for row in rows:
                self._append(self._place(topic, row), row, None)
        self.left -= 1

    def _in_transaction(self, topic: str, rows: Sequence[Row], *, committed: bool) -> None:
        self._numbers += 1
        name = f"input-{self._numbers}"
        transactions = self._cluster.transactions
        epoch = transactions.init(name, 60 * SECOND)
        for row in rows:
            tp = self._place(topic, row)
            self._append(tp, row, transactions.join(name, epoch, tp))
        self.left += 1

        def end() -> None:
            try:
                transactions.end(name, epoch, committed=committed)
            except RefusedError as refused:  # no other client ends it
                raise AssertionError(name) from refused
            self.left -= 1

        late = self._kernel.chance(0.3)
        self._kernel.after(self._kernel.between(MS, (5 * SECOND) if late else 50 * MS), end)

    def _place(self, topic: str, row: Row) -> TopicPartition:
        # Once per row: without a key, the next call returns another partition.
        return self._cluster.route(topic, row[0], -1)

    def _append(self, tp: TopicPartition, row: Row, txn: Any) -> None:
        key, value, at_ms = row
        self._cluster.append(tp, key, value, START_MS + at_ms, None, txn)
