"""External sinks of a run: they outlive the workers that write to them, and they fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

from headrace.streams.simulation.world.faults import Faults, crash
from headrace.streams.simulation.world.kernel import MS, SECOND
from headrace.streams.simulation.world.process import SimulatedProcess
from headrace.streams.tasks.sink_connections import OpenSink
from headrace.topology.external_sink import (
    ExternalSink,
    SinkBatch,
    SinkBatching,
    SinkConnection,
    SinkFencedError,
    SinkUnavailableError,
)
from headrace.topology.operators.outbox import MemorySink

T = TypeVar("T")

TIMEOUT_US = 2 * SECOND
HELD_MAX = timedelta(seconds=2)
"""Maximum time to collect rows, because a run is shorter than the usual intervals of sinks."""


class Tables:
    """External sinks of a run, by the operators that write to them."""

    def __init__(self) -> None:
        self.by_node: dict[str, MemorySink] = {}

    def opening(self, process: SimulatedProcess, faults: Faults) -> OpenSink:
        def open_sink(sink: ExternalSink, name: str) -> SinkConnection:
            node = name.rpartition("/")[2]
            table = self.by_node.setdefault(node, MemorySink(keyed=sink.keyed))
            return _SimulatedConnection(table.open(name), process, faults, _shortened(sink))

        return open_sink


@dataclass(slots=True, eq=False)
class _SimulatedConnection:
    inner: SinkConnection
    process: SimulatedProcess
    faults: Faults
    batching: SinkBatching | None

    def positions(self, source: str, partitions: Sequence[int], /) -> Mapping[int, int]:
        return self._call("sink.positions", lambda: self.inner.positions(source, partitions))

    def write(self, batch: SinkBatch, /) -> None:
        self._call("sink.write", lambda: self._write(batch))

    def _write(self, batch: SinkBatch) -> None:
        rate = self.faults.plan.sink_rate
        if rate is not None:
            took_us = int(len(batch.rows) / rate * SECOND)
            self.process.sleep(min(took_us, TIMEOUT_US))
            if took_us > TIMEOUT_US:
                raise SinkUnavailableError("simulated: statement timeout", timed_out=True)
        self.inner.write(batch)

    def _call(self, call: str, effect: Callable[[], T]) -> T:
        process, faults = self.process, self.faults
        process.check()
        kind = faults.draw(process, call)
        if kind == "crash_before":
            raise crash(process)
        if kind == "unreachable":
            process.sleep(process.kernel.between(MS, 20 * MS))
            raise SinkUnavailableError("simulated")
        if kind in ("timeout_done", "timeout_late"):
            late_us = MS if kind == "timeout_done" else TIMEOUT_US + 2 * SECOND
            process.kernel.after(process.kernel.between(1, late_us), lambda: _arrive(effect))
            process.sleep(TIMEOUT_US)
            raise SinkUnavailableError("simulated: no answer")
        return faults.serve(process, kind, effect)

    def close(self) -> None:
        self.inner.close()


def _shortened(sink: ExternalSink) -> SinkBatching | None:
    batching: SinkBatching | None = getattr(sink, "batching", None)
    return batching and replace(batching, every=min(batching.every, HELD_MAX))


def _arrive(effect: Callable[[], object]) -> None:
    """Run a statement after its client has timed out."""
    try:
        effect()
    except SinkFencedError:
        return  # another writer has written in the meantime
