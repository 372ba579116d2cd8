"""What the sinks of databases share: names, tables that are made, and positions in a table of them.

`mark` is how a statement names its parameters: ``?``, or ``%s`` of psycopg.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.topology.external_sink import SinkBatch, SinkFencedError
from headrace.topology.sinks.columns import Columns

POSITIONS = "headrace_positions"
"""The table that positions are kept in."""


def quoted(name: str) -> str:
    """A name of SQL as it is."""
    return '"' + name.replace('"', '""') + '"'


def full(table: str) -> str:
    """A table, of a schema where that is in front of its name."""
    return ".".join(quoted(part) for part in table.split("."))


def definition(table: str, columns: Columns, types: Mapping[type, str], otherwise: str) -> str:
    """The statement that makes a table, where it is not there.

    Args:
        table: as SQL names it.
        types: what the database calls types of Python.
        otherwise: what it calls the others.
    """
    lines = [
        f"{quoted(name)} {kind if isinstance(kind, str) else types.get(kind, otherwise)}"
        f"{'' if name in columns.nullable or kind is object else ' NOT NULL'}"
        for name, kind in columns.types.items()
    ]
    if columns.key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, columns.key))})")
    return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(lines)})"


def on_conflict(columns: Columns) -> str:
    """What an insert does where the key is there."""
    key = ", ".join(map(quoted, columns.key))
    if not columns.others:
        return f" ON CONFLICT ({key}) DO NOTHING"
    changes = ", ".join(f"{quoted(n)} = excluded.{quoted(n)}" for n in columns.others)
    return f" ON CONFLICT ({key}) DO UPDATE SET {changes}"


def asking(mark: str = "?") -> str:
    """The statement that tells partitions and positions, given a sink's name and a source."""
    return f"SELECT partition, next FROM {POSITIONS} WHERE name = {mark} AND source = {mark}"  # noqa: S608


KEEPERS = f"SELECT DISTINCT name FROM {POSITIONS}"  # noqa: S608
"""The statement that gives all names that positions are kept under."""


def keepers(table: str) -> str:
    """Return the statement that gives those names if a table has rows, and else none.

    Args:
        table: as SQL names it.
    """
    return f"{KEEPERS} WHERE EXISTS (SELECT 1 FROM {table})"  # noqa: S608


def moving(name: str, batch: SinkBatch, mark: str = "?") -> tuple[str, tuple[Any, ...]]:
    """The statement that moves a position if it is where it is believed to be, and its parameters.

    It changes one row, or the writer is wrong about that.
    """
    place = (name, batch.source, batch.partition)
    if batch.expected is None:
        marks = ", ".join([mark] * 4)
        statement = f"INSERT INTO {POSITIONS} VALUES ({marks}) ON CONFLICT DO NOTHING"  # noqa: S608
        return statement, (*place, batch.next)
    statement = (
        f"UPDATE {POSITIONS} SET next = {mark} WHERE name = {mark} AND source = {mark} "  # noqa: S608
        f"AND partition = {mark} AND next = {mark}"
    )
    return statement, (batch.next, *place, batch.expected)


def fenced(batch: SinkBatch, where: str = "") -> SinkFencedError:
    """What a writer is told that is wrong about a position."""
    return SinkFencedError(
        f"partition {batch.partition} of {batch.source} is not at {batch.expected} in {POSITIONS}"
        f"{where}: another worker has written, or an answer was lost"
    )
