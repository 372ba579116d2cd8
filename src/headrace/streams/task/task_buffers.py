"""The buffers of a task's stores: how they are made, and what a commit takes from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from headrace.state.buffer import Buffer
from headrace.state.buffers import make_buffer
from headrace.state.store import TaskState
from headrace.state.timed import TimedBuffer
from headrace.streams.plan.task_spec import TaskSpec
from headrace.topology.serdes import Serde
from headrace.topology.serdes.kept import exact_types, keeper, kept

Delta = list[tuple[bytes, "bytes | None", int]]
_NULL = frozenset({type(None)})
LocalRows = Sequence[tuple[bytes, "bytes | None"]]


def buffers_of(spec: TaskSpec, state: TaskState) -> dict[str, Buffer]:
    """Make the buffers of a task, over its local state."""
    found = {}
    for store in spec.stores:
        serde, hold = spec.value_serdes[store.name], spec.program.holds[store.name]
        # A handler skips the record that makes a row which cannot be encoded, so look at once.
        checks = spec.program.options.handles_errors and hold == "bytes"
        found[store.name] = make_buffer(
            store.spec,
            state.store(store.name),
            encode=serde.serialize,
            decode=serde.deserialize,
            hold=hold,
            exact=_NULL if checks else exact_types(serde),
            keep=partial(_checked, serde) if checks else keeper(serde),
        )
    return found


def _checked(serde: Serde[Any], value: Any) -> Any:
    """Return what a store holds of a value; raise if the value cannot be encoded."""
    serde.serialize(value)
    return kept(serde, value)


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
