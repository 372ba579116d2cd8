"""PostgreSQL as a target: its server is killed and stands still, its connections are cut."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from headrace import ExternalSink, PostgresSink
from tests.sink_faults.targets import COLUMNS, Pids, Strike, as_row
from tests.support.postgres import PostgresServer
from tests.support.proxy import Loss, Proxy

_PATIENCE_S = 5.0
_OTHERS = "application_name LIKE 'worker-%'"


class PostgresTarget:
    """A server of its own, which workers reach through a proxy."""

    _locked: tuple[str, ...] = ("headrace_positions", "upserted")

    def __init__(self) -> None:
        self._server = PostgresServer()
        self._proxy = Proxy(self._server.socket)

    def start(self, directory: Path) -> str:
        del directory
        return (
            f"host=127.0.0.1 port={self._proxy.port} user=postgres dbname=postgres "
            "sslmode=disable gssencmode=disable"
        )

    @staticmethod
    def sinks(address: str, worker: str) -> tuple[ExternalSink, ExternalSink | None]:
        address += f" application_name=worker-{worker}"
        return (
            PostgresSink(address, "appended", COLUMNS, row=as_row, create=True),
            PostgresSink(address, "upserted", COLUMNS, key="id", create=True),
        )

    def strikes(self) -> Mapping[str, Strike]:
        return {
            "server killed in mid-transaction": self._kill,
            "server stands still": self._stand_still,
            "connections ended by the server": self._terminate,
            "connections cut by the proxy": self._cut,
            "connections silent": self._silent,
            "answer to COMMIT lost, connection cut": partial(self._lose, "cut"),
            "answer to COMMIT lost, connection silent": partial(self._lose, "silence"),
        }

    # -- in mid-transaction --------------------------------------------------------------------

    @contextmanager
    def _held(self, choose: random.Random) -> Iterator[list[str]]:
        """Have workers stand in the middle of transactions, which have moved positions already.

        Yields:
            the workers that do.
        """
        # Rows are there and wait for their position to move, or it has moved and waits for them.
        table = choose.choice(self._locked)
        with psycopg.connect(self._server.url) as holder:
            holder.execute("SET lock_timeout = '5s'")
            holder.execute(f"LOCK TABLE {table} IN SHARE MODE")
            deadline = time.monotonic() + _PATIENCE_S
            found: list[str] = []
            while not found and time.monotonic() < deadline:
                time.sleep(0.005)
                # Another connection, as each transaction sees one moment of this view.
                rows = self._rows(
                    "SELECT application_name FROM pg_stat_activity "
                    f"WHERE {_OTHERS} AND wait_event_type = 'Lock' AND backend_xid IS NOT NULL"
                )
                found = [name.removeprefix("worker-") for (name,) in rows]
            yield found
            if not holder.broken:
                holder.rollback()

    def in_the_middle(
        self, pids: Pids, choose: random.Random, act: Callable[[int], None]
    ) -> int | None:
        with self._held(choose) as found:
            hit = next((pid for pid, name in pids.items() if name in found), None)
            if hit is not None:
                act(hit)
        return hit

    def _kill(self, choose: random.Random) -> dict[str, Any] | None:
        try:
            with self._held(choose) as found:
                self._server.kill()
                time.sleep(0.3)
        except psycopg.OperationalError:
            pass  # the holder's own connection
        away_s = choose.choice((0.0, 1.0, 6.0))
        time.sleep(away_s)
        self._server.start_again()
        return {"in_transaction": found, "away_s": away_s}

    def _stand_still(self, choose: random.Random) -> dict[str, Any]:
        seconds = choose.uniform(6.0, 9.0)
        with self._held(choose) as found:
            pass
        self._server.send(signal.SIGSTOP)
        time.sleep(seconds)
        self._server.send(signal.SIGCONT)
        return {"in_transaction": found, "seconds": round(seconds, 1)}

    def _terminate(self, choose: random.Random) -> dict[str, Any] | None:
        with self._held(choose) as found:
            ended = self._rows(
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_OTHERS}"
            )
        return {"in_transaction": found, "connections": len(ended)} if ended else None

    def _cut(self, choose: random.Random) -> dict[str, Any] | None:
        with self._held(choose) as found:
            count = self._proxy.cut()
        return {"in_transaction": found, "connections": count} if count else None

    def _silent(self, choose: random.Random) -> dict[str, Any] | None:
        with self._held(choose) as found:
            count = self._proxy.fall_silent()
        return {"in_transaction": found, "connections": count} if count else None

    def _lose(self, loss: Loss, choose: random.Random) -> dict[str, Any] | None:
        del choose
        self._proxy.lose_answer(loss)
        return {"in_transaction": True} if self._proxy.wait_lost(_PATIENCE_S) else None

    # -- what it has ---------------------------------------------------------------------------

    def progress(self) -> int:
        try:
            ((found,),) = self._rows("SELECT coalesce(sum(next), 0) FROM headrace_positions")
        except psycopg.Error:
            return 0
        return int(found)

    def appended(self) -> Sequence[tuple[str, str]]:
        return self._rows("SELECT id, value FROM appended")

    def upserted(self) -> Sequence[tuple[str, str]]:
        return self._rows("SELECT id, value FROM upserted")

    def _rows(self, statement: str) -> list[Any]:
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            return connection.execute(statement).fetchall()

    def close(self) -> None:
        self._proxy.close()
        self._server.close()


class DirectTarget(PostgresTarget):
    """The same with one table, whose sink reads the topic itself and has two rows a record."""

    _locked = ("headrace_positions",)

    def start(self, directory: Path) -> str:
        address = super().start(directory)
        # Which row of a key is its last one, the order says in which they were written.
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE pairs (n bigserial PRIMARY KEY, id text, part int, value text)"
            )
        return address

    @staticmethod
    def sinks(address: str, worker: str) -> tuple[ExternalSink, None]:
        address += f" application_name=worker-{worker}"
        columns = {"id": str, "part": int, "value": str}
        return PostgresSink(address, "pairs", columns, row=_as_part), None

    def appended(self) -> Sequence[tuple[str, str]]:
        """The rows of one part; those of the other too, where the two are not alike."""
        halves = [
            self._rows(f"SELECT id, value FROM pairs WHERE part = {part} AND value IS NOT NULL")
            for part in (0, 1)
        ]
        return halves[0] if sorted(halves[0]) == sorted(halves[1]) else halves[0] + halves[1]

    def upserted(self) -> Sequence[tuple[str, str]]:
        last = dict(self._rows("SELECT id, value FROM pairs ORDER BY n"))
        return [(key, value) for key, value in last.items() if value is not None]


def _as_part(key: Any, value: Any) -> dict[str, Any]:
    part, text = value
    return {"id": key, "part": part, "value": text}
