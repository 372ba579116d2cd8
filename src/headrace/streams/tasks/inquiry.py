"""A single background request whose result the worker collects later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.streams.kafka.clocks import Background

T = TypeVar("T")


class Inquiry(Generic[T]):
    """Runner of a background request that keeps the result until the worker takes it.

    >>> from headrace.streams.kafka.clocks import at_once
    >>> inquiry = Inquiry[int](at_once)
    >>> inquiry.ask(lambda: 6 * 7)
    >>> inquiry.take()
    42
    """

    def __init__(self, background: Background) -> None:
        self._background = background
        self._question: Callable[[], T] | None = None
        self._answer: list[T] = []
        self._error: Exception | None = None
        self._is_asking = False

    @property
    def is_open(self) -> bool:
        """Whether a request was made and its result was not taken yet."""
        return self._is_asking

    def ask(self, question: Callable[[], T]) -> None:
        assert not self._is_asking, "a request is running"
        self._question, self._is_asking = question, True
        self._start()

    def take(self) -> T | None:
        """Return the result, or None while the request is running; raise its error."""
        self._start()
        if self._error is not None:
            error, self._error, self._is_asking = self._error, None, False
            raise error
        if not self._answer:
            return None
        self._is_asking = False
        return self._answer.pop()

    def _start(self) -> None:
        question = self._question
        if question is not None and self._background(lambda: self._run(question)):
            self._question = None

    def _run(self, question: Callable[[], T]) -> None:
        try:
            self._answer.append(question())
        except Exception as error:  # raised by `take`
            self._error = error
