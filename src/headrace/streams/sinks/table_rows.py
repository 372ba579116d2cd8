"""Rows as an existing table of files takes them: what Delta and Iceberg share.

Hot path: `TableRows.table` runs for each batch.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

from headrace.streams.sinks.arrow import ArrowColumns, ArrowRows
from headrace.topology.errors import TopologyError
from headrace.topology.external_sink import SinkRow, SinkUnusableError

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_QUERY = re.compile(r"\?[^\s)\"']+")
_SECRETS = re.compile(r"(?<=://)[^@/\s]+(?=@)")
_SAID_MAX = 300


def partitioning(columns: ArrowColumns, given: str | Sequence[str], *, create: bool) -> list[str]:
    """The columns whose values divide the files of a table that is made here.

    Raises:
        TopologyError: none is made, or there is no such column, or no other one.
    """
    parts = [given] if isinstance(given, str) else list(given)
    if parts and not create:
        raise TopologyError(
            f"table {columns.table} is partitioned by whoever makes it; give create=True with "
            "partition_by=, or leave that out"
        )
    unknown = [name for name in parts if name not in columns.names]
    if unknown or (parts and set(parts) == set(columns.names)):
        what = f"{unknown[0]}, which is none" if unknown else "all"
        raise TopologyError(
            f"partition_by= of table {columns.table} names {what} of its columns "
            f"{', '.join(columns.names)}; name some of them"
        )
    return parts


class TableRows:
    """Makes `pyarrow.Table`s with all columns of a table, whose own types count.

    Args:
        columns: those that are written; the others become null.
        schema: the table's, as Arrow has it.

    Raises:
        SinkUnusableError: the table lacks a column, or has one more that may not be null.
    """

    def __init__(self, columns: ArrowColumns, schema: Any) -> None:
        import pyarrow

        _require_columns(columns, schema)
        self._pyarrow = pyarrow
        declared = ArrowRows(columns)
        other = {
            name: schema.field(name).type
            for name in columns.names
            if not _are_alike(schema.field(name).type, declared.schema.field(name).type)
        }
        as_there = copy.copy(columns)
        as_there.arrow_types = {**columns.arrow_types, **other}
        self._rows = ArrowRows(as_there)
        # Whether a column may be null is the table's to say.
        self._rows.schema = pyarrow.schema(
            [field.with_nullable(schema.field(field.name).nullable) for field in self._rows.schema]
        )
        self.schema = pyarrow.schema(
            [pyarrow.field(field.name, field.type, field.nullable) for field in schema]
        )

    def table(self, rows: Sequence[SinkRow]) -> Any:
        """Make a table of all columns.

        Raises:
            SinkRefusedError: a column cannot hold what a row has for it.
        """
        made = self._rows.table(rows)
        arrays = [
            made.column(field.name).cast(field.type)
            if field.name in made.column_names
            else self._pyarrow.nulls(len(rows), field.type)
            for field in self.schema
        ]
        return self._pyarrow.Table.from_arrays(arrays, schema=self.schema)

    def keys(self, rows: Sequence[SinkRow]) -> Any:
        """Make a table of the columns of the key alone.

        Raises:
            SinkRefusedError: a column cannot hold what a row has for it.
        """
        made = self._rows.keys(rows)
        fields = [self.schema.field(name) for name in made.column_names]
        return made.cast(self._pyarrow.schema(fields))


def _require_columns(columns: ArrowColumns, schema: Any) -> None:
    missing = [name for name in columns.names if name not in schema.names]
    if missing:
        raise SinkUnusableError(
            f"table {columns.table} has no column {', '.join(missing)}; it has "
            f"{', '.join(schema.names)}"
        )
    more = [f.name for f in schema if not f.nullable and f.name not in columns.names]
    if more:
        raise SinkUnusableError(
            f"table {columns.table} has a column {', '.join(more)} that may not be null; name it "
            "among the columns"
        )


def _are_alike(there: Any, declared: Any) -> bool:
    from pyarrow import types

    if types.is_string(declared):
        return bool(types.is_string(there) or types.is_large_string(there))
    return bool(there == declared)


def said(error: BaseException) -> str:
    """What an error says of files and services, in one line, without what may be secret in it.

    Example:
        >>> said(OSError("no answer\\n  from https://me:pass@host/x?sig=abc"))
        'no answer from https://***@host/x?***'
    """
    text = " ".join(_COLORS.sub("", str(error)).replace("↳", " ").split())
    text = _SECRETS.sub("***", _QUERY.sub("?***", text))
    return text[:_SAID_MAX] or type(error).__name__
