"""Where the user's code writes nodes and stores, for errors about two that have one name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from headrace.topology.functions import calling_line

Kind = Literal["node", "store"]
Lines = Mapping[tuple[Kind, str], tuple[str, ...]]
"""By kind and name: file and line of each call that wrote one, in order."""


def with_lines(lines: Lines, kind: Kind, names: Iterable[str]) -> Lines:
    """The lines, and the present one of the user's code for some more nodes or stores."""
    here = calling_line()
    return {**lines, **{(kind, n): (*lines.get((kind, n), ()), here) for n in names}}


def said_lines(lines: Lines, kind: Kind, name: str) -> str:
    """Where those of a name are written, to stand behind it; empty where nobody knows.

    Example:
        >>> said_lines({("node", "by-word"): ("app.py:3", "app.py:9")}, "node", "by-word")
        ', at app.py:3 and at app.py:9'
        >>> said_lines({}, "node", "by-word")
        ''
    """
    known = dict.fromkeys(lines.get((kind, name), ()))
    return f", at {' and at '.join(known)}" if known else ""
