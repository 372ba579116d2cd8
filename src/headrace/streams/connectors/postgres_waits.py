"""Connections to PostgreSQL that wait for no answer for ever.

The server's own time-outs end what it does itself. They end neither a wait for a server that
stands still, or whose host is gone, nor one that is waited for by a middlebox.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

GRACE_S = 1.0
"""How much longer is waited than the server may take: where it answers, it says why not."""


def bounded(psycopg: Any, timeout_ms: int) -> type[Any]:
    """The class of connections that give up a server that is silent for so long."""
    limit_s = timeout_ms / 1000 + GRACE_S

    class Bounded(psycopg.Connection):  # type: ignore[misc]
        def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
            return super().wait(self._limited(gen), *args, **options)

        def _limited(self, gen: Any) -> Generator[Any, Any, Any]:
            given_up_s = time.monotonic() + limit_s
            try:
                state = next(gen)
                while True:
                    is_ready = yield state
                    if not is_ready and time.monotonic() > given_up_s:
                        # So that nobody asks it to roll back, and waits again.
                        self.pgconn.finish()
                        raise psycopg.OperationalError(f"no answer within {limit_s:g} s")
                    state = gen.send(is_ready)
            except StopIteration as end:
                return end.value

    return Bounded
