"""Errors of executors: sanitized where they are raised, and explained in the driver.

Spark writes errors with their causes to the logs of executors and driver, and to its event log,
all of which other people can read. The message of an error that is not Headrace's may quote a
record, so only its type and the user's lines of code are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.spark_bridge.errors import BackfillError
from headrace.streams.errors import StreamsError
from headrace.streams.kafka.acls import AccessError
from headrace.streams.tasks.failures import describe_failure, is_ours

_QUOTES_NOTHING = (ImportError, MemoryError, OSError)
"""Errors of the system and of Python; errors of user functions are wrapped in Headrace's errors."""
_OWN_ERROR = re.compile(r"^headrace(?:\.\w+)+(?:Error)?: (.+?)(?=^\s*$|\Z)", re.M | re.S)
_DENIED = re.compile(
    r"^headrace(?:\.\w+)*\.(?:AccessError|GroupDeniedError): (.+?)(?=^\s*$|\Z)", re.M | re.S
)
_MISSING_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([^']+)'", re.M)


@contextmanager
def without_record_texts(*, full: bool) -> Iterator[None]:
    """Remove text that may quote a record from errors that leave the block.

    Args:
        full: keep the whole text of every error, because the setting `log.errors` is full.

    Raises:
        Exception: an error of Headrace or of the system, without its causes.
        BackfillError: in place of any other error.

    Examples:
        >>> with without_record_texts(full=False):
        ...     int("a value")
        Traceback (most recent call last):
            ...
        headrace.spark_bridge.errors.BackfillError: ValueError (set log.errors=full to have its \
text) at <doctest headrace.spark_bridge.executor_errors.without_record_texts[0]>:2 <module>
    """
    try:
        yield
    except Exception as error:
        if full:
            raise
        sanitized = error
        failure = describe_failure(error, full=False)
        where = f" at {failure.places[-1]}" if failure.places else ""
        if not is_ours(error) and not isinstance(error, _QUOTES_NOTHING):
            sanitized = BackfillError(
                f"{type(error).__name__} (set log.errors=full to have its text){where}"
            )
        elif where:
            sanitized.add_note(f"raised{where}")
        raise sanitized from None


def executor_error(what: str, error: Exception, fix: str = "") -> StreamsError:
    """Explain an executor's error without Spark's stack frames.

    Returns:
        An AccessError if the executor lacks an ACL or was rejected, otherwise a BackfillError;
        `what` failed, and `fix` follows the reason.
    """
    if denied := _DENIED.findall(str(error)):
        return AccessError(f"{what}: {_on_one_line(denied[-1])}{fix}")
    found = _OWN_ERROR.findall(str(error))
    missing = _MISSING_MODULE.findall(str(error))
    if missing and not found:
        return BackfillError(
            f"{what}: the Python of the executors has no module {missing[-1]!r}. Install "
            "headrace[spark] and the application's dependencies there, or select another Python "
            "with PYSPARK_PYTHON or the setting spark.pyspark.python, and run the backfill again"
        )
    reason = _on_one_line(found[-1]) if found else f"{type(error).__name__}: {error}"
    fix = fix or ". Nothing is visible. Correct the cause, and run the backfill again"
    return BackfillError(f"{what}: {reason}{fix}")


@contextmanager
def explained_results() -> Iterator[None]:
    """Explain errors of Spark while results are brought to the driver."""
    try:
        yield
    except (StreamsError, GeneratorExit, KeyboardInterrupt):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}{f': {lines[0]}' if lines else ''}"
        raise BackfillError(
            f"Spark's driver cannot fetch the results ({reason}). If its JVM has ended or lacks "
            "memory, increase it (--conf spark.driver.memory=4g, or config= of local_session) or "
            "bypass the driver with handover='partitioned', and run the backfill again"
        ) from error


def _on_one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.strip().splitlines())
