"""Two jobs at the same time, and what becomes of their errors."""

from __future__ import annotations

import threading

import pytest

from headrace.streams.kafka.clocks import InThread, at_the_same_time
from tests.support.patience import PATIENCE_S


def test_neither_waits_for_the_other() -> None:
    met = threading.Barrier(2, timeout=PATIENCE_S)
    at_the_same_time(InThread("beside"), lambda: met.wait() and None, lambda: met.wait() and None)


def test_what_is_done_here_does_not_end_the_wait() -> None:
    may_end, ended = threading.Event(), threading.Event()

    def beside() -> None:
        may_end.wait(PATIENCE_S)
        ended.set()

    def here() -> None:
        threading.Timer(0.05, may_end.set).start()

    at_the_same_time(InThread("beside"), beside, here)
    assert ended.is_set()


def fail(error: Exception) -> None:
    raise error


def test_an_error_beside_is_raised_here() -> None:
    with pytest.raises(LookupError):
        at_the_same_time(InThread("beside"), lambda: fail(LookupError()), lambda: None)


def test_an_error_here_goes_first() -> None:
    """A start is refused for the same reason each time, whichever answer comes sooner."""
    with pytest.raises(LookupError):
        at_the_same_time(
            InThread("beside"), lambda: fail(ValueError()), lambda: fail(LookupError())
        )
