"""A single background request whose result the worker collects later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.streams.kafka.clocks import Background

T = TypeVar("T")


class BackgroundRequest(Generic[T]):
    """Runner of a background request that keeps the result until the worker takes it.

    >>> from headrace.streams.kafka.clocks import at_once
    >>> request = BackgroundRequest[int](at_once)
    >>> request.submit(lambda: 6 * 7)
    >>> request.poll()
    42
    """

    def __init__(self, background: Background) -> None:
        self._background = background
        self._unstarted: Callable[[], T] | None = None
        self._result: list[T] = []
        self._error: Exception | None = None
        self._is_pending = False

    @property
    def is_pending(self) -> bool:
        """Whether a request was submitted and its result was not taken yet."""
        return self._is_pending

    def submit(self, request: Callable[[], T]) -> None:
        assert not self._is_pending, "a request is running"
        self._unstarted, self._is_pending = request, True
        self._start()

    def poll(self) -> T | None:
        """Take the result, or return None while the request is running; raise its error."""
        self._start()
        if self._error is not None:
            error, self._error, self._is_pending = self._error, None, False
            raise error
        if not self._result:
            return None
        self._is_pending = False
        return self._result.pop()

    def _start(self) -> None:
        request = self._unstarted
        if request is not None and self._background(lambda: self._run(request)):
            self._unstarted = None

    def _run(self, request: Callable[[], T]) -> None:
        try:
            self._result.append(request())
        except Exception as error:  # raised by `poll`
            self._error = error
