"""Sanitizing of errors that leave an executor.

Spark writes errors with their causes to the logs of executors and driver, and to its event log,
all of which other people can read. The message of an error that is not Headrace's may quote a
record, so only its type and the user's lines of code are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.spark_bridge.errors import BackfillError
from headrace.streams.tasks.failures import describe_failure, is_ours

_QUOTES_NOTHING = (ImportError, MemoryError, OSError)
"""Errors of the system and of Python; errors of user functions are wrapped in Headrace's errors."""


@contextmanager
def sealed(*, full: bool) -> Iterator[None]:
    """Remove text that may quote a record from errors that leave the block.

    Args:
        full: keep the whole text of every error, because the setting `log.errors` is full.

    Raises:
        Exception: an error of Headrace or of the system, without its causes.
        BackfillError: in place of any other error.

    Example:
        >>> with sealed(full=False):
        ...     int("a value")
        Traceback (most recent call last):
            ...
        headrace.spark_bridge.errors.BackfillError: ValueError (set log.errors=full to have its \
text) at <doctest headrace.spark_bridge.records.executor_errors.sealed[0]>:2 <module>
    """
    try:
        yield
    except Exception as error:
        if full:
            raise
        said = error
        failure = describe_failure(error, full=False)
        where = f" at {failure.places[-1]}" if failure.places else ""
        if not is_ours(error) and not isinstance(error, _QUOTES_NOTHING):
            said = BackfillError(
                f"{type(error).__name__} (set log.errors=full to have its text){where}"
            )
        elif where:
            said.add_note(f"raised{where}")
        raise said from None
