"""Cleanup calls that run after a block and do not mask its error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.state.log import get_logger
from headrace.streams.tasks.failures import describe_failure


@contextmanager
def cleanup_after(*calls: Callable[[], object], quietly: bool = False) -> Iterator[None]:
    """Run the block, then every cleanup call, and raise the first error.

    Errors after the first one are logged.

    Args:
        quietly: log the errors of all cleanup calls instead of raising them.

    >>> with cleanup_after(lambda: 1 / 0):
    ...     raise KeyError("the cause")
    Traceback (most recent call last):
        ...
    KeyError: 'the cause'
    """
    first: BaseException | None = None
    try:
        yield
    except BaseException as error:  # has priority over errors of the calls
        first = error
    for call in calls:
        try:
            call()
        except Exception as error:
            if first is None and not quietly:
                first = error
                continue
            # In executors, the error may be a user's and quote a record.
            reason = describe_failure(error, full=False).reason
            get_logger().warning("cleanup_failed", reason=reason)
    if first is not None:
        raise first
