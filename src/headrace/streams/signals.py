"""Signals that ask a process to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGTERM and SIGINT; in a thread other than the main one nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def obey(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stop()

    before = {n: signal.signal(n, obey) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
