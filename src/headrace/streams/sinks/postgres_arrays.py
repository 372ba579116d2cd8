"""Columns of many rows as arrays of PostgreSQL, written here where that is simple.

psycopg asks for each single value how it is to be written, which takes longer than the rest.

Hot path: `as_array` runs for each column of each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_NONE = type(None)


def as_array(column: Sequence[Any]) -> str | list[Any]:
    """An array as text where all values are whole numbers, or floats, or text; else a list.

    Example:
        >>> as_array([1, None, 3]), as_array(['a "b"', None])
        ('{1,NULL,3}', '{"a \\\\"b\\\\"",NULL}')
        >>> as_array([1, "a"])
        [1, 'a']
    """
    kinds = set(map(type, column))
    has_nulls = _NONE in kinds
    kinds.discard(_NONE)
    write = _WRITTEN.get(kinds.pop()) if len(kinds) == 1 else None
    if write is None:
        return list(column)
    if has_nulls:
        return "{" + ",".join("NULL" if v is None else write(v) for v in column) + "}"
    return "{" + ",".join(map(write, column)) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_WRITTEN: Mapping[type, Callable[[Any], str]] = {str: _quoted, int: str, float: repr}
