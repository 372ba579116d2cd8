"""Jobs that must not keep the worker waiting: one at a time, beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from headrace.streams.kafka.protocols import Clock

# A wall clock that goes back must not make what is old look young.


class MonotonicWallClock:
    """A clock whose wall time goes on at least as fast as time does (see
    `headrace.streams.kafka.protocols.Clock`).

    Args:
        clock: the real one; what it says of durations is taken as it is.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_ms = clock.now_ms()
        self._seen_s = clock.monotonic_s()

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970; where it was set back, as if it were not."""
        now_s = self._clock.monotonic_s()
        passed_ms = int((now_s - self._seen_s) * 1000)
        now_ms = self._clock.now_ms()
        if now_ms > self._seen_ms + passed_ms:
            self._seen_ms, self._seen_s = now_ms, now_s
            return now_ms
        return self._seen_ms + passed_ms

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back, for durations."""
        return self._clock.monotonic_s()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self._clock.sleep(seconds)


# The machine's clocks, for what runs on a real cluster.


class SystemClock:
    """Time as the machine tells it (see `headrace.streams.kafka.protocols.Clock`)."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


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
