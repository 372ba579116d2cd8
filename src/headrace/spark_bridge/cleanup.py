"""Lets go of things at the end, without hiding why it came to that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.state.log import get_logger
from headrace.streams.tasks.failures import describe_failure


@contextmanager
def and_then(*calls: Callable[[], object], quietly: bool = False) -> Iterator[None]:
    """Run the block and then the calls, all of them; the first error is the one that is raised.

    Args:
        quietly: whether nothing depends on them: their own errors are logged alone.

    >>> with and_then(lambda: 1 / 0):
    ...     raise KeyError("the cause")
    Traceback (most recent call last):
        ...
    KeyError: 'the cause'
    """
    first: BaseException | None = None
    try:
        yield
    except BaseException as error:  # whatever it is, it comes before what follows
        first = error
    for call in calls:
        try:
            call()
        except Exception as error:
            if first is None and not quietly:
                first = error
                continue
            # In executors it may be a user's, and quote a record.
            reason = describe_failure(error, full=False).reason
            get_logger().warning("cleanup_failed", reason=reason)
    if first is not None:
        raise first
