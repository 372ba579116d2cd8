"""Which record an error of a task is about."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from headrace.state.errors import StoreCorruptedError
from headrace.streams.errors import RecordError, StreamsError
from headrace.streams.plan.task_spec import TaskId, TaskSpec
from headrace.streams.records.blame import Suspect, error_in_ranges
from headrace.streams.records.handlers import HandlerFailedError
from headrace.streams.worker_errors import RecordTooLargeError, TaskCorruptedError
from headrace.topology.errors import (
    BadRecordError,
    BufferFullError,
    CallError,
    EarlierRecordError,
    NullKeyError,
    PartialError,
    RefusedTimestampError,
    RegistryError,
    ReturnedError,
    SerdeError,
    TopologyError,
)
from headrace.topology.external_sink import SinkRefusedError
from headrace.topology.functions import is_ours
from headrace.topology.serdes.partials import said_of_partial

_TOLD = (
    BadRecordError,
    SerdeError,
    RegistryError,
    TopologyError,
    RecordTooLargeError,
    HandlerFailedError,
    SinkRefusedError,
)
"""What says itself what happened, and quotes no record."""

Suspects = Callable[[], Suspect]
"""What was processed since the last commit."""


def raise_for(
    error: BaseException, spec: TaskSpec, suspect: Suspects, node: str | None, record: Any
) -> NoReturn:
    """Say which record an error is about; the clients' errors are not about one."""
    if not isinstance(error, Exception) and not _is_the_users(error):
        raise error
    if isinstance(error, StreamsError) and not isinstance(error, RecordTooLargeError):
        raise error
    if isinstance(error, StoreCorruptedError):
        raise TaskCorruptedError([str(spec.id)], str(error)) from error
    if node is None:
        node, record = spec.program.locate(error.__traceback__)
    elif record is None:
        # A punctuator by stream time runs behind the record that has made it due.
        record = spec.program.current(sys._getframe())
    # A handler that failed at bytes nobody could decode is no error of their serde.
    is_said = isinstance(error, (HandlerFailedError, RecordTooLargeError))
    cause: BaseException = error
    if isinstance(error, Exception) and not is_said:
        cause = spec.program.explain(error, node, record)
    failure = _record_error(spec, suspect, cause, node, record)
    likely = isinstance(cause, (ReturnedError, CallError)) or not isinstance(cause, _TOLD)
    if isinstance(error, HandlerFailedError):
        failure.functions = error.places
    else:
        raised = error.error if isinstance(error, EarlierRecordError) else error
        failure.functions = spec.program.called(raised, node, likely=likely)
    raise failure from cause


def range_error(
    suspect: Suspect, message: str, *, node: str | None, store: str | None
) -> StreamsError:
    """An error behind a cache or at the commit: one of the records since the last commit."""
    return error_in_ranges(suspect.ranges, message, node=node, store=store, task_id=suspect.task_id)


def _record_error(
    spec: TaskSpec, suspect: Suspects, error: BaseException, node: str | None, record: Any
) -> StreamsError:
    message = _what_happened(error) + _of_partial(spec, error, record)
    store = error.store if isinstance(error, NullKeyError) else _store_of(spec, node)
    message += _of_row(error, store)
    if record is None:
        found = suspect()
        if isinstance(error, RefusedTimestampError):
            found = found.for_its_time()
        if found.ranges != found.far:
            message += _of_folded(spec, node)
        return range_error(found, message, node=node, store=store)
    return RecordError(
        message,
        topic=record.topic(),
        partition=record.partition(),
        offset=record.offset(),
        timestamp=record.timestamp()[1],
        node=node,
        store=store,
        task_id=str(spec.id),
        hint=_hint(error, store),
        unread=isinstance(error, (SerdeError, RegistryError)) and _is_source(spec, node),
    )


def _of_partial(spec: TaskSpec, error: BaseException, record: Any) -> str:
    """Say of a record that stands for several ones that it does, unless the error says it."""
    if record is None or record.topic() not in spec.internal_topics:
        return ""
    said = said_of_partial(record.headers(), record.value())
    return "" if said is None or isinstance(error, PartialError) else f"; the record is {said}"


def _of_row(error: BaseException, store: str | None) -> str:
    """Name the store whose row the bytes may be, if a serde cannot read them there."""
    if not _is_unread_row(error, store):
        return ""
    return f"; these may be bytes of a row of store {store!r} that another version has written"


def _is_unread_row(error: BaseException, store: str | None) -> bool:
    return isinstance(error, SerdeError) and "cannot decode" in str(error) and store is not None


def _hint(error: BaseException, store: str | None) -> str | None:
    """Return what to do where skipping the record does not help; None where it does."""
    if isinstance(error, EarlierRecordError):
        then = "correct the function, and do not skip this record"
    elif isinstance(error, BufferFullError):
        then = "raise the bound of its BufferConfig, or emit early where results need not be final"
    elif _is_unread_row(error, store):
        then = f"run the version that wrote store {store!r}, or give the store another name"
    else:
        return None
    return f"nothing past it is committed: {then}"


def _of_folded(spec: TaskSpec, node: str | None) -> str:
    """Say how to find one of the records that were folded before a repartition topic."""
    sinks = [n.as_sink for n in spec.program.sub_topology.nodes if n.name == node]
    if not any(sink is not None and sink.combines is not None for sink in sinks):
        return ""
    return "; several records were folded to it: start with topology.optimization=none to name one"


def _is_source(spec: TaskSpec, node: str | None) -> bool:
    return any(source.name == node for source in spec.program.sub_topology.sources)


def _store_of(spec: TaskSpec, node: str | None) -> str | None:
    nodes = spec.program.sub_topology.nodes
    return next((s for n in nodes if n.name == node for s in n.stores), None)


@contextmanager
def corruption_of(task_id: TaskId) -> Iterator[None]:
    """Say of broken local files whose they are, so that the worker rebuilds that task.

    Raises:
        TaskCorruptedError: instead of a `StoreCorruptedError`.
    """
    try:
        yield
    except StoreCorruptedError as error:
        raise TaskCorruptedError([str(task_id)], str(error)) from error


def _is_the_users(error: BaseException) -> bool:
    """Whether what is no `Exception` was raised by code that the task has called.

    Ctrl-C comes wherever the program happens to be, and what ends a test or a simulated process
    comes from our own.
    """
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if isinstance(error, SystemExit):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and not is_ours(str(frames[-1].f_globals.get("__name__", "")))


def _what_happened(error: BaseException) -> str:
    """Name the error without its text where a user's function may have quoted the record."""
    if isinstance(error, _TOLD):
        return str(error)
    if not isinstance(error, Exception):
        return (
            f"a user function raised {type(error).__name__}, which ends the application and asks "
            "no handler; raise an Exception where the record alone is to fail"
        )
    return f"a user function raised {type(error).__name__}"
