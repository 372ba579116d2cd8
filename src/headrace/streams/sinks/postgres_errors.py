"""What PostgreSQL's errors ask for, without the values that their texts may quote."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.streams.sinks.sql import POSITIONS
from headrace.topology.external_sink import (
    SinkRefusedError,
    SinkRow,
    SinkUnavailableError,
    SinkUnusableError,
)
from headrace.topology.sinks.columns import Columns
from headrace.topology.sinks.encoding import said_of

_LINE = re.compile(r"COPY .*?, line (\d+)(?:, column ([^:]+))?")
_UNAVAILABLE = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Classes of errors that may be none the next time: connections, roles, locks, resources."""

_TIMED_OUT = frozenset({"57014", "55P03"})
"""A statement that was cancelled, and a lock that others had for too long."""

_PERMANENT = (
    (re.compile(r'database "[^"]*" does not exist'), "create it, or name another one"),
    (re.compile(r'role "[^"]*" does not exist'), "create it, or name another user"),
    (
        re.compile(r"authentication failed|no password supplied"),
        "correct the user or the password: in the address, in PGPASSWORD or in ~/.pgpass",
    ),
    (re.compile("no pg_hba.conf entry"), "let this host in, in the server's pg_hba.conf"),
    (re.compile("is not permitted to log in"), "give it LOGIN, or name another user"),
    (re.compile("permission denied for database"), "give it CONNECT, or name another one"),
)
"""What a server says at the door that waiting does not put right, and what does."""
OPTION = re.compile(r"invalid (?:URI query parameter|connection option):? \"\w+\"")
_NO_ADAPTER = re.compile(r"cannot adapt type '(\w+)'")


def load_psycopg() -> Any:
    """Import it.

    Raises:
        SinkUnusableError: it is not installed.
    """
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise SinkUnusableError(
            'PostgresSink needs psycopg; run: pip install "headrace[postgres]"'
        ) from error
    return psycopg


@contextmanager
def told(
    columns: Columns | None = None,
    rows: Sequence[SinkRow] = (),
    culprit: Callable[..., SinkRefusedError | None] | None = None,
) -> Iterator[None]:
    """Say what an error of PostgreSQL asks for, without the values that its text may quote.

    Args:
        culprit: finds the value that could not be handed over, or read.
    """
    psycopg = load_psycopg()
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        timed_out = error.sqlstate in _TIMED_OUT
        raise SinkUnavailableError(reason_of(error), timed_out=timed_out) from error
    except psycopg.Error as error:
        state = error.sqlstate or ""
        if state[:2] in _UNAVAILABLE:
            raise SinkUnavailableError(reason_of(error)) from error
        if state.startswith(("42", "3D", "3F", "28")):
            raise SinkUnusableError(_unusable(error, columns)) from error
        if columns is None or culprit is None:
            raise
        refused = _refused(error, columns.table, rows)
        if refused.column is None:
            refused = culprit(is_client=not state) or refused
        raise refused from error
    except (TypeError, ValueError, ArithmeticError) as error:
        if columns is None or culprit is None:
            raise
        found = culprit(is_client=True)
        raise found or SinkRefusedError(said_of(error), table=columns.table) from error


def _refused(error: Any, table: str, rows: Sequence[SinkRow]) -> SinkRefusedError:
    reason = reason_of(error) if error.sqlstate else client_s(error)
    if error.diag.constraint_name:
        reason += f", constraint {error.diag.constraint_name}"
    column, offset = error.diag.column_name, None
    line = _LINE.search(error.diag.context or "")
    if line is not None:
        column = column or line[2]
        number = int(line[1]) - 1
        offset = rows[number].offset if number < len(rows) else None
    return SinkRefusedError(reason, table=table, column=column, offset=offset)


def _unusable(error: Any, columns: Columns | None) -> str:
    """What a person has to put right; these texts name tables and columns."""
    text = f"{reason_of(error)}: {error.diag.message_primary}"
    if columns is None and error.sqlstate == "42501":
        return f"{text}; the user needs SELECT, INSERT and UPDATE on {POSITIONS}"
    if columns is None:
        return text
    table, key = columns.table, ", ".join(columns.key)
    if error.sqlstate == "42P10" and key:
        return f"table {table} needs a primary key or a unique constraint on {key}: {text}"
    if error.sqlstate == "42P01":
        return f"{text}; make it, or give create=True"
    if error.sqlstate == "42501":
        rights = "INSERT, UPDATE, DELETE and SELECT" if key else "INSERT"
        return (
            f"{text}; the user needs {rights} on {table}, SELECT, INSERT and UPDATE on "
            f"{POSITIONS}, and CREATE on the schema where a table is to be made"
        )
    return text


def remedy_of(text: str) -> str | None:
    """What puts right what a server says at the door; None where waiting may."""
    return next((remedy for said, remedy in _PERMANENT if said.search(text)), None)


def client_s(error: BaseException) -> str:
    """What an error of psycopg's own says, without a value."""
    text = str(error)
    kind = _NO_ADAPTER.search(text)
    if kind is not None:
        return f"psycopg cannot write a {kind[1]}; give it a column of jsonb, or write row="
    if "cannot contain NUL" in text:
        return "text with a NUL, which PostgreSQL does not have"
    if "lists of mixed types" in text:
        return "a list of values of several types"
    return said_of(error)


def reason_of(error: Any) -> str:
    """What an error is, without what its text may quote."""
    kind = type(error).__name__
    if error.sqlstate is None:
        # The client's own: of connections, which quote no row.
        text = str(error).strip().splitlines()
        is_connection = type(error).__name__ in ("OperationalError", "InterfaceError")
        return text[0] if text and is_connection else kind
    return f"{kind} ({error.sqlstate})"
