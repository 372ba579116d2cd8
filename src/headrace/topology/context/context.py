"""Base of operators that are objects, and the context that they are created with.

Maps, filters and aggregations of whole streams are lines of the generated code. An operator with
windows, timers, joins or a user's processor is an object, created for each task and node. The
generated code calls its `process` for each record, and the operator calls `forward` for each
result. It knows time only from its context. State that must survive it is in buffers and in numbers
that are committed in the offset metadata: after an abort a new operator is created from these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol

from headrace.state.buffer import Buffer
from headrace.topology.context.number import Number
from headrace.topology.context.task_context import TaskContext
from headrace.topology.errors import EarlierRecordError, RegistryError
from headrace.topology.serdes import Serde

__all__ = [
    "Headers",
    "Number",
    "Operator",
    "OperatorContext",
    "Receive",
    "TableView",
    "TaskContext",
]

Headers = Sequence[tuple[str, "bytes | None"]] | None


def is_header_name(name: object) -> bool:
    r"""Return whether a client can write a header with this name.

    Bytes of a name that are not UTF-8 are surrogates, as in Python's file names.

    >>> is_header_name("trace"), is_header_name("gr\udcf6\udcdfe"), is_header_name("\ud800")
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
"""Function that receives key, value, old value, timestamp in ms and headers.

The old value is the previously forwarded value of the key if a table forwards; None for a stream.
"""


class TableView(Protocol):
    """Read access to the current rows of a table, stored or computed from another table."""

    def get(self, key: Any, /) -> tuple[Any, int]:
        """Return the value and timestamp of a key, or (None, -1)."""


class Operator:
    """Running operator of a task; by default it emits no results when time advances."""

    __slots__ = ()

    pending: MutableMapping[Any, Any]
    """Cached results that the next flush forwards; always the same object."""

    delays_results: ClassVar[bool] = False
    """Whether it may emit results that are earlier than its stream time."""

    def process(self, key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Forward all cached results."""

    # Time advances without a record: an input is idle, or a watermark has advanced.

    @property
    def emits_earlier(self) -> bool:
        """Whether it emits results of earlier records when its time advances."""
        return False

    def has_remaining_results(self) -> bool:
        """Return whether results are due that did not fit into the last commit."""
        return False

    def emit_remaining(self) -> None:
        """Emit the results left by the last commit, within the budget of the next commit."""

    def earliest_waiting(self) -> int | None:
        """Return the earliest time that a waiting result may have; None if no result waits."""
        return None

    def is_due(self, time: int, /) -> bool:  # noqa: ARG002
        """Return whether it emits results when its stream time reaches `time`."""
        return False

    def advance(self, time: int, /) -> None:
        """Advance its stream time without a record."""

    def close_idle(self) -> None:
        """Close open windows as if stream time had passed them, and emit their final results."""


def no_stores(name: str) -> Any:
    raise LookupError(f"no store {name!r} can be opened here")


def raise_error(error: Exception, *_: Any) -> None:
    """Raise an error that no handler skips."""
    raise error


def raise_earlier(error: Exception, timestamp: int) -> NoReturn:
    raise EarlierRecordError(error, timestamp)


def empty_row(error: Exception, _: int) -> tuple[None, int]:
    """Return an empty row, because the handler already handled the error when the row changed."""
    if isinstance(error, (MemoryError, RegistryError)):
        raise error
    return None, -1


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """Context of an operator of a task.

    Args:
        node: The node's name.
        forward: Forwards a result to all downstream nodes, in declaration order.
        children: The same for each downstream node, by its name.
        buffers: Stores of the sub-topology by name; an operator uses the stores of its node.
        serdes: Returns the key and value serdes of a store.
        view: Returns the rows of a table by its node's name.
        number: Returns a committed number by its name within the node; nodes that pass the same
            `owner` share it. Its initial value is -1.
        shared: Objects that the nodes of this task share, by agreed keys.
        dropped: Called with the reason for each record that is dropped.
        caching: Whether updates may be cached until the next flush.
        task: Services of the runtime for processors.
        old_is_read: Whether a downstream node reads the old values of the results.
        open_store: Opens a store of the node as processors see it, by its name.
        failed: Called with the error of a user's function, and key, value, timestamp and headers of
            the record; returns if a handler skips the record, and raises the error otherwise. Wrap
            the error of a record other than the current record in an `EarlierRecordError`.
        send_dead_letter: Called with an error and key, value, timestamp and headers of a record
            that the operator itself sends to the dead-letter topic, independently of the handlers.
        flush_each_record: Whether results are combined with records from another path, so that
            records must not be batched.
        flush_each_run: Whether results are combined with records of other sources, so that a batch
            must not extend beyond the current run.
        owns_records: Whether no other code can reference the keys and values that the operator
            receives.
        forwards_later: Returns whether a table's rows may be newer than its forwarded changes, by
            its node's name.
        row_error: Called with the error of a function that computes a row during a read, and the
            row's timestamp. Returns an empty row if a handler skips records; raises otherwise.
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
    task: TaskContext
    old_is_read: bool = True
    open_store: Callable[[str], Any] = no_stores
    failed: Callable[[Exception, Any, Any, int, Headers], None] = raise_error
    send_dead_letter: Callable[[Exception, Any, Any, int, Headers], None] = raise_error
    flush_each_record: bool = False
    flush_each_run: bool = False
    owns_records: bool = False
    forwards_later: Callable[[str], bool] = lambda _: False
    row_error: Callable[[Exception, int], tuple[None, int]] = raise_earlier
