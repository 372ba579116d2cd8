"""The first error is the one that is raised, whatever follows."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from headrace.spark_bridge.cleanup import cleanup_after
from headrace.streams.errors import FatalClientError


class Gone(Exception):  # noqa: N818 - the word for it
    """What everything says once a JVM has ended."""


def fail() -> None:
    raise Gone


@pytest.mark.parametrize("quietly", [False, True])
@pytest.mark.parametrize("first", [MemoryError, KeyboardInterrupt])
def test_the_first_error_is_raised_and_all_calls_are_made(
    first: type[BaseException], quietly: bool
) -> None:
    made: list[int] = []
    with pytest.raises(first), cleanup_after(fail, lambda: made.append(1), fail, quietly=quietly):
        raise first
    assert made == [1]


def test_without_one_the_first_of_the_calls_is_raised_unless_nothing_depends_on_it() -> None:
    made: list[int] = []
    with pytest.raises(Gone), cleanup_after(fail, lambda: made.append(1)):
        pass
    with cleanup_after(fail, lambda: made.append(2), quietly=True):
        pass
    assert made == [1, 2]


@pytest.mark.parametrize(
    ("error", "said"),
    [(ValueError("c4n4ry"), "ValueError; set log.errors"), (FatalClientError("gone"), "gone")],
)
def test_what_is_said_of_it_quotes_no_record(error: Exception, said: str) -> None:
    def close() -> None:
        raise error

    with capture_logs() as logs, cleanup_after(close, quietly=True):
        pass
    (entry,) = logs
    assert entry["event"] == "cleanup_failed"
    assert entry["reason"].startswith(said)
    assert "c4n4ry" not in repr(entry)
