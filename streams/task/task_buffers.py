"""The buffers of a task's stores: how they are made, and what a commit takes from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.state.buffer import Buffer
from headrace.state.buffers import make_buffer
from headrace.state.store import TaskState
from headrace.state.timed import TimedBuffer
from headrace.streams.plan.task_spec import TaskSpec
from headrace.topology.serdes.kept import exact_types, keeper

Delta = list[tuple[bytes, "bytes | None", int]]
LocalRows = Sequence[tuple[bytes, "bytes | None"]]


def buffers_of(spec: TaskSpec, state: TaskState) -> dict[str, Buffer]:
    """Make the buffers of a task, over its local state."""
    found = {}
    for store in spec.stores:
        serde = spec.value_serdes[store.name]
        found[store.name] = make_buffer(
            store.spec,
            state.store(store.name),
            encode=serde.serialize,
            decode=serde.deserialize,
            hold=spec.program.holds[store.name],
            exact=exact_types(serde),
            keep=keeper(serde),
        )
    return found


def oldest_times(buffers: Mapping[str, Buffer]) -> dict[str, int]:
    """By store with windows: the earliest of those that the next commit writes."""
    found = {}
    for name, buffer in buffers.items():
        if isinstance(buffer, TimedBuffer) and (oldest := buffer.oldest_written()) is not None:
            found[name] = oldest
    return found


def local_rows(buffers: Mapping[str, Buffer], deltas: Mapping[str, Delta]) -> dict[str, LocalRows]:
    """The rows to write to local state: what changed, and what has expired."""
    rows: dict[str, LocalRows] = {}
    for name, buffer in buffers.items():
        changed = buffer.local_rows(deltas.get(name, []))
        if changed:
            rows[name] = changed
    return rows
