"""Jobs that must not keep the worker waiting: one at a time, beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

Job = Callable[[], None]


class Background(Protocol):
    """Runs a job some time soon."""

    def __call__(self, job: Job) -> bool:
        """Take a job; returns False, and leaves it, while another one runs."""


class InThread:
    """Runs each job in a thread that does not keep the process alive.

    A job catches its own errors: nobody else would hear of them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def __call__(self, job: Job) -> bool:
        """Take a job; returns False, and leaves it, while another one runs."""
        if self._thread is not None and self._thread.is_alive():
            return False
        self._thread = threading.Thread(target=job, name=self._name, daemon=True)
        self._thread.start()
        return True


def at_the_same_time(background: Background, beside: Job, here: Job) -> None:
    """Do two jobs that both wait for others, and go on when both are done.

    Args:
        background: takes the one, and has no other.
        beside: the one.
        here: the other, which is done in this thread.

    Raises:
        Exception: what `here` raises, or else what `beside` does.

    Example:
        >>> at_the_same_time(at_once, lambda: print("topics"), lambda: print("offsets"))
        topics
        offsets
    """
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            beside()
        except BaseException as error:  # raised where it is waited for
            errors.append(error)
        finally:
            done.set()

    background(run)
    try:
        here()
    finally:
        done.wait()
    if errors:
        raise errors[0]


def at_once(job: Job) -> bool:
    """Run a job now: where nothing waits, as in memory."""
    job()
    return True
