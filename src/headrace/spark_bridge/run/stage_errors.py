"""Short messages for errors of executors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.spark_bridge.errors import BackfillError
from headrace.streams.errors import StreamsError
from headrace.streams.kafka.access_errors import AccessError

_OWN_ERROR = re.compile(r"^headrace(?:\.\w+)+(?:Error)?: (.+?)(?=^\s*$|\Z)", re.M | re.S)
_DENIED = re.compile(
    r"^headrace(?:\.\w+)*\.(?:AccessError|GroupDeniedError): (.+?)(?=^\s*$|\Z)", re.M | re.S
)
_MISSING_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([^']+)'", re.M)


def stage_error(stage: tuple[int, ...], error: Exception) -> StreamsError:
    """Convert an executor's error to a message without Spark's stack frames."""
    subs = ", ".join(map(str, stage))
    what = f"sub-topology {subs} could not be computed"
    return denied(what, error) or BackfillError(f"{what}: {_said(error)}")


def denied(what: str, error: Exception, way_out: str = "") -> AccessError | None:
    """Return an AccessError if the executor lacks an ACL or was rejected; None for other errors."""
    found = _DENIED.findall(str(error))
    return AccessError(f"{what}: {_on_one_line(found[-1])}{way_out}") if found else None


def archive_error(topic: str, error: Exception) -> BackfillError:
    return BackfillError(f"the archive of {topic} could not be read: {_said(error)}")


@contextmanager
def said_of_results() -> Iterator[None]:
    """Explain errors of Spark while results are brought to the driver."""
    try:
        yield
    except (StreamsError, GeneratorExit, KeyboardInterrupt):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        said = f"{type(error).__name__}: {lines[0] if lines else 'it said no more'}"
        raise BackfillError(
            f"what was computed could not be brought to Spark's driver ({said}); nothing is "
            "visible. If its JVM has ended or has too little memory, give it more "
            "(--conf spark.driver.memory=4g, or config= of local_session), or leave the driver out "
            "with handover='partitioned'; then run the backfill again"
        ) from error


def _said(error: Exception) -> str:
    """Return the message of an executor's error, with the fix."""
    found = _OWN_ERROR.findall(str(error))
    missing = _MISSING_MODULE.findall(str(error))
    if missing and not found:
        return (
            f"the Python of the executors has no module {missing[-1]!r}; nothing is visible: "
            "install headrace[spark] and what the application imports there, or name another "
            "Python with PYSPARK_PYTHON or the setting spark.pyspark.python, and run the backfill "
            "again"
        )
    what = _on_one_line(found[-1]) if found else f"{type(error).__name__}: {error}"
    return f"{what}; nothing is visible: correct the cause and run the backfill again"


def _on_one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.strip().splitlines())
