"""PostgreSQL connections with a time limit for each response.

The server's own time-outs only limit its own work. They limit neither the wait for a server that
hangs or whose host is lost, nor the wait behind a middlebox that drops packets.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

GRACE_S = 1.0
"""Seconds beyond the server's own time-out, so that its error message usually arrives first."""


def bounded(psycopg: Any, timeout_ms: int) -> type[Any]:
    """Return a connection class that closes a connection after a response has timed out."""
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
                        # A rollback would wait for the server again.
                        self.pgconn.finish()
                        raise psycopg.OperationalError(f"no answer within {limit_s:g} s")
                    state = gen.send(is_ready)
            except StopIteration as end:
                return end.value

    return Bounded
