"""Those whose requests wait when the server stops are answered, and not just cut off.

    at once          who waits for positions is told so, and who follows changes
    after GRACE_S    whoever has no answer yet is: 503
    after as much    whoever does not take what was sent to him is cut off

The library that serves would cancel what is left, and say of each that an error happened in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.responses import JSONResponse

from headrace.streams.queries.errors import StoppingError

GRACE_S = 0.4
"""So long what is under way may still come to its answer. Twice that is less than the library
waits before it cancels."""


class Ending:
    """See the module; an ASGI application around another.

    Args:
        pages: answers requests.
    """

    def __init__(self, pages: Any) -> None:
        self._pages = pages
        self._unanswered: set[asyncio.Task[Any]] = set()
        self._is_over = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if self._is_over:
            await _refused()(scope, receive, send)
            return
        task = asyncio.current_task()
        assert task is not None
        self._unanswered.add(task)

        async def answer(message: Any) -> None:
            self._unanswered.discard(task)
            await send(message)

        try:
            await self._pages(scope, receive, answer)
        except asyncio.CancelledError:
            if task not in self._unanswered or not self._is_over:
                raise
            task.uncancel()
            await _refused()(scope, receive, send)
        finally:
            self._unanswered.discard(task)

    @contextmanager
    def within(self, cut_off: Callable[[], None]) -> Iterator[None]:
        """See that all requests end while the block runs, in the loop that answers them.

        Args:
            cut_off: ends the connections.
        """
        loop = asyncio.get_running_loop()
        timers = [
            loop.call_later(GRACE_S, self._answer_all),
            loop.call_later(2 * GRACE_S, cut_off),
        ]
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()

    def _answer_all(self) -> None:
        self._is_over = True
        for task in self._unanswered:
            task.cancel()


def _refused() -> JSONResponse:
    return JSONResponse({"error": str(StoppingError())}, 503, {"Connection": "close"})
