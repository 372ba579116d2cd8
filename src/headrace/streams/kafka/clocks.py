"""Clocks, and background jobs that do not block the worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.streams.kafka.protocols import Clock

# Protection from a wall clock that is set back, which would make old rows look recent.


class MonotonicWallClock:
    """Clock whose wall time never goes back (see `headrace.streams.kafka.protocols.Clock`).

    Its wall time advances at least as fast as its monotonic time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_ms = clock.now_ms()
        self._seen_s = clock.monotonic_s()

    def now_ms(self) -> int:
        now_s = self._clock.monotonic_s()
        passed_ms = int((now_s - self._seen_s) * 1000)
        now_ms = self._clock.now_ms()
        if now_ms > self._seen_ms + passed_ms:
            self._seen_ms, self._seen_s = now_ms, now_s
            return now_ms
        return self._seen_ms + passed_ms

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)


# The machine's clocks, for clients of a real cluster.


class SystemClock:
    """Clock of the machine (see `headrace.streams.kafka.protocols.Clock`)."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


Job = Callable[[], None]
Background = Callable[[Job], bool]
"""Starts a background job; returns False without starting it while another job runs."""


class InThread:
    """Runner of jobs in daemon threads.

    A job must catch its own errors because they are not reported.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def __call__(self, job: Job) -> bool:
        if self._thread is not None and self._thread.is_alive():
            return False
        self._thread = threading.Thread(target=job, name=self._name, daemon=True)
        self._thread.start()
        return True


def at_the_same_time(background: Background, beside: Job, here: Job) -> None:
    """Run two blocking jobs concurrently, `here` in this thread; return when both are done.

    The background must be idle. The error of `here` is raised, else the error of `beside`.

    Examples:
        >>> at_the_same_time(at_once, lambda: print("topics"), lambda: print("offsets"))
        topics
        offsets
    """
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            beside()
        except BaseException as error:  # raised by the caller
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
    job()
    return True
