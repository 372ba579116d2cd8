"""Operators that are objects: what one is made with, and what the compiled code asks of it.

Maps, filters and the folds of whole streams are lines of the generated code. A step that keeps
windows, waits for time, joins or runs a user's processor is an object instead, one for each task
and node: the generated code calls its `process` for each record, and it calls `forward` for each
result. It sees time only through its context, and keeps what must outlast it in buffers and in
numbers that are committed beside the input offsets: after an abort a new one is made from those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from headrace.state.buffer import Buffer
from headrace.topology.context.number import Number
from headrace.topology.context.task_facts import TaskFacts
from headrace.topology.errors import EarlierRecordError, RegistryError
from headrace.topology.serdes import Serde

__all__ = [
    "Headers",
    "Number",
    "Operator",
    "OperatorContext",
    "Receive",
    "TableView",
    "TaskFacts",
]

Headers = Sequence[tuple[str, "bytes | None"]] | None


def is_header_name(name: object) -> bool:
    """Return whether a client can write a header of this name.

    Bytes of a name that are not UTF-8 are surrogates, as Python has them in names of files.

    >>> is_header_name("trace"), is_header_name("gr\\udcf6\\udcdfe"), is_header_name("\\ud800")
    (True, True, False)
    """
    if not isinstance(name, str):
        return False
    try:
        name.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


Receive = Callable[[Any, Any, Any, int, Headers], None]
"""Takes key, value, old value, timestamp in ms and headers.

The old value is the one that was forwarded before for the key, where a table forwards; a stream
gives None.
"""


class TableView(Protocol):
    """The present rows of a table, stored or computed from those of another."""

    def get(self, key: Any, /) -> tuple[Any, int]:
        """The value and timestamp of a key, or (None, -1)."""


class Operator(Protocol):
    """A step of one task while it runs."""

    @property
    def pending(self) -> MutableMapping[Any, Any]:
        """What is held back until the next flush; always the same object."""

    def process(self, key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        """Take one record."""

    def flush(self) -> None:
        """Forward everything that is held back."""


def no_stores(name: str) -> Any:
    """Say that there are no stores to open."""
    raise LookupError(f"no store {name!r} can be opened here")


def stop(error: Exception, *_: Any) -> None:
    """Raise an error: no handler lets other records go on."""
    raise error


def raise_earlier(error: Exception, timestamp: int) -> NoReturn:
    """Raise the error of a function that failed on a row while another record reads it."""
    raise EarlierRecordError(error, timestamp)


def no_row(error: Exception, _: int) -> tuple[None, int]:
    """Return that there is no row: the handler was asked when the row changed."""
    if isinstance(error, (MemoryError, RegistryError)):
        raise error
    return None, -1


def told_at_once(_table: str) -> bool:
    """Say that no table's changes wait."""
    return False


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """What one operator of one task works with.

    Args:
        node: the node's name.
        forward: hands a result to all that follow, in declaration order.
        children: the same for each of those that follow, by its name.
        buffers: the stores of the sub-topology by name; an operator uses those of its node.
        serdes: the key and value serdes of a store.
        view: the rows of a table by its node's name.
        number: a number that is kept, by its name within the node; nodes that give the same
            `owner` share it. It begins at -1.
        shared: objects that the nodes of this task share, by what they agree on.
        dropped: to be called with the reason for each record that is left out.
        caching: whether updates may be held back until the next flush.
        task: what the runtime offers to processors.
        old_is_read: whether anything that follows reads the old values of the results.
        open_store: a store of the node as processors see it, by its name.
        failed: to be called with the error of a user's function, and key, value, timestamp and
            headers of the record, where the step goes on if a handler lets it. Where no handler
            does, it raises the error. The error of a record that is not the present one is given
            as an `EarlierRecordError`.
        let_go: to be called with an error and key, value, timestamp and headers of the record,
            where the step has it become a dead letter, whatever the handlers are.
        at_once: whether its results meet what came another way, so that none may wait.
        in_runs: whether they meet records of other sources, so that none may wait for the next run.
        has_its_own: whether nobody else can have got hold of the keys and values that it is given.
        told_late: whether a table's rows may be other ones already than its changes tell so far,
            by its node's name.
        unreadable: called with the error of a function that computes a row that is read, and the
            row's timestamp. Returns the row to use instead: none, if a handler skips records.
    """

    node: str
    forward: Receive
    children: Mapping[str, Receive]
    buffers: Mapping[str, Buffer]
    serdes: Callable[[str], tuple[Serde[Any], Serde[Any]]]
    view: Callable[[str], TableView]
    number: Callable[..., Number]
    shared: MutableMapping[Any, Any]
    dropped: Callable[[str], None]
    caching: bool
    task: TaskFacts
    old_is_read: bool = True
    open_store: Callable[[str], Any] = no_stores
    failed: Callable[[Exception, Any, Any, int, Headers], None] = stop
    let_go: Callable[[Exception, Any, Any, int, Headers], None] = stop
    at_once: bool = False
    in_runs: bool = False
    has_its_own: bool = False
    told_late: Callable[[str], bool] = told_at_once
    unreadable: Callable[[Exception, int], tuple[None, int]] = raise_earlier
