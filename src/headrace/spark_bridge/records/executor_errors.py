"""What an error says that leaves an executor.

Spark writes it with all its causes to the logs of executors and driver, and to its event log, which
others read. The text of an error that is not ours may quote a record, so it stays behind; its type
and the user's lines go along.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.spark_bridge.errors import BackfillError
from headrace.streams.tasks.failures import describe_failure, is_ours

_QUOTES_NOTHING = (ImportError, MemoryError, OSError)
"""Of the system and of Python; what functions of the user raise has an error of ours around it."""


@contextmanager
def sealed(*, full: bool) -> Iterator[None]:
    """Let errors out of the block without what may quote a record.

    Args:
        full: whether the setting `log.errors` has the texts of all errors said.

    Raises:
        Exception: an error of ours, or of the system, without its causes.
        BackfillError: in the place of any other.

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
